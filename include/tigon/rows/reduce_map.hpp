// Row programs: a kernel as a struct of three plain functions, and the driver that runs it over all rows.
//
//   /// rstd = rsqrt(mean x^2 + eps),   y = x rstd w
//   template <class A>
//   struct rms_norm_program {
//     A cols, eps;
//     TIGON_INLINE auto reduce(auto x) const { return x * x; }                              // summed over the row
//     TIGON_INLINE A finish(A sum) const { return math::rsqrt(sum / cols + eps); }          // once for the row
//     TIGON_INLINE A save(A rstd) const { return rstd; }                                    // kept for backward
//     TIGON_INLINE auto map(A rstd, auto x, auto w) const { return x * rstd * w; }          // every element
//   };
//   reduce_map<B>(ctx, rms_norm_program<A>{n, eps}, reads(x), map_reads(w), writes(y), saves(rstd));
//
// The words. A program computes one row; operands are data, and the driver passes their elements to it as vectors of the
// engine. How many rows are computed at a time, in which order, what is prefetched and in which pass an output is stored
// is the driver's choice (rows/schedule.hpp), and no result depends on it.
//
//   reads(x...)          operands of reduce and of map: matrices (their row i), vectors (the same for every row),
//                        or_ones(w) and or_zeros(b), which may be absent, constant(a), columns
//   map_reads(x...)      operands of map alone; it takes them behind those
//   writes(y...)         what map returns: a vector for each output, as a pack if there are several. often_zero{y} where
//                        scattered numbers are 0
//   adds_to(g...)        parameter gradients. map takes, last, the sums of its column over the rows before, and returns,
//                        last, these sums with what its row adds. Without outputs, writes(): sums of columns
//   of_rows(s...)        a number for every row, from memory: first arguments of reduce, last ones of finish
//   saves(s...)          a number for every row, to memory: what save(value) returns
//   reduce_writes(y)     an output that needs no reduction: what direct(x...) returns, stored in either pass
//   row_of_group(m, n)   operand of map: a matrix whose row i / n is read in row i, which n rows in succession share
//   kept_rows(flags)     rows whose flag is 0 are not read: their outputs are zeros, and nothing is saved. Of programs
//                        that have a map or a reduction, not both
//   rows_of_all{n, all}  where many small programs with adds_to run side by side: the rows of one, and of all
//
//   reduce(x...)         what is summed over the row: a vector, or a pack of several
//   finish(sum)          what map needs of the whole row, its value: any type. An array of sums where there are several
//   map(value, x...)     the outputs at one column
//
// A program may also have
//   state, again(state&, sum), reduce(state, x...)   a reduction that depends on the one before: while `again` is true
//                        the row is reduced again; finish then takes the state first.
//                        Or, where this one makes other sums than the first, every row is reduced twice
//   skips(value)         rows that are left alone: nothing is written or added
//   both(x...)           what direct and reduce return, in this order, where they share most of their operations
//   prepare(x0)          the first part of a long chain of operations on the first operand, which the driver may compute a
//                        step ahead; map takes it behind the value
//
// A program without a map, whose rows are only reduced, has no writes. One without a reduction is a struct with map(x...)
// alone, run by map_rows. One that is reduced below the maximum of its row is run by map_below_max (rows/below_max.hpp).
// What depends on data in other ways is written with for_rows (rows/row.hpp).
//
// A backend with a driver of its own states it as a type `rows` with the functions reduce_map(ctx, program, groups...),
// map_rows(ctx, program, reads, writes, adds_to), map_rows(ctx, program, reads, writes, kept_rows) and map_below_max, of
// which it may leave out what its operators do not call: the same structs then run there. With a type `row_loops` it has
// for_rows<A> and for_rows_with_scratch<A> too, which take the arguments of those in rows/row.hpp.
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

// Matrices that map alone reads: the reduction pulls them into the cache with its own.
template <class X>
TIGON_INLINE auto touched_matrix(X x) {
  if constexpr (matrix_bytes<X> != 0)
    return std::tuple(touched<X>(x));
  else
    return std::tuple<>();
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

// The plan of a program with an output that needs no reduction.
template <class B, class V, class T, std::size_t Sums, class Out, class... X>
inline constexpr row_plan direct_plan = plan_of<B, row_shape{.pass = row_pass::program,
                                                             .matrices = matrices_of<X...>,
                                                             .vectors = sizeof...(X) - matrices_of<X...>,
                                                             .sums = Sums,
                                                             .element_bytes = sizeof(T),
                                                             .lanes = V::size,
                                                             .reduction = reduction_kind::imperative,
                                                             .outputs = 1 + output_rows<Out>}>;

// Whether the reduction may store that output: no operand begins there, nor another output, which would be overwritten.
template <class T, class... X>
bool reduction_may_write(matrix_view<T> first, const std::tuple<X...>& others) {
  return rows_begin_lines(first) && std::apply([&](auto... x) { return !(begins_with(first, x) || ...); }, others);
}

// direct of the first X operands, and map of all.
template <std::size_t X, class Mapping>
struct direct_and_map {
  Mapping of_row;

  template <class... V>
  TIGON_INLINE auto operator()(V... v) const {
    const std::tuple<V...> all(v...);
    return joined(first(all, std::make_index_sequence<X>{}), of_row(v...));
  }
  template <class... V, std::size_t... k>
  TIGON_INLINE auto first(const std::tuple<V...>& all, std::index_sequence<k...>) const {
    return as_pack(of_row.p.direct(std::get<k>(all)...));
  }
};
// direct and reduce of the same operands.
template <class P, class Reduction>
struct direct_and_reduce {
  P p;
  Reduction reduction;

  template <class... V>
  TIGON_INLINE auto operator()(V... v) const {
    if constexpr (requires { p.both(v...); })
      return p.both(v...);
    else
      return joined(as_pack(p.direct(v...)), as_pack(reduction(v...)));
  }
};
template <class P, class Reduction>
direct_and_reduce(P, Reduction) -> direct_and_reduce<P, Reduction>;

// The sums of a row whose reduction stores what needs none.
template <class Bound, class Row, class... X, class... Y>
TIGON_INLINE auto reduced_and_written(const Bound& bound, const Row& row, reads<X...> in, writes<Y...> direct) {
  return row.map_sum(in, direct, direct_and_reduce{bound.p, bound.template reduction<sizeof...(X)>(row.i)});
}

// row.map to these outputs and to the row's partial sums.
template <class Row, class... X, class... Y, class F, std::size_t... k>
TIGON_INLINE void map_with_partials(const Row& row, const std::tuple<X...>& x, const std::tuple<Y...>& y, F f,
                                    std::index_sequence<k...>) {
  const auto operands = std::tuple_cat(x, std::make_tuple(row.partial(k)...));
  const auto outputs = std::tuple_cat(y, std::make_tuple(row.partial(k)...));
  std::apply(
      [&](auto... from) TIGON_LAMBDA {
        std::apply([&](auto... to) TIGON_LAMBDA { row.map(reads(from...), writes(to...), f); }, outputs);
      },
      operands);
}

// One row at a time. An output that needs no reduction is stored by the first pass where the plan says so.
template <class B, class Bound, class... X, class... M, class... Y, class T>
void reduce_map_direct(context& ctx, const Bound& bound, reads<X...> in, map_reads<M...> more, writes<Y...> out,
                       reduce_writes<matrix_view<T>> direct, extents of) {
  using V = vec_of<B, X...>;
  constexpr row_plan plan = direct_plan<B, V, T, 0, writes<Y...>, X..., M...>;
  const matrix_view<T> first = std::get<0>(direct.y);
  const auto operands = std::tuple_cat(in.x, more.x);
  const auto both = std::tuple_cat(direct.y, out.y);
  const auto again = std::apply([](auto... x) { return reads(reduced_first(x)...); }, in.x);
  constexpr std::index_sequence<> no_partials;
  [[maybe_unused]] const bool early = reduction_may_write(first, std::tuple_cat(operands, out.y));
  for_rows<B, typename V::value_type>(ctx, of.rows, of.cols, [=] TIGON_FN(auto row) {
    if constexpr (plan.reduce_writes) {
      if (early) {
        const auto sum = reduced_and_written(bound, row, in, writes(first));
        map_with_partials(row, operands, out.y, mapping<V>(bound.p, bound.value_after(row, sum, in)), no_partials);
        return;
      }
    }
    const auto of_row = mapping<V>(bound.p, bound.value_of(row, again));
    map_with_partials(row, operands, both, direct_and_map<sizeof...(X), std::remove_const_t<decltype(of_row)>>{of_row},
                      no_partials);
  });
}

// The same with parameter gradients.
struct extents_of_all {
  rows_of_all rows;
  std::size_t cols;
};
template <class B, class Bound, class... X, class... M, class... Y, class T, class... G>
void reduce_map_direct_adding(context& ctx, const Bound& bound, reads<X...> in, map_reads<M...> more, writes<Y...> out,
                              reduce_writes<matrix_view<T>> direct, adds_to<G...> gradients, extents_of_all of) {
  using V = vec_of<B, X...>;
  using A = typename V::value_type;
  constexpr row_plan plan = direct_plan<B, V, T, sizeof...(G), writes<Y...>, X..., M...>;
  const matrix_view<T> first = std::get<0>(direct.y);
  const auto operands = std::tuple_cat(in.x, more.x);
  const auto both = std::tuple_cat(direct.y, out.y);
  constexpr std::make_index_sequence<sizeof...(G)> partials;
  const auto run = [&](auto reduction, auto program) {
    std::apply([&](auto... g) { run_with_partials<B, A>(ctx, of.rows, of.cols, reduction, program, g...); },
               gradients.g);
  };
  if constexpr (plan.reduce_writes)
    if (reduction_may_write(first, std::tuple_cat(operands, out.y)))
      return run(imperative_reduction{}, [=] TIGON_FN(auto row) {
        const auto sum = reduced_and_written(bound, row, in, writes(first));
        map_with_partials(row, operands, out.y, mapping<V>(bound.p, bound.finished(row.i, sum)), partials);
      });
  const auto reduction = [=](std::size_t i) TIGON_LAMBDA { return bound.template reduction<sizeof...(X)>(i); };
  run(std::apply([&](auto... x) { return declared_reduction(reduction, x...); }, in.x),
      [=] TIGON_FN(auto row, auto sum) {
        const auto of_row = mapping<V>(bound.p, bound.finished(row.i, sum));
        map_with_partials(row, operands, both,
                          direct_and_map<sizeof...(X), std::remove_const_t<decltype(of_row)>>{of_row}, partials);
      });
}

// The map of a program: map_of(i, what the reduction made) is its function for row i.
template <class MapOf, class... Y, class... X>
auto map_program(MapOf map_of, writes<Y...> out, const std::tuple<X...>& operands) {
  return std::apply([&](auto... x) { return declared_map(sole_output(out), map_of, x...); }, operands);
}

// No map: the reduction alone, which stores what needs no reduction.
template <class B, class Bound, class... X, class... Y, class... F>
void reduce_rows(context& ctx, const Bound& bound, reads<X...> in, reduce_writes<Y...> direct, kept_rows<F...> kept,
                 extents of) {
  for_rows<B, typename vec_of<B, X...>::value_type>(ctx, of.rows, of.cols, [=] TIGON_FN(auto row) {
    if (!kept.keeps(row.i)) return clear_outputs(row, direct.y);
    if constexpr (sizeof...(Y) == 0) {
      (void)bound.value_of(row, in);
    } else {
      const auto output = std::apply([](auto... y) TIGON_LAMBDA { return writes(y...); }, direct.y);
      (void)bound.value_after(row, reduced_and_written(bound, row, in, output), in);
    }
  });
}

template <class B, class Bound, class... X, class... M, class... Y>
void reduce_map_rows(context& ctx, const Bound& bound, reads<X...> in, map_reads<M...> more, writes<Y...> out,
                     extents of) {
  using V = vec_of<B, X...>;
  const auto again = std::apply([](auto... x) { return reads(reduced_first(x)...); }, in.x);
  const auto value = [=] TIGON_FN(const auto& row) { return bound.value_of(row, again); };
  const auto map_of = [=](std::size_t, auto of_row) TIGON_LAMBDA { return mapping<V>(bound.p, of_row); };
  const auto maps_of = [=](std::size_t group) TIGON_LAMBDA {
    const auto shared =
        std::apply([=](auto... m) TIGON_LAMBDA { return std::make_tuple(of_group(m, group)...); }, more.x);
    return map_program(map_of, out, std::tuple_cat(in.x, shared));
  };
  std::size_t size = std::apply([&](auto... m) { return group_size(of.rows, m...); }, more.x);  // not const: nvcc
  const grouped_rows rows{of.rows, std::max<std::size_t>(size, 1)};
  map_groups<B, typename V::value_type>(ctx, rows, of.cols, value, maps_of);
}

template <class B, class Bound, class... X, class... M, class... Y, class... T>
void reduce_map_adding(context& ctx, const Bound& bound, reads<X...> in, map_reads<M...> more, writes<Y...> out,
                       adds_to<T...> gradients, rows_of_all rows, std::size_t cols) {
  using V = vec_of<B, X...>;
  const auto touched = std::apply([](auto... m) { return std::tuple_cat(touched_matrix(m)...); }, more.x);
  const auto reduction = [=](std::size_t i) TIGON_LAMBDA { return bound.template reduction<sizeof...(X)>(i); };
  const auto sums =
      std::apply([&](auto... x) { return declared_reduction(reduction, x...); }, std::tuple_cat(in.x, touched));
  const auto map_of = [=](std::size_t i, auto sum) TIGON_LAMBDA { return mapping<V>(bound.p, bound.finished(i, sum)); };
  const auto maps = map_program(map_of, out, std::tuple_cat(in.x, more.x));
  std::apply([&](auto... g) { run_with_partials<B, typename V::value_type>(ctx, rows, cols, sums, maps, g...); },
             gradients.g);
}

// By the drivers on a CPU.
template <class B, class P, class... Group>
void reduce_map_on_cpu(context& ctx, P program, Group... groups) {
  const auto in = group<reads>(groups...);
  const auto more = group<map_reads>(groups...);
  const auto out = group<writes>(groups...);
  const auto gradients = group<adds_to>(groups...);
  const auto direct = group<reduce_writes>(groups...);
  const auto kept = group<kept_rows>(groups...);
  const bound_program bound(program, group<of_rows>(groups...), group<saves>(groups...));
  const extents of = std::apply([](auto... x) { return first_extents(x...); }, in.x);
  const rows_of_all rows = rows_beside(of.rows, groups...);
  constexpr bool adds = (is_adds_to<Group> || ...);
  constexpr bool maps = std::tuple_size_v<decltype(out.y)> != 0 || adds;
  static_assert(!maps || std::tuple_size_v<decltype(kept.flags)> == 0, "tigon: a program with a map keeps all rows");
  if constexpr (!maps)
    reduce_rows<B>(ctx, bound, in, direct, kept, of);
  else if constexpr (std::tuple_size_v<decltype(direct.y)> != 0 && adds)
    reduce_map_direct_adding<B>(ctx, bound, in, more, out, direct, gradients, {rows, of.cols});
  else if constexpr (std::tuple_size_v<decltype(direct.y)> != 0)
    reduce_map_direct<B>(ctx, bound, in, more, out, direct, of);
  else if constexpr (adds || is_backward(bound, in))
    reduce_map_adding<B>(ctx, bound, in, more, out, gradients, rows, of.cols);
  else
    reduce_map_rows<B>(ctx, bound, in, more, out, of);
}

// By the drivers on a CPU.
template <class B, class P, class... X, class... Y, class... T, class... Beside>
void map_rows_on_cpu(context& ctx, P program, reads<X...> in, writes<Y...> out, adds_to<T...> gradients,
                     Beside... beside) {
  using V =
      write_vec<B, std::tuple<decltype(sink(std::declval<Y>(), {}))...>, decltype(source<B>(std::declval<X>(), {}))...>;
  using A = typename V::value_type;
  const auto of_columns = mapping<V>(program);
  const auto map_of = [=](std::size_t, int) TIGON_LAMBDA { return of_columns; };
  const auto maps = map_program(map_of, out, in.x);
  const extents of = std::apply([](auto... operand) { return first_extents(operand...); }, std::tuple_cat(out.y, in.x));
  constexpr row_shape shape = program_shape<V, no_reduction, std::remove_const_t<decltype(maps)>>(sizeof...(T));
  if constexpr (sizeof...(T) != 0)
    std::apply(
        [&](auto... g) {
          const rows_of_all rows = rows_beside(of.rows, beside...);
          run_with_partials<B, A>(ctx, rows, of.cols, no_reduction{}, maps, g...);
        },
        gradients.g);
  else if constexpr (matrices_of<X...> != 0 && plan_of<B, shape>.rows > 1)
    map_groups<B, A>(ctx, {of.rows, of.rows}, of.cols, no_reduction{}, [=](std::size_t) TIGON_LAMBDA { return maps; });
  else
    for_rows<B, A>(ctx, of.rows, of.cols, [=] TIGON_FN(auto row) { row.map(in, out, of_columns); });
}

}  // namespace detail

/// Runs a program with a reduction over all rows. Groups, in any order: reads; where there are any writes, map_reads,
/// of_rows, saves, adds_to, reduce_writes; where there are none, kept_rows. Outputs may be operands. With adds_to it
/// takes partials_workspace<B, A>(rows, cols, gradients) from the workspace, but none where no gradient has memory;
/// without rows the gradients are zero.
template <class B, class P, class... Group>
void reduce_map(context& ctx, P program, Group... groups) {
  const auto run = [&](auto wanted, auto... of) {
    if constexpr (detail::brings_driver<B>)
      B::rows::reduce_map(ctx, wanted, of...);
    else
      detail::reduce_map_on_cpu<B>(ctx, wanted, of...);
  };
  detail::with_wanted_sums(run, program, groups...);
}

/// Runs a program with map alone over all rows: reads and writes, and adds_to where there are parameter gradients, for
/// which it takes workspace as reduce_map.
template <class B, class P, class... X, class... Y, class... T, class... Beside>
void map_rows(context& ctx, P program, reads<X...> in, writes<Y...> out, adds_to<T...> gradients = adds_to<>(),
              Beside... beside) {
  if constexpr (sizeof...(T) != 0)
    if (!gradients.wanted()) {
      if constexpr (sizeof...(Y) != 0) map_rows<B>(ctx, detail::without_sums<sizeof...(T), P>{program}, in, out);
      return;
    }
  if constexpr (detail::brings_driver<B>)
    B::rows::map_rows(ctx, program, in, out, gradients, beside...);
  else
    detail::map_rows_on_cpu<B>(ctx, program, in, out, gradients, beside...);
}

/// The same of the rows that are kept.
template <class B, class P, class... X, class... Y, class F>
void map_rows(context& ctx, P program, reads<X...> in, writes<Y...> out, kept_rows<F> kept) {
  using V = detail::write_vec<B, std::tuple<decltype(detail::sink(std::declval<Y>(), {}))...>,
                              decltype(detail::source<B>(std::declval<X>(), {}))...>;
  const auto of_columns = detail::mapping<V>(program);
  const detail::extents of =
      std::apply([](auto... operand) { return detail::first_extents(operand...); }, std::tuple_cat(out.y, in.x));
  for_rows<B, typename V::value_type>(ctx, of.rows, of.cols, [=] TIGON_FN(auto row) {
    if (!kept.keeps(row.i)) return detail::clear_outputs(row, out.y);
    row.map(in, out, of_columns);
  });
}

template <class B, class P, class... X, class... Y, class F>
  requires detail::brings_driver<B>
void map_rows(context& ctx, P program, reads<X...> in, writes<Y...> out, kept_rows<F> kept) {
  B::rows::map_rows(ctx, program, in, out, kept);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::map_rows;
using simd::reduce_map;
}  // namespace tigon

#endif  // TIGON_ROWS_REDUCE_MAP_HPP
