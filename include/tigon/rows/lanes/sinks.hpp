// What the loops over a row write: a sink for every output.
#ifndef TIGON_ROWS_LANES_SINKS_HPP
#define TIGON_ROWS_LANES_SINKS_HPP

#include <tigon/rows/lanes/sources.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// Where a row goes. A row of a matrix may be streamed, if a vector of the stored type is aligned there; a vector that
// every row shares stays in the caches.
template <class T, bool Matrix, bool Zeros = false>
struct row_sink {
  using element_type = T;
  using of_zeros = row_sink<T, Matrix, true>;
  static constexpr std::size_t results = 1;
  T* p;
  std::size_t bytes;  // of the whole output
  /// The vectors of a step; of several results the k-th.
  template <bool Stream, std::size_t U, class R, class K, class Ignore = ignore_none>
  TIGON_INLINE void put(const R (&r)[U], K k, std::size_t j, Ignore ignore = {}) const {
    using V = std::remove_cvref_t<decltype(r[0].v[k])>;
    if constexpr (U > 1 && stores_pairs<V, T>) {
      unrolled<U / 2>([&](auto u) TIGON_LAMBDA {
        store_pair<Stream && Matrix, Zeros>(r[2 * u].v[k], r[2 * u + 1].v[k], p + j + 2 * u * V::size);
      });
    } else {
      unrolled<U>([&](auto u) TIGON_LAMBDA {
        if constexpr (Stream && Matrix)
          simd::stream(r[u].v[k], p + j + u * V::size);
        else
          simd::store(r[u].v[k], p + j + u * V::size, ignore);
      });
    }
  }
  /// Large enough to be streamed, and none of the operands.
  template <class... Begin>
  TIGON_INLINE bool streams(std::size_t stream_bytes, Begin... begin) const {
    return Matrix && bytes >= stream_bytes && ((static_cast<const void*>(p) != begin) && ... && true);
  }
  /// What is streamed at a time, in bytes.
  template <class V>
  static constexpr std::size_t width = (stores_pairs<V, T> ? 2 : 1) * V::size * sizeof(T);
  /// Elements before the first one at which a vector may be streamed.
  template <class V>
  TIGON_INLINE std::size_t head() const {
    return (width<V> - reinterpret_cast<std::uintptr_t>(p) % width<V>) % width<V> / sizeof(T);
  }
  template <class V>
  TIGON_INLINE bool aligned_after(std::size_t head) const {
    return reinterpret_cast<std::uintptr_t>(p + head) % width<V> == 0;
  }
};

template <class T>
TIGON_INLINE row_sink<T, true> sink(matrix_view<T> m, place at) {
  return {m.row(at.row) + at.column, m.rows * m.cols * sizeof(T)};
}
template <class T>
TIGON_INLINE row_sink<T, false> sink(vector_view<T> v, place at) {
  return {v.data + at.column, 0};
}

// Pairs of columns, from two results. They are streamed from the first column or not at all.
template <class T, bool Zeros = false>
struct pair_sink : row_sink<T, true> {
  using row = row_sink<T, true>;
  using of_zeros = pair_sink<T, true>;
  static constexpr std::size_t results = 2;
  template <bool Stream, std::size_t U, class R, class K, class Ignore = ignore_none>
  TIGON_INLINE void put(const R (&r)[U], K k, std::size_t j, [[maybe_unused]] Ignore ignore = {}) const {
    using V = std::remove_cvref_t<decltype(r[0].v[k])>;
    unrolled<U>([&](auto u) TIGON_LAMBDA {
      const V a = r[u].v[k], b = r[u].v[k + 1];
      T* const to = row::p + 2 * (j + u * V::size);
      if constexpr (V::size == 1) {
        simd::store(a, to), simd::store(b, to + 1);
      } else if constexpr (ignores<Ignore>) {
        const std::size_t first = std::min(2 * ignore.n, V::size), second = 2 * ignore.n - first;
        simd::store_n(zip_low(a, b), to, first);
        if (second != 0) simd::store_n(zip_high(a, b), to + V::size, second);
      } else {
        simd::store_zipped<Stream, Zeros>(a, b, to);
      }
    });
  }
  template <class V>
  TIGON_INLINE std::size_t head() const {
    return 0;
  }
  template <class V>
  TIGON_INLINE bool aligned_after(std::size_t head) const {
    return row::template aligned_after<V>(2 * head);
  }
};
template <class T>
TIGON_INLINE pair_sink<T> sink(pair_columns<T> c, place at) {
  return {{c.pairs.row(at.row) + 2 * at.column, c.pairs.rows * c.pairs.cols * sizeof(T)}};
}
template <class Output>
TIGON_INLINE auto sink(often_zero<Output> z, place at) {
  const auto whole = sink(z.output, at);
  using zeros = typename std::remove_const_t<decltype(whole)>::of_zeros;
  return zeros{whole.p, whole.bytes};
}

template <class Output>
TIGON_INLINE auto sink(cached<Output> y, place at) {
  auto to = sink(y.operand, at);
  if (y.is) to.bytes = 0;
  return to;
}
// An output of an operator's own says which word it is.
template <class Output>
  requires requires(Output y) { y.as_output(); }
TIGON_INLINE auto sink(Output y, place at) {
  return sink(y.as_output(), at);
}
template <class T>
TIGON_INLINE row_sink<T, true> sink(rows_of<T> r, place at) {
  return {r.part.row(at.row) + at.column, r.bytes};
}

}  // namespace detail
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_LANES_SINKS_HPP
