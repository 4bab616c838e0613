// The CPU's driver of row programs: what it makes of a program and its groups of operands.
#ifndef TIGON_ROWS_LANES_PROGRAMS_HPP
#define TIGON_ROWS_LANES_PROGRAMS_HPP

#include <tigon/rows/driver.hpp>
#include <tigon/rows/lanes/gradients.hpp>

#include <tuple>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// The rows of a program, and of all that run beside it, if they are given.
template <class... Group>
TIGON_INLINE rows_of_all rows_beside(rows_of_all rows, Group... groups) {
  [[maybe_unused]] const auto take = [&](auto group) {
    if constexpr (std::same_as<decltype(group), rows_of_all>) rows = group;
  };
  (take(groups), ...);
  return rows;
}

template <class Group>
concept is_adds_to = requires(Group group) { group.wanted(); };

// A backward pass without parameter gradients: it reads what forward saved of each row, and reduces several matrices.
// It runs as one with gradients does, so that its map can share a loop with the reduction of later rows.
template <class P, class... N, class... S, class... X>
constexpr bool is_backward(const bound_program<P, of_rows<N...>, saves<S...>>&, const reads<X...>&) {
  return !has_state<P> && sizeof...(N) != 0 && matrices_of<X...> > 1;
}

// Matrices that map reads again.
template <class X>
TIGON_INLINE auto reduced_first(X x) {
  if constexpr (matrix_bytes<X> != 0)
    return read_again(x);
  else
    return x;
}

// An operand of a map of rows that were just reduced.
template <class... X>
TIGON_INLINE std::tuple<cached<X>...> just_read(std::tuple<X...> operands) {
  return unpacked([](auto... x) TIGON_LAMBDA { return std::tuple(cached<X>{x}...); }, operands);
}

// Matrices that map alone reads: the reduction pulls them into the cache with its own.
template <class X>
TIGON_INLINE auto touched_matrix(X x) {
  if constexpr (matrix_bytes<X> != 0)
    return std::tuple(touched<X>(x));
  else
    return std::tuple<>();
}

template <class T, class X>
TIGON_INLINE bool begins_with(matrix_view<T> y, X x) {
  if constexpr (requires { x.data; })
    return static_cast<const void*>(y.data) == static_cast<const void*>(x.data);
  else if constexpr (requires { x.operand; })
    return begins_with(y, x.operand);
  else
    return false;
}

// Whether there are rows and each begins at a cache line: a sum that map_sum makes while it writes them has the bits of
// one that is made alone, whether they are written past the caches or not.
template <class T>
bool rows_begin_lines(matrix_view<T> m) {
  constexpr std::size_t line = 64;
  return m.data != nullptr && reinterpret_cast<std::uintptr_t>(m.data) % line == 0 &&
         m.row_stride * sizeof(T) % line == 0;
}

// Whether the reduction may store that output: no operand begins there, nor another output, which would be overwritten.
template <class T, class... X>
bool reduction_may_write(matrix_view<T> first, const std::tuple<X...>& others) {
  return rows_begin_lines(first) && unpacked([&](auto... x) { return !(begins_with(first, x) || ...); }, others);
}

// The sums of a row whose reduction stores what needs none.
template <class Bound, class Row, class... X, class... Y>
TIGON_INLINE auto reduced_and_written(const Bound& bound, const Row& row, reads<X...> in, writes<Y...> direct) {
  return row.map_sum(in, direct, direct_and_reduce{bound.p, bound.template reduction<sizeof...(X)>(row.i)});
}

struct extents_of_all {
  rows_of_all rows;
  std::size_t cols;
};

// An output that needs no reduction is stored by the first pass where the plan says so, otherwise by the map. Declared:
// a reduction that may share a loop with the map, as in reduce_and_map.
template <class B, bool Declared, class Bound, class... X, class... M, class... Y, class T, class... G>
void reduce_map_direct(context& ctx, const Bound& bound, reads<X...> in, map_reads<M...> more, writes<Y...> out,
                       reduce_writes<matrix_view<T>> direct, adds_to<G...> gradients, extents_of_all of) {
  static_assert(sizeof...(Y) != 0, "tigon: a program with parameter gradients and reduce_writes has writes");
  using V = vec_of<B, X...>;
  constexpr std::size_t matrices = matrices_of<X..., M...>;
  constexpr program_plan plan = plan_of<B, row_shape{.pass = row_pass::program,
                                                     .matrices = matrices,
                                                     .vectors = sizeof...(X) + sizeof...(M) - matrices,
                                                     .sums = sizeof...(G),
                                                     .element_bytes = sizeof(T),
                                                     .lanes = V::size,
                                                     .reduction = reduction_kind::imperative,
                                                     .outputs = 1 + output_rows<writes<Y...>>}>;
  const matrix_view<T> first = std::get<0>(direct.y);
  const auto operands = std::tuple_cat(in.x, more.x);
  const auto both = std::tuple_cat(direct.y, out.y);
  constexpr std::size_t K = sizeof...(G);
  const auto run = [&](auto reduction, auto map) {
    run_rows<B, typename V::value_type>(ctx, of.rows, of.cols, reduction, map, gradients);
  };
  if constexpr (plan.reduce_writes)
    if (reduction_may_write(first, std::tuple_cat(operands, out.y)))
      return run(imperative_reduction{}, [=] TIGON_FN(auto row) {
        const auto sum = reduced_and_written(bound, row, in, writes(first));
        map_with_partials<K>(row, operands, out.y, mapping<V>(bound.p, bound.value_after(row, sum, in)));
      });
  const auto map = [=](const auto& row, const auto& from, auto value) TIGON_LAMBDA {
    const auto of_row = mapping<V>(bound.p, value);
    map_with_partials<K>(row, from, both, direct_and_map<sizeof...(X), std::remove_const_t<decltype(of_row)>>{of_row});
  };
  if constexpr (Declared) {
    const auto reduction = [=](std::size_t i) TIGON_LAMBDA { return bound.template reduction<sizeof...(X)>(i); };
    run(declared_reduction(reduction, in.x),
        [=] TIGON_FN(auto row, auto sum) { map(row, operands, bound.finished(row.i, sum)); });
  } else {
    const auto again = unpacked([](auto... x) { return reads(reduced_first(x)...); }, in.x);
    run(imperative_reduction{},
        [=] TIGON_FN(auto row) { map(row, std::tuple_cat(just_read(in.x), more.x), bound.value_of(row, again)); });
  }
}

// map_of, and what computes the rows that it leaves alone.
template <class MapOf, class Bound, class... Group>
struct maps_in_f64 : MapOf {
  Bound bound;
  std::tuple<Group...> groups;
  maps_in_f64(MapOf map_of, const Bound& program, Group... all) : MapOf(map_of), bound(program), groups(all...) {}

  template <class Row, class Made, class... Sums>
    requires(std::invoke_result_t<MapOf, std::size_t, Made>::in_f64)
  TIGON_INLINE void map_in_f64(const Row& row, const Made& made, Sums... sums) const {
    const auto value = std::get<0>((*this)(row.i, made).value);
    unpacked([&](auto... group) { map_if_in_f64(row, bound, value, group..., sums...); }, groups);
  }
};

// No map: the reduction alone, which stores what needs no reduction.
template <class B, class Bound, class... X, class... Y, class... F>
void reduce_rows(context& ctx, const Bound& bound, reads<X...> in, reduce_writes<Y...> direct, kept_rows<F...> kept,
                 extents of) {
  for_rows<B, typename vec_of<B, X...>::value_type>(ctx, of.rows, of.cols, [=] TIGON_FN(auto row) {
    if (!kept.keeps(row.i)) return clear_outputs(row, direct.y);
    if constexpr (sizeof...(Y) == 0) {
      (void)bound.value_of(row, in);
    } else {
      const auto output = unpacked([](auto... y) TIGON_LAMBDA { return writes(y...); }, direct.y);
      (void)bound.value_after(row, reduced_and_written(bound, row, in, output), in);
    }
  });
}

// A reduction and a map. A reduction that is declared may share a loop with the map; others are made row by row.
template <class B, bool Declared, class Bound, class... X, class... M, class... Y, class... T>
void reduce_and_map(context& ctx, const Bound& bound, reads<X...> in, map_reads<M...> more, writes<Y...> out,
                    adds_to<T...> gradients, extents_of_all of) {
  using V = vec_of<B, X...>;
  const auto run = [&](auto reduction, auto map) {
    run_rows<B, typename V::value_type>(ctx, of.rows, of.cols, reduction, map, gradients);
  };
  if constexpr (Declared) {
    const auto touched = unpacked([](auto... m) { return std::tuple_cat(touched_matrix(m)...); }, more.x);
    const auto reduction = [=](std::size_t i) TIGON_LAMBDA { return bound.template reduction<sizeof...(X)>(i); };
    const auto map_of = [=](std::size_t i, auto sum)
                            TIGON_LAMBDA { return mapping<V>(bound.p, bound.finished(i, sum)); };
    run(declared_reduction(reduction, std::tuple_cat(in.x, touched)),
        declared_map(out, maps_in_f64(map_of, bound, in, more, out), std::tuple_cat(in.x, more.x)));
  } else {
    const auto again = unpacked([](auto... x) { return reads(reduced_first(x)...); }, in.x);
    const auto map_of = [=](std::size_t, auto of_row) TIGON_LAMBDA { return mapping<V>(bound.p, of_row); };
    run(row_value([=] TIGON_FN(const auto& row) { return bound.value_of(row, again); }),
        declared_map(out, maps_in_f64(map_of, bound, in, more, out), std::tuple_cat(just_read(in.x), more.x)));
  }
}

template <class B>
template <class P, class... Group>
void rows_on_lanes<B>::reduce_map(context& ctx, P program, Group... groups) {
  const auto in = group<reads>(groups...);
  const auto more = group<map_reads>(groups...);
  const auto out = group<writes>(groups...);
  const auto gradients = group<adds_to>(groups...);
  const auto direct = group<reduce_writes>(groups...);
  const auto kept = group<kept_rows>(groups...);
  const bound_program bound(program, group<of_rows>(groups...), group<saves>(groups...));
  const extents of = unpacked([](auto... x) { return first_extents(x...); }, in.x);
  const rows_of_all rows = rows_beside(of.rows, groups...);
  constexpr bool adds = (is_adds_to<Group> || ...);
  constexpr bool maps = std::tuple_size_v<decltype(out.y)> != 0 || adds;
  static_assert(!maps || std::tuple_size_v<decltype(kept.flags)> == 0, "tigon: a program with a map keeps all rows");
  if constexpr (!maps)
    reduce_rows<B>(ctx, bound, in, direct, kept, of);
  else if constexpr (std::tuple_size_v<decltype(direct.y)> != 0)
    reduce_map_direct<B, adds>(ctx, bound, in, more, out, direct, gradients, {rows, of.cols});
  else
    reduce_and_map<B, adds || is_backward(bound, in)>(ctx, bound, in, more, out, gradients, {rows, of.cols});
}

template <class B>
template <class P, class... X, class... Y, class... Group>
void rows_on_lanes<B>::map_rows(context& ctx, P program, reads<X...> in, writes<Y...> out, Group... groups) {
  using V = vec_of_elements<B, typename decltype(source<B>(std::declval<X>(), {}))::element_type...,
                            typename decltype(sink(std::declval<Y>(), {}))::element_type...>;
  using A = typename V::value_type;
  const auto of_columns = mapping<V>(program);
  const auto map_of = [=](std::size_t, int) TIGON_LAMBDA { return of_columns; };
  const declared_map maps(out, map_of, in.x);
  const extents of = unpacked([](auto... operand) { return first_extents(operand...); }, std::tuple_cat(out.y, in.x));
  const auto gradients = group<adds_to>(groups...);
  const auto kept = group<kept_rows>(groups...);
  constexpr std::size_t K = std::tuple_size_v<decltype(gradients.g)>;
  constexpr bool keeps_all = std::tuple_size_v<decltype(kept.flags)> == 0;
  static_assert(K == 0 || keeps_all, "tigon: a program with sums over the rows keeps all rows");
  constexpr row_shape shape = program_shape<V, no_reduction, std::remove_const_t<decltype(maps)>>(K);
  if constexpr (K != 0 || (keeps_all && matrices_of<X...> != 0 && plan_of<B, shape>.rows > 1))
    run_rows<B, A>(ctx, rows_beside(of.rows, groups...), of.cols, no_reduction{}, maps, gradients);
  else
    for_rows<B, A>(ctx, of.rows, of.cols, [=] TIGON_FN(auto row) {
      if constexpr (!keeps_all)
        if (!kept.keeps(row.i)) return clear_outputs(row, out.y);
      row.map(in, out, of_columns);
    });
}

}  // namespace detail
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_LANES_PROGRAMS_HPP
