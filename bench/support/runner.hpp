// Times one case: limit, warm-up, repetitions by Google Benchmark, limit again.
#ifndef TIGON_BENCH_SUPPORT_RUNNER_HPP
#define TIGON_BENCH_SUPPORT_RUNNER_HPP

#include "support/registry.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace tigon_bench {

struct run_settings {
  double budget_seconds = 0.5;   ///< timed seconds of a case, warm-up and limits not counted
  std::size_t repetitions = 10;  ///< at least
  cache_state cache = cache_state::warm;
  enum class pinning { off, on } pin = pinning::off;  ///< one-thread cases only
};

struct result {
  double ms_50, ms_20, ms_80;
  double gbytes_per_s, gflops_per_s;  ///< NaN where the case has none
  limit bound;
  double fraction;
  double memory_mb;  ///< most workspace in use plus results, NaN where the case does not say
};

/// Throws what the plan or the op throws.
result measure(const op_entry& op, const request& asked, const run_settings& settings);

/// Runs the case once and returns a digest of all its arrays. clear_blocks_first() has been called before.
std::uint64_t digest(const op_entry& op, const request& asked);

/// Bytes of the case's arrays, found out without filling or timing them. Throws what the plan or the op throws.
std::size_t footprint(const op_entry& op, const request& asked);

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_RUNNER_HPP
