#ifndef EXAMPLE_SUPPORT_PROFILE_TABLE_HPP
#define EXAMPLE_SUPPORT_PROFILE_TABLE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdio>

#include "limits.hpp"
#include "profile.hpp"

namespace example {

/// The mean step on so many threads: a line for every operator and pass, the longest first. Returns its seconds.
inline double print_profile_of(const profile& p, std::size_t threads, bool bf16) {
  const machine_limits limits = measure_limits(threads, bf16);
  profile_summary table(p, threads, limits);
  std::size_t steps = 0;
  for (std::size_t step = p.first_counted(); step < p.steps(); ++step) steps += p.threads(step) == threads;
  if (steps == 0) return 0;
  std::sort(table.rows.begin(), table.rows.end() - 1,
            [](const profile_row& a, const profile_row& b) { return a.seconds > b.seconds; });
  std::printf("\nprofile of %zu %s on %zu %s, after %zu to warm up: %.2f ms a step\n", steps,
              steps == 1 ? "step" : "steps", threads, threads == 1 ? "thread" : "threads", p.first_counted(),
              1e3 * table.step_seconds);
  std::printf("limits, measured now: %.0f GFLOP/s%s, %.1f GB/s\n", 1e-9 * limits.flops, bf16 ? " of bf16" : "",
              1e-9 * limits.bytes);
  std::printf("%-28s %-10s %6s %10s %9s %9s\n", "operator", "pass", "calls", "ms", "share", "of limit");
  for (const profile_row& row : table.rows) {
    const double share = 100 * row.seconds / table.step_seconds;
    if (row.pass.empty())
      std::printf("%-28s %-10s %6s %10.2f %7.1f %%\n", row.name.data(), "", "", 1e3 * row.seconds, share);
    else
      std::printf("%-28s %-10s %6.0f %10.2f %7.1f %% %9.3f\n", row.name.data(), row.pass.data(), row.calls,
                  1e3 * row.seconds, share, row.least_seconds / row.seconds);
  }
  return table.step_seconds;
}

/// The same on one thread and on all.
inline void print_profile(const profile& p, std::size_t threads, bool bf16) {
  const double one = print_profile_of(p, 1, bf16);
  if (threads == 1) return;
  const double all = print_profile_of(p, threads, bf16);
  if (one > 0 && all > 0) std::printf("\n%zu threads: %.2f times the speed of one\n", threads, one / all);
}

}  // namespace example
#endif
