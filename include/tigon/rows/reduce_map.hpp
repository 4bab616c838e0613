// The driver of row programs (rows/program.hpp) on a CPU.
#ifndef TIGON_ROWS_REDUCE_MAP_HPP
#define TIGON_ROWS_REDUCE_MAP_HPP

#include <tigon/rows/gradients.hpp>
#include <tigon/rows/program.hpp>

#include <tuple>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// Matrices that map reads again.
template <class X>
TIGON_INLINE auto reduced_first(X x) {
  if constexpr (matrix_bytes<X> != 0)
    return read_again(x);
  else
    return x;
}

// Matrices that only map reads come from memory with those that are reduced.
template <class X>
TIGON_INLINE auto nearby_matrix(X x) {
  if constexpr (matrix_bytes<X> != 0)
    return std::tuple(nearby<X>(x));
  else
    return std::tuple<>();
}

template <class Y>
TIGON_INLINE Y sole_output(writes<Y> out) {
  return std::get<0>(out.y);
}
template <class... Y>
TIGON_INLINE writes<Y...> sole_output(writes<Y...> out) {
  return out;
}

template <class V, std::size_t N, std::size_t M>
TIGON_INLINE pack<V, N + M> joined(pack<V, N> a, pack<V, M> b) {
  pack<V, N + M> all;
  unrolled<N>([&](auto k) TIGON_LAMBDA { all.v[k] = a.v[k]; });
  unrolled<M>([&](auto k) TIGON_LAMBDA { all.v[N + k] = b.v[k]; });
  return all;
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

// One row at a time. An output that needs no reduction is stored by the first pass where the plan says so, but not if the
// second pass reads it as an operand.
template <class B, class Bound, class... X, class... M, class... Y, class T>
void reduce_map_direct(context& ctx, const Bound& bound, reads<X...> in, map_reads<M...> more, writes<Y...> out,
                       reduce_writes<matrix_view<T>> direct) {
  using V = vec_of<B, X...>;
  constexpr std::size_t matrices = matrices_of<X..., M...>;
  constexpr row_plan plan = plan_of<B, row_shape{.pass = row_pass::program,
                                                 .matrices = matrices,
                                                 .vectors = sizeof...(X) + sizeof...(M) - matrices,
                                                 .element_bytes = sizeof(T),
                                                 .lanes = V::size,
                                                 .reduction = reduction_kind::imperative,
                                                 .outputs = 1 + output_rows<writes<Y...>>}>;
  const extents of = std::apply([](auto... x) { return first_extents(x...); }, in.x);
  const matrix_view<T> first = std::get<0>(direct.y);
  [[maybe_unused]] const bool early =
      rows_begin_lines(first) &&
      std::apply([&](auto... x) { return !(begins_with(first, x) || ...); }, std::tuple_cat(in.x, more.x));
  for_rows<B, typename V::value_type>(ctx, of.rows, of.cols, [=] TIGON_FN(auto row) {
    const auto map_to = [&](auto output, auto f) TIGON_LAMBDA {
      std::apply([&](auto... x) TIGON_LAMBDA { row.map(reads(x...), output, f); }, std::tuple_cat(in.x, more.x));
    };
    if constexpr (plan.reduce_writes) {
      if (early) {
        const auto sum = row.map_sum(in, writes(first), [p = bound.p](auto... v) TIGON_LAMBDA {
          return joined(as_pack(p.direct(v...)), as_pack(p.reduce(v...)));
        });
        map_to(out, mapping<V>(bound.p, bound.value_after(row, sum, in)));
        return;
      }
    }
    const auto again = std::apply([](auto... x) TIGON_LAMBDA { return reads(reduced_first(x)...); }, in.x);
    const auto of_row = mapping<V>(bound.p, bound.value_of(row, again));
    std::apply(
        [&](auto... y) TIGON_LAMBDA {
          map_to(writes(first, y...), [=](auto... v) TIGON_LAMBDA {
            const std::tuple<decltype(v)...> all(v...);
            const auto direct_of = [&]<std::size_t... k>(std::index_sequence<k...>)
                                       TIGON_LAMBDA { return as_pack(of_row.p.direct(std::get<k>(all)...)); };
            return joined(direct_of(std::make_index_sequence<sizeof...(X)>{}), of_row(v...));
          });
        },
        out.y);
  });
}

// The map of a program: map_of(i, what the reduction made) is its function for row i.
template <class MapOf, class... Y, class... X>
auto map_program(MapOf map_of, writes<Y...> out, const std::tuple<X...>& operands) {
  return std::apply([&](auto... x) { return row_map(sole_output(out), map_of, x...); }, operands);
}

template <class B, class Bound, class... X, class... M, class... Y>
void reduce_map_rows(context& ctx, const Bound& bound, reads<X...> in, map_reads<M...> more, writes<Y...> out) {
  using V = vec_of<B, X...>;
  const extents of = std::apply([](auto... x) { return first_extents(x...); }, in.x);
  const auto again = std::apply([](auto... x) { return reads(reduced_first(x)...); }, in.x);
  const auto value = [=] TIGON_FN(const auto& row) { return bound.value_of(row, again); };
  const auto map_of = [=](std::size_t, auto of_row) TIGON_LAMBDA { return mapping<V>(bound.p, of_row); };
  map_rows<B, typename V::value_type>(ctx, of.rows, of.cols, value,
                                      map_program(map_of, out, std::tuple_cat(in.x, more.x)));
}

template <class B, class Bound, class... X, class... M, class... Y, class... T>
void reduce_map_adding(context& ctx, const Bound& bound, reads<X...> in, map_reads<M...> more, writes<Y...> out,
                       adds_to<T...> gradients) {
  using V = vec_of<B, X...>;
  const extents of = std::apply([](auto... x) { return first_extents(x...); }, in.x);
  const auto near = std::apply([](auto... m) { return std::tuple_cat(nearby_matrix(m)...); }, more.x);
  const auto reduction = [=](std::size_t i) TIGON_LAMBDA { return bound.template reduction<sizeof...(X)>(i); };
  const auto sums = std::apply([&](auto... x) { return row_sum(reduction, x...); }, std::tuple_cat(in.x, near));
  const auto map_of = [=](std::size_t i, auto sum) TIGON_LAMBDA { return mapping<V>(bound.p, bound.finished(i, sum)); };
  const auto maps = map_program(map_of, out, std::tuple_cat(in.x, more.x));
  std::apply(
      [&](auto... g) { for_rows_with_partials<B, typename V::value_type>(ctx, of.rows, of.cols, sums, maps, g...); },
      gradients.g);
}

}  // namespace detail

/// Runs a program with a reduction over all rows. Groups, in any order: reads, writes; where there are any map_reads,
/// of_rows, saves, adds_to, reduce_writes. Outputs may be operands. With adds_to it takes
/// partials_workspace<B, A>(rows, cols, gradients) from the workspace; without rows the gradients are zero.
template <class B, class P, class... Group>
void reduce_map(context& ctx, P program, Group... groups) {
  const auto in = detail::group<reads>(groups...);
  const auto more = detail::group<map_reads>(groups...);
  const auto out = detail::group<writes>(groups...);
  const auto gradients = detail::group<adds_to>(groups...);
  const auto direct = detail::group<reduce_writes>(groups...);
  const detail::bound_program bound(program, detail::group<of_rows>(groups...), detail::group<saves>(groups...));
  if constexpr (std::tuple_size_v<decltype(direct.y)> != 0)
    detail::reduce_map_direct<B>(ctx, bound, in, more, out, direct);
  else if constexpr (std::tuple_size_v<decltype(gradients.g)> != 0)
    detail::reduce_map_adding<B>(ctx, bound, in, more, out, gradients);
  else
    detail::reduce_map_rows<B>(ctx, bound, in, more, out);
}

/// Runs a program with map alone over all rows: reads and writes, and adds_to where there are parameter gradients, for
/// which it takes workspace as reduce_map.
template <class B, class P, class... X, class... Y, class... T>
void map_rows(context& ctx, P program, reads<X...> in, writes<Y...> out, adds_to<T...> gradients = adds_to<>()) {
  using V = detail::write_vec<B, std::tuple<decltype(detail::sink(std::declval<Y>(), {}))...>,
                              decltype(detail::source<B>(std::declval<X>(), {}))...>;
  using A = typename V::value_type;
  const auto map_of = [=](std::size_t, int) TIGON_LAMBDA { return detail::mapping<V>(program); };
  const auto maps = detail::map_program(map_of, out, in.x);
  const detail::extents of =
      std::apply([](auto... operand) { return detail::first_extents(operand...); }, std::tuple_cat(out.y, in.x));
  if constexpr (sizeof...(T) == 0)
    map_rows<B, A>(ctx, of.rows, of.cols, no_statistic{}, maps);
  else
    std::apply([&](auto... g) { for_rows_with_partials<B, A>(ctx, of.rows, of.cols, no_statistic{}, maps, g...); },
               gradients.g);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::map_rows;
using simd::reduce_map;
}  // namespace tigon

#endif  // TIGON_ROWS_REDUCE_MAP_HPP
