// What a row program reads and writes: operands and outputs. They are data; what reads and writes them is a driver's.
#ifndef TIGON_ROWS_OPERANDS_HPP
#define TIGON_ROWS_OPERANDS_HPP

#include <tigon/core/views.hpp>

#include <cstddef>
#include <tuple>
#include <type_traits>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// Operand: the index of the column, as a number: exact below 2^24 in f32, 2^53 in f64.
struct columns_t {
  using element_type = void;
};
inline constexpr columns_t columns{};

/// Operand: the same number in every column, for example zeros for a row that is cleared.
template <class A>
struct constant {
  using element_type = void;
  A value;
  constexpr TIGON_INLINE explicit constant(A v) : value(v) {}
};

/// Operand: a vector or matrix, or the same number in every column where it is absent. One loop serves both: what is
/// absent is read from a block of that number, over and over.
template <class Operand, int Value>
struct given_or {
  Operand operand;
  constexpr TIGON_INLINE explicit given_or(Operand o) : operand(o) {}
  constexpr TIGON_INLINE operator Operand() const { return operand; }
};
template <class Operand>
constexpr TIGON_INLINE given_or<Operand, 1> or_ones(Operand o) {
  return given_or<Operand, 1>(o);
}
template <class Operand>
constexpr TIGON_INLINE given_or<Operand, 0> or_zeros(Operand o) {
  return given_or<Operand, 0>(o);
}

/// Operand of a reduction: rows that the map reads again. Where the plan says so, the reduction prefetches the next
/// row.
template <class Operand>
struct read_again {
  Operand operand;
  constexpr TIGON_INLINE explicit read_again(Operand o) : operand(o) {}
};

/// Operand or output of a map whose row is in the cache, if `is`: this worker has just read or written it. A row that
/// was just read is mapped from its end where the plan says so, and an output in the cache is not streamed past it.
template <class Operand>
struct cached {
  Operand operand;
  bool is = true;
};
template <class Operand>
cached(Operand) -> cached<Operand>;
template <class Operand>
cached(Operand, bool) -> cached<Operand>;

/// Operand: the same numbers in lanes of f64; as the first operand of a pass it makes all of the pass f64.
template <class Operand>
struct in_f64 {
  using element_type = double;
  Operand operand;
  constexpr TIGON_INLINE explicit in_f64(Operand o) : operand(o) {}
};

/// Operand: the even columns of a matrix of pairs, 0, 2, ..., or the odd ones, as columns 0, 1, ...
template <std::size_t Of, class T>
struct columns_of_pairs {
  using element_type = std::remove_const_t<T>;
  matrix_view<T> pairs;
};
template <std::size_t Of, class T>
constexpr TIGON_INLINE columns_of_pairs<Of, T> pair_column(matrix_view<T> pairs) {
  static_assert(Of < 2);
  return {pairs};
}
/// Output for two results: the first goes to the even columns, the second to the odd ones.
template <class T>
struct pair_columns {
  matrix_view<T> pairs;
};

/// Output, a matrix or pair_columns, with scattered zeros, as gradients of equal numbers are: it is rounded to bf16
/// without a branch on zeros, which would be mispredicted, for one operation more.
template <class Output>
struct often_zero {
  Output output;
};
template <class Output>
often_zero(Output) -> often_zero<Output>;

/// Some rows of a matrix of `bytes` bytes: an output, streamed past the caches as the rows of all of it are, or an
/// operand, whose next rows are prefetched as those of all of it are.
template <class T>
struct rows_of {
  using element_type = std::remove_const_t<T>;
  matrix_view<T> part;
  std::size_t bytes;
};

/// The operands of a pass over the columns, in the order in which its function takes them.
template <class... X>
struct reads {
  std::tuple<X...> x;
  explicit constexpr TIGON_INLINE reads(X... operands) : x(operands...) {}
};

/// The outputs of a map, in the order in which its function returns them: one vector, or a pack of several.
template <class... Y>
struct writes {
  std::tuple<Y...> y;
  explicit constexpr TIGON_INLINE writes(Y... outputs) : y(outputs...) {}
};

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::cached;
using simd::columns;
using simd::constant;
using simd::in_f64;
using simd::often_zero;
using simd::or_ones;
using simd::or_zeros;
using simd::pair_column;
using simd::pair_columns;
using simd::read_again;
using simd::reads;
using simd::rows_of;
using simd::writes;
}  // namespace tigon

#endif  // TIGON_ROWS_OPERANDS_HPP
