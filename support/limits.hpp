// What this machine can do at best: short probes of its products and of its memory.
#ifndef EXAMPLE_SUPPORT_LIMITS_HPP
#define EXAMPLE_SUPPORT_LIMITS_HPP

#include <tigon/core/executor.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "../bench/support/peaks.hpp"
#include "profile.hpp"

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

}  // namespace detail

/// The peak of products, of bf16 where the build has an instruction for them or tiles, and the bandwidth of memory, on
/// so many threads.
inline machine_limits measure_limits(std::size_t threads, bool bf16) {
  tigon::thread_pool pool(threads);
  machine_limits out;
  const auto peak = [&](double flops, void (*chains)(std::size_t)) {
    return detail::best_rate(flops * static_cast<double>(threads),
                             [&] { pool.run(threads, [&](std::size_t task, std::size_t) { chains(task); }); });
  };
  out.flops = peak(tigon_bench::fma_chains_flops<float>, tigon_bench::fma_chains<float>);
#if defined(TIGON_BENCH_DOT)
  if (bf16) out.flops = std::max(out.flops, peak(tigon_bench::dot_chains_flops, tigon_bench::dot_chains));
#else
  (void)bf16;
#endif
#if TIGON_FLAGS_tiles
  if (bf16 && tigon_bench::has_tiles())
    out.flops = std::max(out.flops, peak(tigon_bench::tile_chains_flops<false>, tigon_bench::tile_chains<false>));
#endif
  // y = y + x, 96 MiB each, where the caches hold neither.
  constexpr std::size_t part = std::size_t{1} << 18, parts = 384;
  struct alignas(64) line {
    std::byte bytes[64];
  };
  std::vector<line> x(part * parts / sizeof(line), line{{std::byte{1}}}), y = x;
  tigon_bench::pointers p{};
  p[0] = y[0].bytes, p[1] = x[0].bytes, p[tigon_bench::most_reads] = p[0];
  out.bytes = detail::best_rate(3.0 * part * parts, [&] {
    pool.run(parts,
             [&](std::size_t i, std::size_t) { tigon_bench::stream_range<2, 1, false>(p, i * part, (i + 1) * part); });
  });
  return out;
}

}  // namespace example
#endif
