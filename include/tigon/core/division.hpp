// Division of extents.
#ifndef TIGON_CORE_DIVISION_HPP
#define TIGON_CORE_DIVISION_HPP

#include <tigon/config.hpp>

#include <cstddef>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// a / b, rounded up; b > 0. It does not wrap.
constexpr TIGON_INLINE std::size_t ceil_div(std::size_t a, std::size_t b) { return a / b + (a % b != 0 ? 1 : 0); }
/// The next multiple of b.
constexpr TIGON_INLINE std::size_t round_up(std::size_t a, std::size_t b) { return ceil_div(a, b) * b; }

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_CORE_DIVISION_HPP
