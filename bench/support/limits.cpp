#include "support/limits.hpp"

#include "support/buffers.hpp"
#include "support/machine.hpp"
#include "support/peaks.hpp"
#include "support/statistics.hpp"

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <tigon/core/executor.hpp>
#include <tigon/simd/tile_registers.hpp>
#include <utility>
#include <vector>

namespace tigon_bench {
namespace {

using stream_function = void (*)(const pointers&, std::size_t, std::size_t);

template <bool Streaming, std::size_t... I>
constexpr auto stream_table(std::index_sequence<I...>) {
  return std::array<stream_function, sizeof...(I)>{
      &stream_range<static_cast<int>(I) / (most_writes + 1), static_cast<int>(I) % (most_writes + 1), Streaming>...};
}
constexpr auto ordinary_streams = stream_table<false>(std::make_index_sequence<(most_reads + 1) * (most_writes + 1)>{});
constexpr auto streaming_streams = stream_table<true>(std::make_index_sequence<(most_reads + 1) * (most_writes + 1)>{});

/// Seconds of one call of body on every thread, released together; the slowest thread counts.
double timed(std::size_t threads, std::size_t inner, const std::function<void(std::size_t)>& body) {
  const auto repeat = [&](std::size_t thread) {
    const double start = seconds_now();
    for (std::size_t k = 0; k < inner; ++k) body(thread);
    return (seconds_now() - start) / static_cast<double>(inner);
  };
  if (threads == 1) return repeat(0);
  std::vector<double> seconds(threads);
  std::atomic<std::size_t> ready{0};
  tigon::thread_pool pool(threads);
  pool.run(threads, [&](std::size_t thread, std::size_t) {  // each on a thread of its own, because all wait for all
    ++ready;
    while (ready.load(std::memory_order_acquire) < threads) {
    }
    seconds[thread] = repeat(thread);
  });
  return *std::max_element(seconds.begin(), seconds.end());
}

double median_seconds(std::size_t threads, cache_state cache, const std::function<void(std::size_t)>& body) {
  constexpr double budget = 0.12, shortest_sample = 1e-3;
  const bool cold = cache == cache_state::cold;
  if (cold) flush_caches();
  const double first = timed(threads, 1, body);
  // Short bodies are repeated within a sample, so that the clock and the start of the threads weigh nothing.
  const std::size_t inner = cold ? 1 : static_cast<std::size_t>(std::max(1.0, shortest_sample / std::max(first, 1e-9)));
  std::vector<double> samples;
  const double end = seconds_now() + budget;
  while (samples.size() < 7 || (seconds_now() < end && samples.size() < 60)) {
    if (cold) flush_caches();
    samples.push_back(timed(threads, inner, body));
  }
  return percentile(samples, 0.5);
}

limit measure_stream(const limit_request& r, std::size_t threads, cache_state cache) {
  if (r.reads < 0 || r.reads > most_reads || r.writes < 0 || r.writes > most_writes ||
      (r.in_place && r.writes > r.reads))
    return {not_a_number, "none"};
  const std::size_t bytes = (r.array_bytes + turn_bytes - 1) / turn_bytes * turn_bytes;
  // Of numbers, as an operator's are: some processors (Zen 5: a fifth faster) have a short way for cache lines of
  // zeros, which is what a fresh or cleared array holds.
  std::vector<buffer<float>> arrays;
  pointers p{};
  const auto array = [&] {
    arrays.push_back(uniform<float>(bytes / sizeof(float), -1, 1, arrays.size()));
    return reinterpret_cast<std::byte*>(arrays.back().data());
  };
  for (int k = 0; k < r.reads; ++k) p[static_cast<std::size_t>(k)] = array();
  for (int k = 0; k < r.writes; ++k)
    p[static_cast<std::size_t>(most_reads + k)] = r.in_place ? p[static_cast<std::size_t>(k)] : array();

  const auto share = [&](std::size_t thread) {
    const std::size_t turns = bytes / turn_bytes;
    return std::pair{turns * thread / threads * turn_bytes, turns * (thread + 1) / threads * turn_bytes};
  };
  const auto index = static_cast<std::size_t>(r.reads * (most_writes + 1) + r.writes);
  const auto run = [&](stream_function f) {
    return median_seconds(threads, cache, [&, f](std::size_t thread) {
      const auto [begin, end] = share(thread);
      f(p, begin, end);
    });
  };
  const double ordinary = run(ordinary_streams[index]);
  const double streaming = r.writes > 0 ? run(streaming_streams[index]) : ordinary;
  std::string kind = "stream_" + std::to_string(r.reads) + "r" + std::to_string(r.writes) + "w";
  if (r.in_place) kind += "_in_place";
  if (streaming < ordinary) kind += "_nt";
  return {1e3 * std::min(ordinary, streaming), kind};
}

template <class S>
double fma_peak(std::size_t threads) {
  return 1e-9 * fma_chains_flops<S> * static_cast<double>(threads) /
         median_seconds(threads, cache_state::warm, fma_chains<S>);
}

#if TIGON_FLAGS_tiles
template <bool Bytes>
double tile_peak(std::size_t threads) {
  return 1e-9 * tile_chains_flops<Bytes> * static_cast<double>(threads) /
         median_seconds(threads, cache_state::warm, tile_chains<Bytes>);
}
#else
template <bool>
double tile_peak(std::size_t) {
  return 0;
}
#endif

#if defined(TIGON_BENCH_DOT)
double dot_peak(std::size_t threads) {
  return 1e-9 * dot_chains_flops * static_cast<double>(threads) /
         median_seconds(threads, cache_state::warm, dot_chains);
}
#else
double dot_peak(std::size_t) { return 0; }
#endif

#if defined(__AVX512VNNI__)
words bytes_dotted(words a, words b, words c) { return _mm512_dpbusd_epi32(c, a, b); }
#define TIGON_BENCH_VNNI 1
#elif defined(__AVXVNNI__)
words bytes_dotted(words a, words b, words c) { return _mm256_dpbusd_avx_epi32(c, a, b); }
#define TIGON_BENCH_VNNI 1
#endif
#if defined(TIGON_BENCH_VNNI)
void byte_chains(std::size_t) {
  constexpr int chains = 12;
  words a{}, b{};
  keep(a), keep(b);
  words sum[chains]{};
  for (std::size_t turn = 0; turn < peak_turns; ++turn)
#pragma GCC unroll 12
    for (int k = 0; k < chains; ++k) {
      sum[k] = bytes_dotted(a, b, sum[k]);
      keep(sum[k]);
    }
}
double byte_peak(std::size_t threads) {
  return 1e-9 * 2.0 * sizeof(words) * 12 * peak_turns * static_cast<double>(threads) /
         median_seconds(threads, cache_state::warm, byte_chains);
}
#else
double byte_peak(std::size_t) { return 0; }
#endif

limit measure_product(const limit_request& r, std::size_t threads) {
  const double peak = measure_peak(r.bound, threads);
  if (peak > 0) {
    const char* const kind = r.bound == limit_bound::fma_f32    ? "fma_f32_peak"
                             : r.bound == limit_bound::fma_f64  ? "fma_f64_peak"
                             : r.bound == limit_bound::bf16_dot ? has_tiles() ? "bf16_tile_peak" : "bf16_dot_peak"
                             : has_tiles()                      ? "int8_tile_peak"
                                                                : "int8_dot_peak";
    return {1e-6 * r.flops / peak, kind};
  }
  return {1e-6 * r.flops / measure_peak(limit_bound::fma_f32, threads),
          r.bound == limit_bound::int8_dot ? "fma_f32_peak_for_lack_of_vnni" : "fma_f32_peak_for_lack_of_avx512_bf16"};
}

}  // namespace

bool has_bf16_dot() {
#if defined(__AVX512BF16__) && defined(__AVX512F__)
  return true;
#else
  return false;
#endif
}

double measure_peak(limit_bound bound, std::size_t threads) {
  switch (bound) {
    case limit_bound::fma_f32: return fma_peak<float>(threads);
    case limit_bound::fma_f64: return fma_peak<double>(threads);
    case limit_bound::bf16_dot: return has_tiles() ? tile_peak<false>(threads) : dot_peak(threads);
    case limit_bound::int8_dot: return has_tiles() ? tile_peak<true>(threads) : byte_peak(threads);
    case limit_bound::stream: break;
  }
  return 0;
}

void flush_caches() {
  static const std::size_t bytes = 4 * last_level_cache_bytes();
  static const buffer<std::byte> junk(bytes);
  static unsigned char value = 0;
  std::memset(junk.data(), ++value, bytes);
  asm volatile("" : : "r"(junk.data()) : "memory");
}

limit measure_limit(const limit_request& request, std::size_t threads, cache_state cache, double max_age_seconds) {
  struct entry {
    limit value;
    double measured_at;
  };
  static std::map<std::tuple<limit_request, std::size_t, cache_state>, entry> known;
  const std::tuple key{request, threads, cache};
  if (const auto found = known.find(key);
      found != known.end() && seconds_now() - found->second.measured_at < max_age_seconds)
    return found->second.value;
  const limit value = request.bound == limit_bound::stream ? measure_stream(request, threads, cache)
                                                           : measure_product(request, threads);
  known[key] = {value, seconds_now()};
  return value;
}

}  // namespace tigon_bench
