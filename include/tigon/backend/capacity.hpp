// How much memory a core of a backend's chip has for tiles, and how many cores there are. In this order:
//
//   a setting             TIGON_TILE_CAPACITY_BITS, TIGON_VECTOR_CORES: one positive number each, for every backend
//   the vendor's query    static functions B::query_tile_capacity_bits(), B::query_vector_cores(); 0: not known
//   the type's constant   B::tile_capacity_bits, B::vector_cores; 0: not known
//   a sentence
//
// Kernels are cut into tiles while they compile, so a query that is constexpr decides as the others do. One that is not
// is queried when a kernel begins: a chip with less memory than the kernel was compiled for is refused, and a chip with
// more runs the same tiles. The number of cores decides into how many programs work is cut, and with it bits of
// results; cores that are not there only make programs wait.
#ifndef TIGON_BACKEND_CAPACITY_HPP
#define TIGON_BACKEND_CAPACITY_HPP

#include <tigon/backend/backend.hpp>
#include <tigon/core/error.hpp>

#include <string>
#include <type_traits>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {

inline constexpr std::size_t capacity_setting = TIGON_TILE_CAPACITY_BITS;
inline constexpr std::size_t cores_setting = TIGON_VECTOR_CORES;

template <class B>
concept queries_capacity = requires {
  { B::query_tile_capacity_bits() } -> std::convertible_to<std::size_t>;
};
template <class B>
concept queries_capacity_early =
    queries_capacity<B> && requires { typename std::bool_constant<(B::query_tile_capacity_bits(), true)>; };
template <class B>
concept queries_cores = requires {
  { B::query_vector_cores() } -> std::convertible_to<std::size_t>;
};
template <class B>
concept queries_cores_early =
    queries_cores<B> && requires { typename std::bool_constant<(B::query_vector_cores(), true)>; };

// 0: not known while compiling.
template <class B>
consteval std::size_t early_capacity() {
  if (capacity_setting != 0) return capacity_setting;
  if constexpr (queries_capacity_early<B>)
    if (B::query_tile_capacity_bits() != 0) return B::query_tile_capacity_bits();
  return B::tile_capacity_bits;
}
template <class B>
consteval std::size_t early_cores() {
  if (cores_setting != 0) return cores_setting;
  if constexpr (queries_cores_early<B>)
    if (B::query_vector_cores() != 0) return B::query_vector_cores();
  if constexpr (requires { B::vector_cores; }) return B::vector_cores;
  return 0;
}

template <class B>
consteval std::size_t known_capacity() {
  static_assert(early_capacity<B>() != 0,
                "tigon: the memory of this chip for tiles is not known: state tile_capacity_bits in the backend or a "
                "constexpr query_tile_capacity_bits(), or compile with -DTIGON_TILE_CAPACITY_BITS=<bits>");
  return early_capacity<B>();
}
template <class B>
consteval std::size_t known_cores() {
  static_assert(
      early_cores<B>() != 0,
      "tigon: the number of cores of this chip is not known: state vector_cores in the backend or a constexpr "
      "query_vector_cores(), or compile with -DTIGON_VECTOR_CORES=<number>");
  return early_cores<B>();
}

template <class B>
[[noreturn]] void chip_not_known(const char* what, const char* setting) {
  fail(error_code::state, "tigon: backend " + std::string(B::info.name) + ": " + what +
                              " of its chip is not known, its query has no answer; compile with -D" + setting);
}

}  // namespace TIGON_ABI
}  // namespace detail

/// Bits of memory that kernels of B are cut for, on one core.
template <class B>
inline constexpr std::size_t tile_capacity_of = detail::known_capacity<B>();

/// Cores that kernels of B are cut for.
template <class B>
inline constexpr std::size_t vector_cores_of = detail::known_cores<B>();

/// Bits of memory of a core of the chip that is there, queried now. Throws tigon::error (state) where nothing says so.
template <class B>
std::size_t tile_capacity_here() {
  if (detail::capacity_setting != 0) return detail::capacity_setting;
  if constexpr (detail::queries_capacity<B>)
    if (const std::size_t bits = B::query_tile_capacity_bits(); bits != 0) return bits;
  if (B::tile_capacity_bits != 0) return B::tile_capacity_bits;
  detail::chip_not_known<B>("the memory for tiles", "TIGON_TILE_CAPACITY_BITS=<bits>");
}

/// Cores of the chip that is there, queried now. Throws tigon::error (state) where nothing says so.
template <class B>
std::size_t vector_cores_here() {
  if (detail::cores_setting != 0) return detail::cores_setting;
  if constexpr (detail::queries_cores<B>)
    if (const std::size_t cores = B::query_vector_cores(); cores != 0) return cores;
  if constexpr (requires { B::vector_cores; })
    if (B::vector_cores != 0) return B::vector_cores;
  detail::chip_not_known<B>("the number of cores", "TIGON_VECTOR_CORES=<number>");
}

/// Throws tigon::error (state) where the chip that is there has less memory than kernels of B were compiled for. For a
/// driver, before a kernel writes; it costs nothing unless B's query is one of run time, and a setting is not doubted.
template <class B>
TIGON_INLINE void expect_capacity() {
  if constexpr (detail::capacity_setting == 0 && detail::queries_capacity<B> && !detail::queries_capacity_early<B>)
    if (const std::size_t bits = tile_capacity_here<B>(); bits < tile_capacity_of<B>)
      detail::fail(error_code::state, "tigon: backend " + std::string(B::info.name) +
                                          ": its kernels are compiled for " + std::to_string(tile_capacity_of<B>) +
                                          " bits of memory for tiles, and this chip has " + std::to_string(bits) +
                                          "; compile with -DTIGON_TILE_CAPACITY_BITS=" + std::to_string(bits));
}

}  // namespace tigon

#endif  // TIGON_BACKEND_CAPACITY_HPP
