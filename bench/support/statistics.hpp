// Percentiles with linear interpolation between the two nearest samples, as the columns of the CSV ask for.
#ifndef TIGON_BENCH_SUPPORT_STATISTICS_HPP
#define TIGON_BENCH_SUPPORT_STATISTICS_HPP

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <vector>

namespace tigon_bench {

inline constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

inline double percentile(std::vector<double> samples, double fraction) {
  if (samples.empty()) return not_a_number;
  std::sort(samples.begin(), samples.end());
  const double at = fraction * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (at - static_cast<double>(below)) * (samples[above] - samples[below]);
}

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_STATISTICS_HPP
