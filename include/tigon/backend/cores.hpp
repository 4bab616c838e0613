// What is known of the CPU cores that kernels are written for: how rows are scheduled, and what division costs.
// Measured: docs/lab/findings.md.
#ifndef TIGON_BACKEND_CORES_HPP
#define TIGON_BACKEND_CORES_HPP

#include <tigon/config.hpp>

#include <cstddef>
#include <string_view>

#if TIGON_CORE_NUMBER(TIGON_CORE) == 0
static_assert(false, "tigon: TIGON_CORE is " TIGON_STRING(TIGON_CORE) "; expected intel, zen4, zen5 or other");
#undef TIGON_CORE
#define TIGON_CORE other
#endif

namespace tigon {

/// In which order rows that are reduced before they are mapped pass through the caches.
enum class row_order {
  reduce_then_map,  ///< reduce a cache-full of rows, then map them, a few at a time
  interleaved,      ///< reduce and map a few rows; both passes prefetch the next ones
  lookahead,        ///< map row i while row i + group is reduced
};

/// A CPU core: the order of passes that is fastest there, and how many bytes and columns its caches hold.
struct core {
  std::string_view name;
  row_order order = row_order::reduce_then_map;
  int prefetch_into = 1;                     ///< cache that the next row is prefetched into: 1 or 2
  std::size_t prefetch_row_bytes = 1 << 18;  ///< widest rows that are prefetched while others are computed; 0: none
  std::size_t reduced_bytes = 1 << 18;       ///< reduce_then_map: bytes that are reduced before they are mapped
  std::size_t group_elements = std::size_t{1} << 15;  ///< elements of the rows whose columns are mapped block by block
  std::size_t in_place_cols = 32768;                  ///< columns that softmax takes at a time in place
  bool slow_division = false;  ///< an estimate and a step on its remainder take less time than a division
  friend constexpr bool operator==(core, core) = default;
};

namespace cores {
inline constexpr core other{.name = "other"};
inline constexpr core zen5{.name = "zen5"};
inline constexpr core zen4{.name = "zen4", .order = row_order::interleaved, .prefetch_into = 2};
inline constexpr core intel{.name = "intel",
                            .order = row_order::lookahead,
                            .prefetch_into = 2,
                            .group_elements = std::size_t{1} << 14,
                            .in_place_cols = 4096,
                            .slow_division = true};
}  // namespace cores

inline namespace TIGON_ABI {
/// The core that this translation unit is compiled for.
inline constexpr core this_core = cores::TIGON_CORE;
}  // namespace TIGON_ABI

}  // namespace tigon

#endif  // TIGON_BACKEND_CORES_HPP
