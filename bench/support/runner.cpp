#include "support/runner.hpp"

#include "support/buffers.hpp"
#include "support/machine.hpp"
#include "support/statistics.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <optional>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace tigon_bench {
namespace {

/// Google Benchmark reports to this instead of to the terminal.
class collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.error_occurred) failure = run.error_message;
      if (run.run_type != Run::RT_Aggregate) continue;
      if (run.aggregate_name == "p20") p20 = run.GetAdjustedRealTime();
      if (run.aggregate_name == "p50") p50 = run.GetAdjustedRealTime();
      if (run.aggregate_name == "p80") p80 = run.GetAdjustedRealTime();
    }
  }

  double p20 = not_a_number, p50 = not_a_number, p80 = not_a_number;
  std::string failure;
};

/// Keeps the calling thread on its processor for a scope.
class scoped_pin {
 public:
  explicit scoped_pin(bool wanted) {
#if defined(__linux__)
    pinned_ = wanted && sched_getaffinity(0, sizeof before_, &before_) == 0 && pin_this_thread();
#else
    (void)wanted;
#endif
  }
  scoped_pin(const scoped_pin&) = delete;
  scoped_pin& operator=(const scoped_pin&) = delete;
  ~scoped_pin() {
#if defined(__linux__)
    if (pinned_) (void)sched_setaffinity(0, sizeof before_, &before_);
#endif
  }

 private:
#if defined(__linux__)
  cpu_set_t before_{};
#endif
  bool pinned_ = false;
};

/// One context per thread count, kept for the whole run: threads and workspace are recycled as a training run's are.
tigon::context& context_for(std::size_t threads) {
  struct slot {
    explicit slot(std::size_t n) : pool(n), ctx(pool, scratch) {}
    tigon::thread_pool pool;
    tigon::workspace scratch;
    tigon::context ctx;
  };
  static std::vector<std::unique_ptr<slot>> slots;
  for (const auto& s : slots)
    if (s->pool.workers() == threads) return s->ctx;
  return slots.emplace_back(std::make_unique<slot>(threads))->ctx;
}

/// An in-place result goes in again so often before the inputs are restored.
constexpr std::size_t most_calls_between_restores = 12;

void warm_up(const runnable& r) {
  constexpr double seconds = 25e-3;
  const double end = seconds_now() + seconds;
  do {
    if (r.restore) r.restore();
    for (std::size_t k = 0; k < most_calls_between_restores && seconds_now() < end; ++k) r.run();
  } while (seconds_now() < end);
  if (r.restore) r.restore();
}

void time_with_google_benchmark(const runnable& r, double estimate, const run_settings& settings, collector& into) {
  const bool cold = settings.cache == cache_state::cold;
  constexpr double shortest_repetition = 4e-3;
  constexpr std::size_t most_repetitions = 40;
  std::size_t calls = cold ? 1 : static_cast<std::size_t>(std::clamp(shortest_repetition / estimate, 1.0, 1e6));
  if (r.restore) calls = std::min(calls, most_calls_between_restores);
  const auto affordable = static_cast<std::size_t>(settings.budget_seconds / (estimate * static_cast<double>(calls)));
  const std::size_t repetitions = std::max(settings.repetitions, std::min(affordable, most_repetitions));

  benchmark::ClearRegisteredBenchmarks();
  auto* const registered = benchmark::RegisterBenchmark("case", [&](benchmark::State& state) {
    if (r.restore) {
      r.restore();
      r.run();  // the caches again hold what the op leaves, not what the copy left
    }
    try {
      if (!cold) {
        for (auto _ : state) {
          r.run();
          benchmark::ClobberMemory();
        }
      } else {
        for (auto _ : state) {
          flush_caches();
          const double start = seconds_now();
          r.run();
          state.SetIterationTime(seconds_now() - start);
        }
      }
    } catch (const std::exception& e) {
      state.SkipWithError(e.what());
    }
  });
  registered->Unit(benchmark::kMillisecond)
      ->Iterations(static_cast<benchmark::IterationCount>(calls))
      ->Repetitions(static_cast<int>(repetitions))
      ->ReportAggregatesOnly(true)
      ->ComputeStatistics("p20", [](const std::vector<double>& v) { return percentile(v, 0.2); })
      ->ComputeStatistics("p50", [](const std::vector<double>& v) { return percentile(v, 0.5); })
      ->ComputeStatistics("p80", [](const std::vector<double>& v) { return percentile(v, 0.8); });
  if (cold)
    registered->UseManualTime();
  else
    registered->UseRealTime();
  benchmark::RunSpecifiedBenchmarks(&into, "all");
  benchmark::ClearRegisteredBenchmarks();
  if (!into.failure.empty()) throw std::runtime_error(into.failure);
}

}  // namespace

result measure(const op_entry& op, const request& asked, const run_settings& settings) {
  const plan p = op.make_plan(asked);
  const scoped_pin pin(settings.pin == run_settings::pinning::on && asked.threads == 1);
  tigon::context& ctx = context_for(asked.threads);

  // The machine drifts within seconds: the limit is taken on both sides of the case, and the better one holds.
  constexpr double fresh = 1.0;
  const auto measure_limits = [&](double max_age_seconds) {
    limit total;
    for (const limit_request& part : p.limits) {
      const limit one = measure_limit(part, asked.threads, settings.cache, max_age_seconds);
      total.milliseconds += one.milliseconds;
      total.kind += (total.kind.empty() ? "" : "+") + one.kind;
    }
    return total;
  };
  limit bound = measure_limits(fresh);

  collector times;
  double memory_mb = not_a_number;
  {
    const runnable r = p.set_up(ctx);
    r.run();  // grows the workspace, touches what is not yet touched
    warm_up(r);
    ctx.workspace().reset_high_water();
    const double start = seconds_now();
    r.run();
    const double estimate = std::max(seconds_now() - start, 1e-7);
    memory_mb = static_cast<double>(ctx.workspace().high_water() + r.output_bytes) / (1 << 20);
    time_with_google_benchmark(r, estimate, settings, times);
  }
  const limit after = measure_limits(0.0);
  if (!(bound.milliseconds <= after.milliseconds)) bound = after;

  const double seconds = 1e-3 * times.p50;
  return {.ms_50 = times.p50,
          .ms_20 = times.p20,
          .ms_80 = times.p80,
          .gbytes_per_s = p.bytes() > 0 ? 1e-9 * p.bytes() / seconds : not_a_number,
          .gflops_per_s = p.flops() > 0 ? 1e-9 * p.flops() / seconds : not_a_number,
          .bound = bound,
          .fraction = bound.milliseconds / times.p50,
          .memory_mb = memory_mb};
}

std::uint64_t digest(const op_entry& op, const request& asked) {
  const plan p = op.make_plan(asked);
  const runnable r = p.set_up(context_for(asked.threads));
  if (r.restore) r.restore();
  r.run();
  return digest_of_blocks();
}

std::size_t footprint(const op_entry& op, const request& asked) {
  const plan p = op.make_plan(asked);
  const counting_scope counted;
  const runnable r = p.set_up(context_for(1));
  return counted.peak_bytes();
}

}  // namespace tigon_bench
