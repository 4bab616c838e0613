// What the loops over a row read: a source for every operand.
#ifndef TIGON_ROWS_LANES_SOURCES_HPP
#define TIGON_ROWS_LANES_SOURCES_HPP

#include <tigon/rows/driver.hpp>
#include <tigon/rows/lanes/schedule.hpp>
#include <tigon/simd/packs.hpp>
#include <tigon/simd/vec.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <tuple>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

using rows::bound_program, rows::direct_and_map, rows::direct_and_reduce, rows::element_of, rows::extents;
using rows::first_element, rows::first_extents, rows::group, rows::has_rows_in_f64, rows::has_state, rows::prepares;
using rows::map_if_in_f64, rows::vec_of, rows::vec_of_elements;

// What a loop reads: load(j, more, ignore) is a vector at column j + more, `more` within the vectors of one unrolled
// step.
template <class T, bool Matrix>
struct row_source {
  using element_type = std::remove_const_t<T>;
  static constexpr bool has_rows = Matrix, is_vector = !Matrix;
  static constexpr std::size_t mask = ~std::size_t{0};  // columns that are looked at: all
  T* p;
  std::size_t next;  // elements to the row that is read next, where prefetching it pays; otherwise 0
  template <class V, class Ignore = ignore_none>
  TIGON_INLINE V load(std::size_t j, std::size_t more = 0, Ignore ignore = {}) const {
    return simd::load<V>(p + j + more, ignore);
  }
  TIGON_INLINE const void* begin() const { return p; }
  // Prefetches column j + More of the next row into the cache of that level, once for every cache line. Without a
  // branch: where there is no next row, it prefetches this one.
  template <std::size_t More, int Level>
  TIGON_INLINE void prefetch(std::size_t j) const {
    if constexpr (Matrix && begins_line<More>) __builtin_prefetch(p + next + j + More, 0, 4 - Level);
  }
  // Of an unrolled step, where the step begins one.
  template <std::size_t More>
  static constexpr bool begins_line = More * sizeof(T) % 64 == 0;
};

inline constexpr std::size_t most_lanes = 64, most_unroll = 4;
template <class T, int Value>
alignas(64) inline constexpr auto block_of_value = [] {
  std::array<T, most_lanes * most_unroll> block;
  block.fill(static_cast<T>(static_cast<accumulator_t<T>>(Value)));
  return block;
}();

template <class T, bool Matrix>
struct optional_source : row_source<T, Matrix> {
  using given = row_source<T, Matrix>;
  static constexpr bool has_rows = false;
  std::size_t mask;  // of a column: none of its bits where the operand is absent
  template <class V, class Ignore = ignore_none>
  TIGON_INLINE V load(std::size_t j, std::size_t more = 0, Ignore ignore = {}) const {
    static_assert(V::size <= most_lanes);
    return given::template load<V>(j & mask, more, ignore);
  }
  template <std::size_t More, int Level>
  TIGON_INLINE void prefetch(std::size_t j) const {
    given::template prefetch<More, Level>(j & mask);
  }
};

// What has no memory.
struct made_source {
  using element_type = void;
  TIGON_INLINE const void* begin() const { return nullptr; }
  template <std::size_t, int>
  TIGON_INLINE void prefetch(std::size_t) const {}
};
struct column_source : made_source {
  std::size_t first;
  TIGON_INLINE explicit column_source(std::size_t column) : first(column) {}
  template <class V, class Ignore = ignore_none>
  TIGON_INLINE V load(std::size_t j, std::size_t more = 0, Ignore = {}) const {
    return V::iota() + V(static_cast<typename V::value_type>(first + j + more));
  }
};
template <class A>
struct constant_source : made_source {
  static constexpr bool is_constant = true;
  A value;
  TIGON_INLINE explicit constant_source(A number) : value(number) {}
  template <class V, class Ignore = ignore_none>
  TIGON_INLINE V load(std::size_t, std::size_t = 0, Ignore = {}) const {
    return V(value);
  }
};

// Operand of a declared reduction, 0 to its function: rows that the map alone reads. The reduction loads a byte of
// every vector, so that the rows are in the cache when they are mapped.
template <class Operand>
struct touched {
  using element_type = void;
  Operand operand;
  constexpr TIGON_INLINE explicit touched(Operand o) : operand(o) {}
};

// A source whose next row is prefetched by reductions.
template <class Source>
struct read_again_source : Source {
  static constexpr bool is_read_again = true;
};

// A source of numbers that are widened to f64.
template <class Source>
struct f64_source : Source {
  using element_type = double;
};

// Where a worker is: its row and its first column; how many matrices it reads, which share the caches with the rows
// that come next; how many rows further down these are; whether hardware does not see them, because rows are read out
// of order.
struct place {
  std::size_t row, column, matrices = 1, ahead = 1;
  bool leads = false;
};

// Bytes of a column of an operand that has a row of its own for every row.
template <class Operand>
inline constexpr std::size_t matrix_bytes = 0;
template <class Operand>
  requires requires(Operand o) { o.operand; }
inline constexpr std::size_t matrix_bytes<Operand> = matrix_bytes<decltype(Operand::operand)>;
template <class Operand>
inline constexpr std::size_t matrix_bytes<row_of_group<Operand>> = 0;
template <class T>
inline constexpr std::size_t matrix_bytes<matrix_view<T>> = sizeof(T);
template <class T>
inline constexpr std::size_t matrix_bytes<rows_of<T>> = sizeof(T);
template <std::size_t Of, class T>
inline constexpr std::size_t matrix_bytes<columns_of_pairs<Of, T>> = sizeof(T);

// The least of some widths of elements; 0 stands for what has none.
constexpr std::size_t narrowest(std::initializer_list<std::size_t> bytes) {
  std::size_t least = 0;
  for (const std::size_t b : bytes)
    if (b != 0 && (least == 0 || b < least)) least = b;
  return least;
}

// Rows that an output consists of, and the bytes of their elements. Whatever is no row of a matrix counts as two.
template <class Out>
inline constexpr std::size_t output_rows = matrix_bytes<Out> != 0 ? 1 : 2;
template <class Out>
inline constexpr std::size_t output_bytes = matrix_bytes<Out>;
template <class... Y>
inline constexpr std::size_t output_rows<writes<Y...>> = (output_rows<Y> + ... + 0);
template <class... Y>
inline constexpr std::size_t output_bytes<writes<Y...>> = narrowest({matrix_bytes<Y>...});

template <class... X>
inline constexpr std::size_t matrices_of = ((matrix_bytes<X> != 0) + ... + 0);

template <class B, class T>
TIGON_INLINE row_source<T, true> source(rows_of<T> r, place at) {
  constexpr std::size_t row_bytes = B::row.cpu.prefetch_row_bytes;
  const matrix_view<T> m = r.part;
  const bool early = row_bytes != 0 && at.row + at.ahead < m.rows && at.matrices * m.cols * sizeof(T) <= row_bytes &&
                     r.bytes >= B::row.stream_bytes;
  return {m.row(at.row) + at.column, early ? at.ahead * m.row_stride : 0};
}
template <class B, class T>
TIGON_INLINE row_source<T, true> source(matrix_view<T> m, place at) {
  return source<B>(rows_of<T>{m, m.rows * m.cols * sizeof(T)}, at);
}
template <class B, class T>
TIGON_INLINE row_source<T, false> source(vector_view<T> v, place at) {
  return {v.data + at.column, 0};
}
template <class B, class A>
TIGON_INLINE constant_source<A> source(constant<A> c, place) {
  return constant_source<A>(c.value);
}
template <class B, class Operand, int Value>
TIGON_INLINE auto source(given_or<Operand, Value> o, place at) {
  using T = std::remove_pointer_t<decltype(source<B>(o.operand, at).p)>;
  using result = optional_source<T, matrix_bytes<Operand> != 0>;
  if (o.operand.data == nullptr) return result{{block_of_value<std::remove_const_t<T>, Value>.data(), 0}, 0};
  const auto given = source<B>(o.operand, at);
  return result{{given.p, given.next}, given.mask};
}
// Loads a byte of every vector: hardware prefetchers see the same stream as if all of it was loaded.
template <class Source>
struct touched_source : Source {
  using element_type = void;
  static constexpr bool has_rows = false, is_vector = false;
  template <class V, class Ignore = ignore_none>
  TIGON_INLINE V load(std::size_t j, std::size_t more = 0, Ignore = {}) const {
    if constexpr (V::size > 1 && !ignores<Ignore>)
      (void)*reinterpret_cast<const volatile unsigned char*>(this->p + (j & this->mask) + more);
    return V(typename V::value_type(0));
  }
  TIGON_INLINE const void* begin() const { return nullptr; }
};
template <class B, class Operand>
TIGON_INLINE auto source(touched<Operand> n, place at) {
  const auto given = source<B>(n.operand, at);
  using T = std::remove_pointer_t<decltype(given.p)>;
  if constexpr (!plan_operand(B::row.cpu).reduce_brings_operands)
    return constant_source<accumulator_t<std::remove_const_t<T>>>(0);
  else
    return touched_source<std::remove_const_t<decltype(given)>>{given};
}
template <class B, class Operand>
TIGON_INLINE auto source(read_again<Operand> o, place at) {
  constexpr operand_plan plan = plan_operand(B::row.cpu);
  if constexpr (!plan.reduce_brings_operands) {
    return source<B>(o.operand, at);
  } else {
    at.matrices *= plan.rows_until_mapped;
    const auto given = source<B>(o.operand, at);
    return read_again_source<std::remove_const_t<decltype(given)>>{given};
  }
}
template <class B, class Operand>
TIGON_INLINE auto source(cached<Operand> o, place at) {
  return source<B>(o.operand, at);
}
// The row of an operand that some rows in succession share.
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
template <class B, class Operand>
TIGON_INLINE auto source(row_of_group<Operand> shared, place at) {
  return source<B>(vector_of(shared.operand, at.row / shared.rows), at);
}
template <class B, class Operand>
TIGON_INLINE auto source(in_f64<Operand> o, place at) {
  const auto given = source<B>(o.operand, at);
  return f64_source<std::remove_const_t<decltype(given)>>{given};
}
// Whether the row of an operand was just read.
template <class Operand>
constexpr TIGON_INLINE bool was_read(const Operand& o) {
  if constexpr (requires { o.is; })
    return o.is;
  else
    return false;
}
// An operand of an operator's own loads itself.
template <class B, class Operand>
  requires requires(Operand x) { x.source(0, 0); }
TIGON_INLINE auto source(Operand x, place at) {
  return x.source(at.row, at.column);
}
template <class B>
TIGON_INLINE column_source source(columns_t, place at) {
  return column_source(at.column);
}

template <class V>
TIGON_INLINE V larger(V a, V b) {
  return max(a, b);
}

// Vector loads of f32 may read what is stored as another type; lanes lie in the order of memory.
#if defined(__x86_64__) || defined(__i386__)
inline constexpr bool loads_any_type = true;
#else
inline constexpr bool loads_any_type = false;
#endif

template <class T, bool Odd>
struct pair_source {
  using element_type = std::remove_const_t<T>;
  const T* p;
  std::size_t next;  // as that of a row_source
  template <class V, class Ignore = ignore_none>
  TIGON_INLINE V load(std::size_t j, std::size_t more = 0, [[maybe_unused]] Ignore ignore = {}) const {
    const T* const from = p + 2 * (j + more);
    if constexpr (V::size == 1) {
      return simd::load<V>(from + Odd);
    } else if constexpr (ignores<Ignore>) {
      const std::size_t first = std::min(2 * ignore.n, V::size), second = 2 * ignore.n - first;
      const V low = simd::load_n<V>(from, first);
      return half(low, second == 0 ? low : simd::load_n<V>(from + V::size, second));
    } else if constexpr (pair_a_lane<V>) {
      return of_lane(simd::load<V>(reinterpret_cast<const float*>(from)));
    } else {
      return half(simd::load<V>(from), simd::load<V>(from + V::size));
    }
  }
  template <class V>
  static TIGON_INLINE V half(V a, V b) {
    return Odd ? odd_lanes(a, b) : even_lanes(a, b);
  }
  // A pair of bf16 in a lane of f32 bits: the odd one is its upper half, the even one its lower.
  template <class V>
  static constexpr bool pair_a_lane =
      loads_any_type && std::same_as<element_type, bfloat16> && std::same_as<typename V::value_type, float>;
  template <class V>
  static TIGON_INLINE V of_lane(V pair) {
    return Odd ? bit_and(pair, V(std::bit_cast<float>(0xffff0000u))) : pair.template shl<16>();
  }
  TIGON_INLINE const void* begin() const { return p; }
  // Pairs of a vector of 32 bits and more take two cache lines: the odd source prefetches every second.
  template <std::size_t More, int Level>
  TIGON_INLINE void prefetch(std::size_t j) const {
    constexpr std::size_t lines = sizeof(T) > 2 ? 2 : 1, column = 2 * More + (Odd ? 64 / sizeof(T) : 0);
    if constexpr ((!Odd || lines > 1) && 2 * More * sizeof(T) % (64 * lines) == 0)
      __builtin_prefetch(p + next + 2 * j + column, 0, 4 - Level);
  }
};
template <class B, std::size_t Of, class T>
TIGON_INLINE pair_source<T, Of == 1> source(columns_of_pairs<Of, T> c, place at) {
  const auto whole = source<B>(c.pairs, {at.row, 2 * at.column, at.matrices, at.ahead, at.leads});
  return {whole.p, whole.next};
}

}  // namespace detail
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_LANES_SOURCES_HPP
