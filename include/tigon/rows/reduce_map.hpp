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
//   writes(y...)         what map returns: a vector for each output, as a pack if there are several
//   adds_to(g...)        parameter gradients. map takes, last, the sums of its column over the rows before, and returns,
//                        last, these sums with what its row adds
//   of_rows(s...)        a number for every row, from memory: first arguments of reduce, last ones of finish
//   saves(s...)          a number for every row, to memory: what save(value) returns
//   reduce_writes(y...)  outputs that need no reduction: what direct(x...) returns, stored in either pass
//
//   reduce(x...)         what is summed over the row: a vector, or a pack of several
//   finish(sum)          what map needs of the whole row, its value: any type. An array of sums where there are several
//   map(value, x...)     the outputs at one column
//
// A program may also have
//   state, again(state&, sum), reduce(state, x...)   a reduction that depends on the one before: while `again` is true
//                        the row is reduced anew; finish then takes the state first.
//                        Or, where this one makes other sums than the first, every row is reduced twice
//   skips(value)         rows that are left alone: nothing is written or added
//   prepare(x0)          the first part of a long chain of operations on the first operand, which the driver may compute a
//                        step ahead; map takes it behind the value
//
// A program without a map, whose rows are only reduced, has no writes. One without a reduction is a struct with map(x...)
// alone, run by map_rows. What depends on data in other ways is
// written with for_rows (rows/row.hpp).
#ifndef TIGON_ROWS_REDUCE_MAP_HPP
#define TIGON_ROWS_REDUCE_MAP_HPP

#include <tigon/rows/gradients.hpp>

#include <array>
#include <tuple>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// Operands of a program's map alone.
template <class... X>
struct map_reads {
  std::tuple<X...> x;
  explicit constexpr TIGON_INLINE map_reads(X... operands) : x(operands...) {}
};

/// Outputs of a program that need no reduction.
template <class... Y>
struct reduce_writes {
  std::tuple<Y...> y;
  explicit constexpr TIGON_INLINE reduce_writes(Y... outputs) : y(outputs...) {}
};

/// Parameter gradients that every row adds to.
template <class... T>
struct adds_to {
  std::tuple<parameter_gradient<T>...> g;
  explicit constexpr TIGON_INLINE adds_to(parameter_gradient<T>... gradients) : g(gradients...) {}
};

/// Numbers of every row that a program reads.
template <class... S>
struct of_rows {
  std::tuple<const S*...> p;
  explicit constexpr TIGON_INLINE of_rows(const S*... numbers) : p(numbers...) {}
};

/// Numbers of every row that a program writes.
template <class... S>
struct saves {
  std::tuple<S*...> p;
  explicit constexpr TIGON_INLINE saves(S*... numbers) : p(numbers...) {}
};

namespace detail {

// The group of this kind among the arguments of a driver, or an empty one.
template <template <class...> class Kind>
TIGON_INLINE Kind<> group() {
  return Kind<>();
}
template <template <class...> class Kind, class... X, class... Rest>
TIGON_INLINE Kind<X...> group(Kind<X...> found, Rest...) {
  return found;
}
template <template <class...> class Kind, class First, class... Rest>
TIGON_INLINE auto group(First, Rest... rest) {
  return group<Kind>(rest...);
}

// Rows and columns of a program: those of its first matrix.
struct extents {
  std::size_t rows, cols;
};
template <class T>
constexpr extents extents_of(matrix_view<T> m) {
  return {m.rows, m.cols};
}
template <class T>
constexpr extents extents_of(rows_of<T> r) {
  return {r.part.rows, r.part.cols};
}
template <class T>
constexpr extents extents_of(even_columns<T> x) {
  return {x.pairs.rows, x.pairs.cols / 2};
}
template <class First, class... Rest>
constexpr extents first_extents(First first, Rest... rest) {
  if constexpr (requires { extents_of(first); })
    return extents_of(first);
  else
    return first_extents(rest...);
}

// Of a map: those of its first output or, if that has none, of its operands.
template <class Y, class... X>
extents map_extents(Y y, const std::tuple<X...>& x) {
  if constexpr (requires { extents_of(y); })
    return extents_of(y);
  else
    return std::apply([](auto... operand) { return first_extents(operand...); }, x);
}

template <class P>
concept has_state = requires { typename P::state; };
template <class P, class V>
concept prepares = requires(const P& p, V v) { p.prepare(v); };
template <class P, class... Argument>
concept reduces = requires(const P& p, Argument... a) { p.reduce(a...); };
template <class P, class... Argument>
concept finishes = requires(const P& p, Argument... a) { p.finish(a...); };
template <class P, class... Value>
concept skips_rows = requires(const P& p, Value... v) { p.skips(v...); };

// reduce of the first X operands, behind what is known of the row; the others are rows that only map reads.
template <class P, std::size_t X, class... Known>
struct row_reduction {
  P p;
  std::tuple<Known...> known;

  template <class... V>
  TIGON_INLINE auto operator()(V... x) const {
    if constexpr (sizeof...(V) == X) {
      return std::apply(
          [&](const auto&... of_row) TIGON_LAMBDA {
            if constexpr (reduces<P, Known..., V...>)
              return p.reduce(of_row..., x...);
            else
              return p.reduce(x...);
          },
          known);
    } else {
      const std::tuple<V...> all(x...);
      return [&]<std::size_t... k>(std::index_sequence<k...>)
                 TIGON_LAMBDA { return (*this)(std::get<k>(all)...); }(std::make_index_sequence<X>{});
    }
  }
};

// map behind the value of the row, if there is one.
template <class P, class... Value>
struct row_mapping;
template <class P, class Value>
struct row_mapping<P, Value> {
  P p;
  Value value;

  template <class... V>
  TIGON_INLINE auto operator()(V... x) const {
    return as_pack(p.map(value, x...));
  }
  TIGON_INLINE bool skipped() const {
    if constexpr (skips_rows<P, Value>)
      return p.skips(value);
    else
      return false;
  }
};
template <class P>
struct row_mapping<P> {
  P p;

  template <class... V>
  TIGON_INLINE auto operator()(V... x) const {
    return as_pack(p.map(x...));
  }
};
template <class V, class P, class... Value>
TIGON_INLINE auto mapping(const P& p, const Value&... value) {
  if constexpr (prepares<P, V>)
    return staged{[p](auto x) TIGON_LAMBDA { return p.prepare(x); },
                  [=](auto prepared, auto... x) TIGON_LAMBDA { return as_pack(p.map(value..., prepared, x...)); }};
  else
    return row_mapping<P, Value...>{p, value...};
}

// A program with its numbers of every row.
template <class P, class Numbers, class Saves>
struct bound_program;
template <class P, class... N, class... S>
struct bound_program<P, of_rows<N...>, saves<S...>> {
  P p;
  of_rows<N...> numbers;
  saves<S...> to;

  bound_program(P program, of_rows<N...> from, saves<S...> output) : p(program), numbers(from), to(output) {}

  TIGON_INLINE std::tuple<N...> numbers_of(std::size_t i) const {
    return std::apply([i](auto... from) TIGON_LAMBDA { return std::tuple<N...>(from[i]...); }, numbers.p);
  }

  // The sums of row i, and the value that finish makes of them. Saves what is saved.
  template <std::size_t X>
  TIGON_INLINE auto reduction(std::size_t i) const {
    if constexpr (has_state<P>)
      return row_reduction<P, X>{p, {}};
    else
      return row_reduction<P, X, N...>{p, numbers_of(i)};
  }
  template <class Sum, class... State>
  TIGON_INLINE auto finished(std::size_t i, const Sum& sum, const State&... state) const {
    const auto value = std::apply(
        [&](const auto&... of_row) TIGON_LAMBDA {
          if constexpr (finishes<P, State..., Sum, N...>)
            return p.finish(state..., sum, of_row...);
          else
            return sum;
        },
        numbers_of(i));
    if constexpr (sizeof...(S) == 1) {
      std::get<0>(to.p)[i] = p.save(value);
    } else if constexpr (sizeof...(S) > 1) {
      const auto saved = p.save(value);
      [&]<std::size_t... k>(std::index_sequence<k...>)
          TIGON_LAMBDA { ((std::get<k>(to.p)[i] = saved[k]), ...); }(std::make_index_sequence<sizeof...(S)>{});
    }
    return value;
  }

  // The value of a row that was reduced once, to `sum`.
  template <class Row, class Sum, class... X>
  TIGON_INLINE auto value_after(const Row& row, Sum sum, reads<X...> in) const {
    if constexpr (has_state<P>) {
      typename P::state state{};
      if constexpr (std::same_as<decltype(reduced_again(row, state, in)), Sum>) {
        while (p.again(state, sum)) sum = reduced_again(row, state, in);
        return finished(row.i, sum, state);
      } else {
        (void)p.again(state, sum);
        return finished(row.i, reduced_from(row, state, in), state);
      }
    } else {
      return finished(row.i, sum);
    }
  }
  template <class Row, class State, class... X>
  TIGON_INLINE auto reduced_from(const Row& row, State state, reads<X...> in) const {
    return row.sum(in, row_reduction<P, sizeof...(X), State>{p, std::tuple<State>(state)});
  }
  // Out of line: most rows are reduced once.
  template <class Row, class State, class... X>
  TIGON_NOINLINE auto reduced_again(Row row, State state, reads<X...> in) const {
    return reduced_from(row, state, in);
  }
  template <class Row, class... X>
  TIGON_INLINE auto value_of(const Row& row, reads<X...> in) const {
    return value_after(row, row.sum(in, reduction<sizeof...(X)>(row.i)), in);
  }
};

template <class P, class... N, class... S>
bound_program(P, of_rows<N...>, saves<S...>) -> bound_program<P, of_rows<N...>, saves<S...>>;

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

// direct and reduce of the same operands.
template <class P, class Reduction>
struct direct_and_reduce {
  P p;
  Reduction reduction;

  template <class... V>
  TIGON_INLINE auto operator()(V... v) const {
    return joined(as_pack(p.direct(v...)), as_pack(reduction(v...)));
  }
};

// No map: the reduction alone, which stores what needs no reduction.
template <class B, class Bound, class... X, class... Y>
void reduce_rows(context& ctx, const Bound& bound, reads<X...> in, reduce_writes<Y...> direct) {
  const extents of = std::apply([](auto... x) { return first_extents(x...); }, in.x);
  for_rows<B, typename vec_of<B, X...>::value_type>(ctx, of.rows, of.cols, [=] TIGON_FN(auto row) {
    if constexpr (sizeof...(Y) == 0) {
      (void)bound.value_of(row, in);
    } else {
      const auto reduction = bound.template reduction<sizeof...(X)>(row.i);
      using both = direct_and_reduce<decltype(bound.p), std::remove_const_t<decltype(reduction)>>;
      const auto output = std::apply([](auto... y) TIGON_LAMBDA { return writes(y...); }, direct.y);
      (void)bound.value_after(row, row.map_sum(in, output, both{bound.p, reduction}), in);
    }
  });
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

/// Runs a program with a reduction over all rows. Groups, in any order: reads; where there are any writes, map_reads,
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
  if constexpr (std::tuple_size_v<decltype(out.y)> == 0 && std::tuple_size_v<decltype(gradients.g)> == 0)
    detail::reduce_rows<B>(ctx, bound, in, direct);
  else if constexpr (std::tuple_size_v<decltype(direct.y)> != 0)
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
  constexpr row_shape shape{
      .pass = row_pass::program,
      .matrices = detail::matrices_of<X...>,
      .vectors = (std::size_t{detail::matrix_bytes<X> == 0 && !std::is_void_v<detail::source_element<B, X>>} + ... + 0),
      .sums = sizeof...(T),
      .element_bytes = detail::narrowest({detail::matrix_bytes<Y>..., detail::matrix_bytes<X>...}),
      .lanes = V::size,
      .outputs = detail::output_rows<writes<Y...>>};
  const detail::extents of = detail::map_extents(std::get<0>(out.y), in.x);
  const auto of_columns = detail::mapping<V>(program);
  if constexpr (sizeof...(T) == 0 && plan_of<B, shape>.rows == 1) {
    for_rows<B, A>(ctx, of.rows, of.cols, [=] TIGON_FN(auto row) { row.map(in, out, of_columns); });
  } else {
    const auto map_of = [=](std::size_t, int) TIGON_LAMBDA { return of_columns; };
    const auto maps = detail::map_program(map_of, out, in.x);
    if constexpr (sizeof...(T) == 0)
      map_rows<B, A>(ctx, of.rows, of.cols, no_statistic{}, maps);
    else
      std::apply([&](auto... g) { for_rows_with_partials<B, A>(ctx, of.rows, of.cols, no_statistic{}, maps, g...); },
                 gradients.g);
  }
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::adds_to;
using simd::map_reads;
using simd::map_rows;
using simd::of_rows;
using simd::reduce_map;
using simd::reduce_writes;
using simd::saves;
}  // namespace tigon

#endif  // TIGON_ROWS_REDUCE_MAP_HPP
