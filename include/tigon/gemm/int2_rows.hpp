// Rows of weights of two bits: packing, unpacking, and the check of what is packed.
#ifndef TIGON_GEMM_INT2_ROWS_HPP
#define TIGON_GEMM_INT2_ROWS_HPP

#include <tigon/backend/host.hpp>
#include <tigon/core/division.hpp>
#include <tigon/core/views.hpp>
#include <tigon/simd/quads.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tigon::int2 {
inline namespace TIGON_ABI {

/// f(r) for every row; a task has about 2^16 elements.
template <class B, class F>
void for_rows_of_weights(std::size_t rows, std::size_t cols, context& ctx, F f) {
  if (cols == 0) return;
  const std::size_t per_task = std::max<std::size_t>(1, (std::size_t{1} << 16) / cols);
  detail::for_host_tasks<B>(ctx, detail::ceil_div(rows, per_task), [&](std::size_t task, std::size_t) {
    const std::size_t end = std::min(rows, (task + 1) * per_task);
    for (std::size_t r = task * per_task; r < end; ++r) f(r);
  });
}

/// f(j, count) for the bytes of a row, a vector of them at a time.
template <std::size_t N, class F>
TIGON_INLINE void for_bytes(std::size_t n, F f) {
  for (std::size_t j = 0; j < n; j += 4 * N) f(j, std::min(4 * N, n - j));
}
/// Bytes at p, zeros behind the first `count`.
template <std::size_t N, class T>
TIGON_INLINE typename simd::quads<N>::bytes load_bytes(const T* p, std::size_t count) {
  typename simd::quads<N>::bytes v = {};
  if (count == 4 * N)
    std::memcpy(&v, p, 4 * N);
  else
    std::memcpy(&v, p, count);
  return v;
}
template <class V, class T>
TIGON_INLINE void store_bytes(const V& v, T* p, std::size_t count) {
  if (count == sizeof v)
    std::memcpy(p, &v, sizeof v);
  else
    std::memcpy(p, &v, count);
}

/// Row r of the packed weights, of which there are q.
template <std::size_t N>
void pack_row(matrix_view<const std::int8_t> w, std::size_t r, std::size_t q, std::uint8_t* to) {
  for_bytes<N>(w.cols, [&](std::size_t j, std::size_t count) TIGON_LAMBDA {
    typename simd::quads<N>::bytes packed = {};
    for (std::size_t s = 4; s-- > 0;) {
      packed += packed, packed += packed;
      if (s * q + r < w.rows)
        packed |= (load_bytes<N>(w.row(s * q + r) + j, count) + 1) & 3;
      else
        packed |= 1;
    }
    store_bytes(packed, to + j, count);
  });
}

/// The codes number s of a row of n bytes, as weights.
template <std::size_t N>
void unpack_row(const std::uint8_t* packed, std::size_t n, std::size_t s, std::int8_t* to) {
  using Q = simd::quads<N>;
  for_bytes<N>(n, [&](std::size_t j, std::size_t count) TIGON_LAMBDA {
    const auto shifted = (typename Q::lanes)load_bytes<N>(packed + j, count) >> static_cast<int>(2 * s);
    store_bytes(((typename Q::bytes)shifted & 3) - 1, to + j, count);
  });
}

/// Whether all are -1, 0, 1 or 2.
template <std::size_t N>
bool are_weights(matrix_view<const std::int8_t> w) {
  using Q = simd::quads<N>;
  typename Q::bytes others = {};
  for (std::size_t i = 0; i < w.rows; ++i)
    for_bytes<N>(w.cols, [&](std::size_t j, std::size_t count)
                             TIGON_LAMBDA { others |= (load_bytes<N>(w.row(i) + j, count) + 1) & 0xfc; });
  std::uint8_t all = 0;
  for (std::size_t k = 0; k < 4 * N; ++k) all |= others[k];
  return all == 0;
}

}  // namespace TIGON_ABI
}  // namespace tigon::int2

#endif  // TIGON_GEMM_INT2_ROWS_HPP
