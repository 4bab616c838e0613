// How far results are from what they should be, in numbers.
#ifndef TIGON_TESTS_SUPPORT_MEASURE_HPP
#define TIGON_TESTS_SUPPORT_MEASURE_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#if defined(TIGON_CONFORMANCE_BACKEND)
#include "backend_list.hpp"
#endif

namespace tigon::test {

/// By what factor the backend under test loosens every documented error: the library's own by none.
#if defined(TIGON_CONFORMANCE_BACKEND)
inline constexpr double error_scale = TIGON_CONFORMANCE_BACKEND::error_scale;
#else
inline constexpr double error_scale = 1;
#endif

struct error_measure {
  double rel_l2 = 0;   ///< |got - want| / |want|; infinite where want is exactly zero and got is not
  double max_abs = 0;  ///< largest difference
};

/// Infinite as soon as sizes, NaN or infinities do not match.
inline error_measure measure(std::span<const double> got, std::span<const double> want) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (got.size() != want.size()) return {infinity, infinity};
  double difference = 0, norm = 0, largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (got[i] == want[i] && std::isinf(want[i])) continue;
    const double d = std::abs(got[i] - want[i]);
    if (!std::isfinite(d)) return {infinity, infinity};
    difference += d * d;
    norm += want[i] * want[i];
    largest = std::max(largest, d);
  }
  return {difference == 0 ? 0 : std::sqrt(difference / norm), largest};
}

/// Distance in units in the last place, across zero; the largest number there is where only one is NaN.
template <class F>
std::uint64_t ulp_distance(F a, F b) {
  using bits = std::conditional_t<sizeof(F) == 4, std::int32_t, std::int64_t>;
  if (std::isnan(a) || std::isnan(b))
    return std::isnan(a) && std::isnan(b) ? 0 : std::numeric_limits<std::uint64_t>::max();
  const auto ordered = [](F x) -> std::int64_t {
    const bits u = std::bit_cast<bits>(x);
    return u >= 0 ? u : std::numeric_limits<bits>::min() - std::int64_t{u};
  };
  const auto p = static_cast<std::uint64_t>(ordered(a)), q = static_cast<std::uint64_t>(ordered(b));
  return ordered(a) > ordered(b) ? p - q : q - p;
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_MEASURE_HPP
