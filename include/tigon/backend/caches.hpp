// What a kernel may know of the caches of a backend's cores.
#ifndef TIGON_BACKEND_CACHES_HPP
#define TIGON_BACKEND_CACHES_HPP

#include <tigon/backend/host.hpp>
#include <tigon/core/views.hpp>

#include <cstddef>
#include <type_traits>

namespace tigon {
inline namespace TIGON_ABI {

/// Columns of a block of a row: a few rows of so many numbers stay in L1. In place, where intermediate values take the
/// place of the row itself, they stay in L2.
template <class B>
constexpr std::size_t columns_per_block(bool in_place = false) {
  return in_place ? B::row.cpu.in_place_cols : B::row.block_cols;
}

/// Prefetches elements, to be read or written, whose addresses the hardware does not predict: they are short and lie
/// apart, or are visited out of order.
template <class B, class T>
TIGON_INLINE void prefetch(vector_view<T> v) {
  constexpr int writes = std::is_const_v<T> ? 0 : 1, locality = 4 - B::row.cpu.prefetch_into;
  if constexpr (host_memory<B> && B::row.cpu.prefetch_row_bytes != 0)
    for (std::size_t j = 0; j < v.size; j += 64 / sizeof(T)) __builtin_prefetch(v.data + j, writes, locality);
}

}  // namespace TIGON_ABI
}  // namespace tigon

#endif  // TIGON_BACKEND_CACHES_HPP
