// What a driver of row programs needs, on any device: the groups among its arguments, and the extents, types and
// functions of a program. An operator needs none of it.
#ifndef TIGON_ROWS_DRIVER_HPP
#define TIGON_ROWS_DRIVER_HPP

#include <tigon/core/context.hpp>
#include <tigon/rows/program.hpp>
#include <tigon/simd/packs.hpp>

#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tigon {
namespace simd {
inline namespace TIGON_ABI {
namespace detail {

/// The driver of backends that state none: rows on the lanes of a CPU (rows/lanes/programs.hpp).
template <class B>
struct rows_on_lanes {
  template <class P, class... Group>
  static void reduce_map(context& ctx, P program, Group... groups);
  template <class P, class... X, class... Y, class... Group>
  static void map_rows(context& ctx, P program, reads<X...> in, writes<Y...> out, Group... groups);
};

}  // namespace detail
}  // namespace TIGON_ABI
}  // namespace simd

namespace rows {
inline namespace TIGON_ABI {

using simd::adds_to, simd::cached, simd::columns_of_pairs, simd::constant, simd::given_or, simd::in_f64;
using simd::as_pack, simd::joined, simd::pack, simd::pack_size, simd::unpacked, simd::unrolled;
using simd::map_reads, simd::of_rows, simd::read_again, simd::reads, simd::rows_of, simd::saves, simd::writes;

// Drivers.

template <class B>
struct driver_of_backend {
  using type = simd::detail::rows_on_lanes<B>;
};
template <class B>
  requires requires { typename B::rows; }
struct driver_of_backend<B> {
  using type = typename B::rows;
};
/// The driver that runs the rows of a backend: its type `rows`, or that of the CPU.
template <class B>
using driver_of = typename driver_of_backend<B>::type;

/// The functions of a driver.
enum class call { reduce_map, map_rows };

/// A driver of row programs that takes such a call, of a program and its groups of operands: a type with static
/// functions of these names, those that its operators call.
template <class D, call Call, class P, class... Group>
concept row_driver =
    (Call == call::reduce_map && requires(context& ctx, P p, Group... of) { D::reduce_map(ctx, p, of...); }) ||
    (Call == call::map_rows && requires(context& ctx, P p, Group... of) { D::map_rows(ctx, p, of...); });

/// A backend whose driver also runs kernels that are written row by row: it has for_rows<A> with the arguments of that
/// in rows/row.hpp which takes a row_loop, and says so by a type `row_loops`.
template <class B>
concept loops_over_rows = requires { typename B::rows::row_loops; };

/// A backend whose driver also runs such kernels with sums over the rows: it has the for_rows<A> with adds_to, and says
/// so by a type `row_sums`.
template <class B>
concept sums_over_rows = requires { typename B::rows::row_sums; };

/// A backend whose driver has partial rows of its own: partials_workspace<A>(rows, cols, gradients).
template <class B>
concept sums_programs = requires { B::rows::template partials_workspace<float>(1, 1, 1); };

// Arguments.

/// The group of this kind among the arguments of a driver, or an empty one.
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

/// Rows and columns of a program: those of its first matrix.
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
template <std::size_t Of, class T>
constexpr extents extents_of(columns_of_pairs<Of, T> x) {
  return {x.pairs.rows, x.pairs.cols / 2};
}
template <class First, class... Rest>
constexpr extents first_extents(First first, Rest... rest) {
  if constexpr (requires { extents_of(first); })
    return extents_of(first);
  else
    return first_extents(rest...);
}

/// The type of an operand's elements; void: it has none.
template <class Operand>
struct element_of {
  using type = typename Operand::element_type;
};
template <class Operand>
  requires(
      !requires { typename Operand::element_type; } && requires(Operand o) { o.operand; })
struct element_of<Operand> : element_of<decltype(Operand::operand)> {};
template <class T>
struct element_of<matrix_view<T>> {
  using type = std::remove_const_t<T>;
};
template <class T>
struct element_of<vector_view<T>> : element_of<matrix_view<T>> {};

template <class... T>
struct first_element;
template <class T, class... Rest>
struct first_element<T, Rest...> {
  using type = T;
};
template <class... Rest>
struct first_element<void, Rest...> : first_element<Rest...> {};

/// The vector of a loop over operands: lanes of B's engine, in the accumulator type of the first operand that has
/// elements.
template <class B, class... Element>
using vec_of_elements = simd::vec<typename B::engine, accumulator_t<typename first_element<Element...>::type>>;
template <class B, class... Operands>
using vec_of = vec_of_elements<B, typename element_of<Operands>::type...>;

// Programs.

template <class P>
concept has_state = requires { typename P::state; };
template <class P, class V>
concept prepares = requires(const P& p, V v) { p.prepare(v); };
template <class P, class... Argument>
concept reduces = requires(const P& p, Argument... a) { p.reduce(a...); };
template <class P, class... Argument>
concept finishes = requires(const P& p, Argument... a) { p.finish(a...); };
/// A program with rows that another program computes, in f64.
template <class P, class... Value>
concept has_rows_in_f64 = requires(const P& p, Value... v) { p.in_f64(v...); };

/// f(the first X of v...).
template <std::size_t X, class F, class... V>
TIGON_INLINE auto with_first(const F& f, V... v) {
  const std::tuple<V...> all(v...);
  return [&]<std::size_t... k>(std::index_sequence<k...>)
             TIGON_LAMBDA { return f(std::get<k>(all)...); }(std::make_index_sequence<X>{});
}
/// reduce of the first X operands, behind what is known of the row; the others are rows that only map reads.
template <class P, std::size_t X, class... Known>
struct row_reduction {
  P p;
  std::tuple<Known...> known;
  template <class... V>
  TIGON_INLINE auto operator()(V... x) const {
    if constexpr (sizeof...(V) == X) {
      return unpacked(
          [&](const auto&... of_row) TIGON_LAMBDA {
            if constexpr (reduces<P, Known..., V...>)
              return p.reduce(of_row..., x...);
            else
              return p.reduce(x...);
          },
          known);
    } else {
      return with_first<X>(*this, x...);
    }
  }
};

/// direct of the first X operands, and map of all.
template <std::size_t X, class Mapping>
struct direct_and_map {
  Mapping of_row;
  template <class... V>
  TIGON_INLINE auto operator()(V... v) const {
    const auto direct = [&](auto... x) TIGON_LAMBDA { return as_pack(of_row.p.direct(x...)); };
    return joined(with_first<X>(direct, v...), of_row(v...));
  }
};
/// direct and reduce of the same operands. direct alone where it returns a pack, which ends with what reduce returns.
template <class P, class Reduction>
struct direct_and_reduce {
  P p;
  Reduction reduction;
  TIGON_INLINE direct_and_reduce(P program, Reduction of) : p(program), reduction(of) {}
  template <class... V>
  TIGON_INLINE auto operator()(V... v) const {
    const auto direct = as_pack(p.direct(v...));
    if constexpr (pack_size<std::remove_const_t<decltype(direct)>> > 1)
      return direct;
    else
      return joined(direct, as_pack(reduction(v...)));
  }
};

/// A program with its numbers of every row.
template <class P, class Numbers, class Saves>
struct bound_program;
template <class P, class... N, class... S>
struct bound_program<P, of_rows<N...>, saves<S...>> {
  P p;
  of_rows<N...> numbers;
  saves<S...> to;
  TIGON_INLINE bound_program(P program, of_rows<N...> from, saves<S...> output)
      : p(program), numbers(from), to(output) {}

  TIGON_INLINE std::tuple<N...> numbers_of(std::size_t i) const {
    return unpacked([i](auto... from) TIGON_LAMBDA { return std::tuple<N...>(from[i]...); }, numbers.p);
  }

  // The sums of row i; the value that finish makes of them; what is saved of it; both.
  template <std::size_t X>
  TIGON_INLINE auto reduction(std::size_t i) const {
    if constexpr (has_state<P>)
      return row_reduction<P, X>{p, {}};
    else
      return row_reduction<P, X, N...>{p, numbers_of(i)};
  }
  template <class Sum, class... State>
  TIGON_INLINE auto made(std::size_t i, const Sum& sum, const State&... state) const {
    return unpacked(
        [&](const auto&... of_row) TIGON_LAMBDA {
          if constexpr (finishes<P, State..., Sum, N...>)
            return p.finish(state..., sum, of_row...);
          else
            return sum;
        },
        numbers_of(i));
  }
  template <class Value>
  TIGON_INLINE void keep(std::size_t i, const Value& value) const {
    if constexpr (sizeof...(S) == 1) {
      std::get<0>(to.p)[i] = p.save(value);
    } else if constexpr (sizeof...(S) > 1) {
      const auto saved = p.save(value);
      [&]<std::size_t... k>(std::index_sequence<k...>)
          TIGON_LAMBDA { ((std::get<k>(to.p)[i] = saved[k]), ...); }(std::make_index_sequence<sizeof...(S)>{});
    }
  }
  template <class Sum, class... State>
  TIGON_INLINE auto finished(std::size_t i, const Sum& sum, const State&... state) const {
    const auto value = made(i, sum, state...);
    keep(i, value);
    return value;
  }
  // The same, where one worker of the row saves.
  template <class Row, class Sum, class... State>
  TIGON_INLINE auto finished_by(const Row& row, const Sum& sum, const State&... state) const {
    return row.first() ? finished(row.i, sum, state...) : made(row.i, sum, state...);
  }

  // The value of a row that was reduced once, to `sum`; from this state on.
  template <class Row, class Sum, class... X>
  TIGON_INLINE auto value_after(const Row& row, Sum sum, reads<X...> in) const {
    if constexpr (has_state<P>)
      return value_after(row, sum, in, typename P::state{});
    else
      return finished_by(row, sum);
  }
  template <class Row, class Sum, class... X, class State>
  TIGON_INLINE auto value_after(const Row& row, Sum sum, reads<X...> in, State state) const {
    if constexpr (std::same_as<decltype(reduced_again(row, state, in)), Sum>) {
      while (p.again(state, sum)) sum = reduced_again(row, state, in);
      return finished_by(row, sum, state);
    } else {
      (void)p.again(state, sum);
      return finished_by(row, reduced_from(row, state, in), state);
    }
  }
  template <class Row, class State, class... X>
  TIGON_INLINE auto reduced_from(const Row& row, State state, reads<X...> in) const {
    return row.sum(in, row_reduction<P, sizeof...(X), State>{p, std::tuple<State>(state)});
  }
  // Out of line: most rows are reduced once.
  template <class Row, class State, class... X>
  TIGON_RARE auto reduced_again(Row row, State state, reads<X...> in) const {
    return reduced_from(row, state, in);
  }
  template <class Row, class... X>
  TIGON_INLINE auto value_of(const Row& row, reads<X...> in) const {
    return value_after(row, row.sum(in, reduction<sizeof...(X)>(row.i)), in);
  }
};

template <class P, class... N, class... S>
bound_program(P, of_rows<N...>, saves<S...>) -> bound_program<P, of_rows<N...>, saves<S...>>;

/// A map in two parts, rest(prepare(v), v, x..., sums...), where v is the first operand: `prepare` may be computed a
/// step ahead of `rest`.
template <class Prepare, class Rest>
struct prepared_map {
  Prepare prepare;
  Rest rest;
  template <class V, class... X>
  TIGON_INLINE auto operator()(V v, X... x) const {
    return rest(prepare(v), v, x...);
  }
};
template <class Prepare, class Rest>
prepared_map(Prepare, Rest) -> prepared_map<Prepare, Rest>;

/// map behind the value of the row, if there is one.
template <class P, class... Value>
struct row_mapping {
  P p;
  std::tuple<Value...> value;
  template <class... V>
  TIGON_INLINE auto operator()(V... x) const {
    return unpacked([&](const auto&... of_row) TIGON_LAMBDA { return as_pack(p.map(of_row..., x...)); }, value);
  }
  static constexpr bool in_f64 = has_rows_in_f64<P, Value...>;
  TIGON_INLINE bool skipped() const {
    if constexpr (in_f64)
      return p.in_f64(std::get<0>(value)).has_value();
    else
      return false;
  }
};
/// The map of a program as a function of the operands, for a row with this value. Where skipped(), it is not called.
template <class V, class P, class... Value>
TIGON_INLINE auto mapping(const P& p, const Value&... value) {
  if constexpr (prepares<P, V>)
    return prepared_map{[p](auto x) TIGON_LAMBDA { return p.prepare(x); },
                        [=](auto prepared, auto... x)
                            TIGON_LAMBDA { return as_pack(p.map(value..., prepared, x...)); }};
  else
    return row_mapping<P, Value...>{p, {value...}};
}
/// row.map of operands and sums to outputs and the same sums. Not in a function for each tuple: g++ would compile the
/// body of the map in each of them.
template <class Row, class... X, class... Y, class... Sum, class F>
TIGON_INLINE void map_and_add(const Row& row, const std::tuple<X...>& x, const std::tuple<Y...>& y,
                              const std::tuple<Sum...>& sums, F f) {
  const auto from = unpacked([](auto... of) TIGON_LAMBDA { return reads(of...); }, joined(x, sums));
  const auto to = unpacked([](auto... of) TIGON_LAMBDA { return writes(of...); }, joined(y, sums));
  row.map(from, to, f);
}
/// The same with K partial sums of the row.
template <std::size_t K, class Row, class X, class Y, class F>
TIGON_INLINE void map_with_partials(const Row& row, const X& x, const Y& y, F f) {
  const auto sums = [&]<std::size_t... k>(std::index_sequence<k...>)
                        TIGON_LAMBDA { return std::tuple(row.partial(k)...); }(std::make_index_sequence<K>{});
  map_and_add(row, x, y, sums, f);
}
/// A row of zeros in each output.
template <class Row, class... Y>
TIGON_INLINE void clear_outputs(const Row& row, const std::tuple<Y...>& outputs) {
  const auto zeros = [](auto zero) { return zero; };
  const auto clear = [&](auto y) TIGON_LAMBDA { row.map(reads(constant(0.0f)), writes(y), zeros); };
  unpacked([&](auto... y) TIGON_LAMBDA { (clear(y), ...); }, outputs);
}
/// A row that `program` computes, in f64: reduced and mapped, and its numbers saved. Out of line: there are few.
template <class P, class Row, class Bound, class... X, class... M, class... Y, class... Sum>
TIGON_NOINLINE void map_in_f64(P program, Row row, const Bound& bound, reads<X...> in, map_reads<M...> more,
                               writes<Y...> out, Sum... sums) {
  const bound_program wide(program, bound.numbers, bound.to);
  const auto widened =
      unpacked([](auto first, auto... rest) TIGON_LAMBDA { return reads(in_f64(first), rest...); }, in.x);
  const auto value = wide.value_of(row, widened);
  const auto map = [&](auto... x) TIGON_LAMBDA { return as_pack(program.map(value, x...)); };
  map_and_add(row, joined(widened.x, more.x), out.y, std::tuple(sums...), map);
}
/// The same for a row with this value, if its program says so; map is not called for such a row. Nothing of it may have
/// been written or added before.
template <class Row, class Bound, class Value, class... Group>
TIGON_INLINE void map_if_in_f64(const Row& row, const Bound& bound, const Value& value, Group... of) {
  if constexpr (has_rows_in_f64<decltype(bound.p), Value>)
    if (const auto program = bound.p.in_f64(value)) map_in_f64(*program, row, bound, of...);
}

}  // namespace TIGON_ABI
}  // namespace rows
}  // namespace tigon

#endif  // TIGON_ROWS_DRIVER_HPP
