// What this machine can do at best: short probes of its products and of its memory.
#ifndef EXAMPLE_SUPPORT_LIMITS_HPP
#define EXAMPLE_SUPPORT_LIMITS_HPP

#include <tigon/backend/select.hpp>
#include <tigon/core/executor.hpp>
#include <tigon/simd/vec.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "profile.hpp"

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace example {
namespace detail {

/// Work a second at the best of a few times of run().
template <class Run>
double best_rate(double amount, Run run) {
  double least = 1e30;
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return amount / least;
}

using probe_lanes = tigon::simd::vec<typename tigon::default_backend::engine, float>;
/// Of dependent operations: more than the latency of one.
constexpr int probe_chains = 12;
constexpr std::size_t probe_turns = 200'000;

/// Fused products and sums in registers. `one` is known at run time alone, so that none can be left out.
inline float product_chains(float one) {
  probe_lanes sum[probe_chains];
  const probe_lanes a(one), b(one);
  for (int k = 0; k < probe_chains; ++k) sum[k] = probe_lanes(static_cast<float>(k));
  for (std::size_t turn = 0; turn < probe_turns; ++turn)
#pragma GCC unroll 12
    for (int k = 0; k < probe_chains; ++k) sum[k] = fma(sum[k], a, b);
  for (int k = 1; k < probe_chains; ++k) sum[0] += sum[k];
  return sum_lanes(sum[0]);
}
constexpr double product_chains_flops = 2.0 * probe_chains * probe_lanes::size * static_cast<double>(probe_turns);

#if defined(__AVX512BF16__) && defined(__AVX512F__)
/// The same of pairs of bf16.
inline float pair_chains(float one) {
  __m512 sum[probe_chains];
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(one), _mm512_set1_ps(one));
  for (int k = 0; k < probe_chains; ++k) sum[k] = _mm512_set1_ps(static_cast<float>(k));
  for (std::size_t turn = 0; turn < probe_turns; ++turn)
#pragma GCC unroll 12
    for (int k = 0; k < probe_chains; ++k) sum[k] = _mm512_dpbf16_ps(sum[k], a, a);
  for (int k = 1; k < probe_chains; ++k) sum[0] = _mm512_add_ps(sum[0], sum[k]);
  return _mm512_reduce_add_ps(sum[0]);
}
constexpr double pair_chains_flops = 64.0 * probe_chains * static_cast<double>(probe_turns);
#endif

/// y = y + x, where the caches hold neither.
inline void add_arrays(float* y, const float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; i += probe_lanes::size)
    tigon::simd::store(
        tigon::simd::load<probe_lanes>(static_cast<const float*>(y + i)) + tigon::simd::load<probe_lanes>(x + i),
        y + i);
}

}  // namespace detail

/// The peak of products, of bf16 where the build has its instruction, and the bandwidth of memory, on so many threads.
inline machine_limits measure_limits(std::size_t threads, bool bf16) {
  tigon::thread_pool pool(threads);
  std::vector<float> kept(64 * threads);
  volatile float one = 1.0f;
  machine_limits out;
  const auto peak = [&](double flops, float (*chains)(float)) {
    return detail::best_rate(flops * static_cast<double>(threads), [&] {
      pool.run(threads, [&](std::size_t task, std::size_t) { kept[64 * task] += chains(one); });
    });
  };
  out.flops = peak(detail::product_chains_flops, detail::product_chains);
#if defined(__AVX512BF16__) && defined(__AVX512F__)
  if (bf16) out.flops = std::max(out.flops, peak(detail::pair_chains_flops, detail::pair_chains));
#else
  (void)bf16;
#endif
  constexpr std::size_t part = std::size_t{1} << 16, parts = 384;  // 96 MiB each
  std::vector<float> x(part * parts, 1.0f), y(part * parts, 1.0f);
  out.bytes = detail::best_rate(12.0 * part * parts, [&] {
    pool.run(parts, [&](std::size_t i, std::size_t) { detail::add_arrays(&y[i * part], &x[i * part], part); });
  });
  return out;
}

}  // namespace example
#endif
