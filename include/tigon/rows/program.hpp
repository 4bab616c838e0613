// A program with its operands (rows/reduce_map.hpp says what these are): the groups of arguments that a driver takes, and a
// program bound to its numbers of every row. Any driver may use them.
#ifndef TIGON_ROWS_PROGRAM_HPP
#define TIGON_ROWS_PROGRAM_HPP

#include <tigon/rows/declared.hpp>
#include <tigon/rows/partial_sums.hpp>

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

/// Operand of a map: row i / rows of a matrix for row i, which so many rows in succession share.
template <class Operand>
struct row_of_group {
  Operand operand;
  std::size_t rows;
  constexpr TIGON_INLINE row_of_group(Operand o, std::size_t shared_by) : operand(o), rows(shared_by) {}
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
  /// Whether any of them has memory.
  bool wanted() const {
    return std::apply([](const auto&... one) { return ((one.out.data != nullptr) || ...); }, g);
  }
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

/// A flag for every row. Rows whose flag is 0 are not read: their outputs are zeros, and nothing is saved.
template <class... F>
struct kept_rows {
  std::tuple<const F*...> flags;
  explicit constexpr TIGON_INLINE kept_rows(const F*... of_rows) : flags(of_rows...) {}
  TIGON_INLINE bool keeps(std::size_t i) const {
    return std::apply([i](auto... flag) TIGON_LAMBDA { return ((flag[i] != 0) && ...); }, flags);
  }
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

// The rows of a program, and of all that run beside it, if they are given.
inline rows_of_all rows_beside(std::size_t rows) { return rows; }
template <class... Rest>
TIGON_INLINE rows_of_all rows_beside(std::size_t, rows_of_all given, Rest...) {
  return given;
}
template <class First, class... Rest>
TIGON_INLINE rows_of_all rows_beside(std::size_t rows, First, Rest... rest) {
  return rows_beside(rows, rest...);
}

// Rows that share a row of an operand, the same number for all such operands; all rows, if there is none.
inline std::size_t group_size(std::size_t rows) { return rows; }
template <class Operand, class... Rest>
TIGON_INLINE std::size_t group_size(std::size_t, row_of_group<Operand> shared, Rest...) {
  return shared.rows;
}
template <class First, class... Rest>
TIGON_INLINE std::size_t group_size(std::size_t rows, First, Rest... rest) {
  return group_size(rows, rest...);
}
// The operand of a group of rows.
template <class T>
TIGON_INLINE vector_view<T> vector_of(matrix_view<T> m, std::size_t i) {
  if (m.data == nullptr) return {};
  return {m.row(i), m.cols};
}
template <class Operand, int Value>
TIGON_INLINE auto vector_of(given_or<Operand, Value> o, std::size_t i) {
  using row = decltype(vector_of(o.operand, i));
  return given_or<row, Value>(vector_of(o.operand, i));
}
template <class X>
TIGON_INLINE X of_group(X x, std::size_t) {
  return x;
}
template <class Operand>
TIGON_INLINE auto of_group(row_of_group<Operand> shared, std::size_t group) {
  return vector_of(shared.operand, group);
}

template <class Y>
TIGON_INLINE Y sole_output(writes<Y> out) {
  return std::get<0>(out.y);
}
template <class... Y>
TIGON_INLINE writes<Y...> sole_output(writes<Y...> out) {
  return out;
}

// A row of zeros in each output.
template <class Row, class T>
TIGON_INLINE void clear_output(const Row& row, matrix_view<T> y) {
  row.map(reads(constant(accumulator_t<T>(0))), writes(y), [](auto zero) TIGON_LAMBDA { return zero; });
}
template <class Row, class Output>
TIGON_INLINE void clear_output(const Row& row, often_zero<Output> y) {
  clear_output(row, y.output);
}
template <class Row, class... Y>
TIGON_INLINE void clear_outputs(const Row& row, const std::tuple<Y...>& outputs) {
  std::apply([&](auto... y) TIGON_LAMBDA { (clear_output(row, y), ...); }, outputs);
}

template <class B>
concept brings_driver = requires { typename B::rows; };
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
    return prepared_map{[p](auto x) TIGON_LAMBDA { return p.prepare(x); },
                        [=](auto prepared, auto... x)
                            TIGON_LAMBDA { return as_pack(p.map(value..., prepared, x...)); }};
  else
    return row_mapping<P, Value...>{p, value...};
}

// A program of K sums over the rows where none of its parameter gradients has memory: the sums are zeros before every
// row, and what it adds to them is dropped.
template <std::size_t K, class P>
struct without_sums : P {
  template <class... X>
  TIGON_INLINE auto map(X... x) const {
    using V = std::tuple_element_t<sizeof...(X) - 1, std::tuple<X...>>;
    const V zero(typename V::value_type(0));
    const auto all = [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      return as_pack(this->P::map(x..., (static_cast<void>(k), zero)...));
    }(std::make_index_sequence<K>{});
    constexpr std::size_t Y = pack_size<std::remove_const_t<decltype(all)>> - K;
    pack<V, Y> outputs;
    unrolled<Y>([&](auto k) TIGON_LAMBDA { outputs.v[k] = all.v[k]; });
    return outputs;
  }
};
template <class Group>
TIGON_INLINE Group without_gradients(Group group) {
  return group;
}
template <class... T>
TIGON_INLINE adds_to<> without_gradients(adds_to<T...>) {
  return adds_to<>();
}
// run(program, groups...) of a program with outputs: without sums where nobody wants them.
template <class Run, class P, class... Group>
void with_wanted_sums(Run run, P program, Group... groups) {
  constexpr std::size_t sums = std::tuple_size_v<decltype(group<adds_to>(groups...).g)>;
  if constexpr (sums != 0 && std::tuple_size_v<decltype(group<writes>(groups...).y)> != 0)
    if (!group<adds_to>(groups...).wanted()) return run(without_sums<sums, P>{program}, without_gradients(groups)...);
  run(program, groups...);
}
template <class Group>
inline constexpr bool is_adds_to = false;
template <class... T>
inline constexpr bool is_adds_to<adds_to<T...>> = true;

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

// A backward pass without parameter gradients: it reads what forward saved of each row, and reduces several matrices.
// It runs as one with gradients does, so that its map can share a loop with the reduction of later rows.
template <class P, class... N, class... S, class... X>
constexpr bool is_backward(const bound_program<P, of_rows<N...>, saves<S...>>&, const reads<X...>&) {
  return !has_state<P> && sizeof...(N) != 0 && matrices_of<X...> > 1;
}

}  // namespace detail
}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::adds_to;
using simd::kept_rows;
using simd::map_reads;
using simd::of_rows;
using simd::reduce_writes;
using simd::row_of_group;
using simd::saves;
}  // namespace tigon

#endif  // TIGON_ROWS_PROGRAM_HPP
