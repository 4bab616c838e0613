// One operator at your own shapes on two backends, side by side with its spread, and as rows that bench/plot.py draws:
//
//   compare_backends [TOKENSxHIDDEN...] [options of Google Benchmark]
//   python3 bench/plot.py compare_backends.csv
//
// Another operator goes into `forward`, other backends into `first` and `second`; nothing else has to change.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <string>
#include <tigon/ops/rms_norm.hpp>
#include <utility>
#include <vector>
// A backend brings its kernels for the operators that are known here, so it comes after them.
#include <tigon/backends/highway/backend.hpp>
#include <tigon/backends/xsimd/backend.hpp>

namespace {

using first = tigon::backends::highway;
using second = tigon::backends::xsimd;
constexpr const char* op = "rms_norm";

/// What is timed is the loop: buffers are made, and touched, before it.
template <class B>
void forward(benchmark::State& state, std::size_t tokens, std::size_t hidden) {
  std::vector<float> x(tokens * hidden, 0.5f), w(hidden, 2.0f), y(x.size()), rstd(tokens);
  const tigon::matrix_view in(x.data(), tokens, hidden), out(y.data(), tokens, hidden);
  for (auto _ : state) {
    tigon::rms_norm_forward<B>(in, w, out, rstd);
    benchmark::ClobberMemory();
  }
}

/// Median and spread of what was measured, with linear interpolation between samples.
struct spread {
  std::vector<double> samples;
  double at(double fraction) const {
    const double where = fraction * static_cast<double>(samples.size() - 1);
    const auto below = static_cast<std::size_t>(where);
    const std::size_t above = std::min(below + 1, samples.size() - 1);
    return samples[below] + (where - static_cast<double>(below)) * (samples[above] - samples[below]);
  }
};

/// Google Benchmark tells its results to this, one a repetition.
struct collector : benchmark::BenchmarkReporter {
  std::map<std::string, spread> results;
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs)
      if (run.run_type == Run::RT_Iteration)
        results[run.run_name.function_name].samples.push_back(run.GetAdjustedRealTime());
    for (auto& [name, result] : results) std::sort(result.samples.begin(), result.samples.end());
  }
};

template <class B>
std::string case_name(const std::string& shape) {
  return std::string(B::info.name) + " " + shape;
}

template <class B>
void add(const std::string& shape, std::size_t tokens, std::size_t hidden) {
  benchmark::RegisterBenchmark(case_name<B>(shape).c_str(),
                               [=](benchmark::State& state) { forward<B>(state, tokens, hidden); })
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime()
      ->MinTime(0.02)
      ->Repetitions(20);
}

/// The columns of tigon_bench (docs/benchmarks.md).
void write_row(std::ofstream& csv, const std::string& backend, const std::string& shape, const spread& ms) {
  char now[32];
  const std::time_t seconds = std::time(nullptr);
  std::strftime(now, sizeof now, "%Y-%m-%d %H:%M:%S", std::localtime(&seconds));
  csv << op << ',' << backend << ",forward,speed,ms,shape,tokens x hidden," << shape << ',' << ms.at(0.5) << ','
      << ms.at(0.2) << ',' << ms.at(0.8) << R"(,"{""dtype"":""f32"",""threads"":1}",this CPU )"
      << TIGON_STRING(TIGON_TARGET) << " 1T," << now << ',' << TIGON_VERSION_STRING << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::vector<std::string> shapes(argv + 1, argv + argc);
  if (shapes.empty()) shapes = {"256x4096", "1024x4096", "4096x4096"};
  for (const std::string& shape : shapes) {
    std::size_t tokens = 0, hidden = 0;
    char more = 0;
    if (std::sscanf(shape.c_str(), "%zux%zu%c", &tokens, &hidden, &more) != 2)
      return std::fprintf(stderr, "a shape is two numbers, as 256x4096; what is %s?\n", shape.c_str()), 2;
    add<first>(shape, tokens, hidden);
    add<second>(shape, tokens, hidden);
  }
  collector all;
  benchmark::RunSpecifiedBenchmarks(&all);

  std::ofstream csv("compare_backends.csv");
  csv << "kernel_name,kernel_provider,kernel_operation_mode,metric_name,metric_unit,x_name,x_label,x_value,y_value_50,"
         "y_value_20,y_value_80,extra_benchmark_config_str,gpu_name,timestamp,liger_version\n";
  std::printf("%s forward, ms: median (20 %% to 80 %%)\n", op);
  for (const std::string& shape : shapes) {
    const spread a = all.results[case_name<first>(shape)], b = all.results[case_name<second>(shape)];
    for (const auto& [name, ms] : {std::pair{first::info.name, a}, std::pair{second::info.name, b}}) {
      std::printf("%-12s %-10s %.4f (%.4f to %.4f)\n", shape.c_str(), std::string(name).c_str(), ms.at(0.5), ms.at(0.2),
                  ms.at(0.8));
      write_row(csv, std::string(name), shape, ms);
    }
    std::printf("%-12s %s takes %.2f times as long\n", "", std::string(second::info.name).c_str(),
                b.at(0.5) / a.at(0.5));
  }
  return csv.flush() ? 0 : 1;
}
