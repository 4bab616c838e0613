// What the machine can do at best, measured in the same process just before and just after the case it is held against:
// streaming the same number of arrays of the same size, the FMA peak, the peaks of the dot instructions of bf16 and of
// 8-bit numbers.
#ifndef TIGON_BENCH_SUPPORT_LIMITS_HPP
#define TIGON_BENCH_SUPPORT_LIMITS_HPP

#include <compare>
#include <cstddef>
#include <string>

namespace tigon_bench {

enum class limit_bound { stream, fma_f32, fma_f64, bf16_dot, int8_dot };

/// A stream reads `reads` arrays and writes `writes` arrays of `array_bytes` each; in place, the written arrays are
/// the first ones read. Row-wise ops touch every byte at least once, so this is the least that they can take.
struct limit_request {
  limit_bound bound = limit_bound::stream;
  int reads = 1;
  int writes = 1;
  std::size_t array_bytes = 0;
  bool in_place = false;
  double flops = 0;  ///< for the peaks

  auto operator<=>(const limit_request&) const = default;

  static limit_request stream(int reads, int writes, std::size_t array_bytes, bool in_place = false) {
    return {limit_bound::stream, reads, writes, array_bytes, in_place, 0};
  }
  static limit_request peak(limit_bound bound, double flops) { return {bound, 0, 0, 0, false, flops}; }
};

struct limit {
  double milliseconds = 0;
  std::string kind;  ///< "stream_2r1w_nt", "stream_1r1w_in_place", "fma_f32_peak", ...
};

/// Cold: every timed call finds its data outside the caches.
enum class cache_state { warm, cold };

/// Median of repeated runs, ordinary or non-temporal stores, whichever is faster. A value measured in the last
/// `max_age_seconds` for the same request, threads and cache state is reused.
limit measure_limit(const limit_request& request, std::size_t threads, cache_state cache, double max_age_seconds);

/// GFLOP/s of a peak on that many threads, measured now. bf16_dot is 0 where the build's flags lack AVX512_BF16,
/// int8_dot where they have no VNNI.
double measure_peak(limit_bound bound, std::size_t threads);

/// Whether this build's flags promise the bf16 dot instruction.
bool has_bf16_dot();

/// Writes at least four times the last-level cache.
void flush_caches();

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_LIMITS_HPP
