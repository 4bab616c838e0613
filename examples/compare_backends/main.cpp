// One operator at your own shapes on two backends, side by side with its spread, and as rows that bench/plot.py draws:
//
//   compare_backends [TOKENSxHIDDEN...] [options of Google Benchmark]
//   python3 bench/plot.py compare_backends.csv
//
// Another operator goes into `forward`, other backends into `first` and `second`; nothing else has to change.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <exception>
#include <map>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tigon/ops/rms_norm.hpp>
#include <utility>
#include <vector>
// A backend brings its kernels for the operators that are known here, so it comes after them.
#include <tigon/backends/highway/backend.hpp>
#include <tigon/backends/xsimd/backend.hpp>

#include "../../support/output_file.hpp"

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
void write_row(std::ostream& csv, const std::string& backend, const std::string& shape, const spread& ms) {
  char now[32];
  const std::time_t seconds = std::time(nullptr);
  std::strftime(now, sizeof now, "%Y-%m-%d %H:%M:%S", std::localtime(&seconds));
  csv << op << ',' << backend << ",forward,speed,ms,shape,tokens x hidden," << shape << ',' << ms.at(0.5) << ','
      << ms.at(0.2) << ',' << ms.at(0.8) << R"(,"{""dtype"":""f32"",""threads"":1}",this CPU )"
      << TIGON_STRING(TIGON_TARGET) << " 1T," << now << ',' << TIGON_VERSION_STRING << '\n';
}

/// Whole numbers from 1 whose product is no more elements than an address space holds bytes; else nothing.
std::optional<std::pair<std::size_t, std::size_t>> parse_shape(const std::string& text) {
  std::size_t tokens = 0, hidden = 0;
  const char* const end = text.data() + text.size();
  const auto [x, first_code] = std::from_chars(text.data(), end, tokens);
  if (first_code != std::errc() || x == end || *x != 'x') return {};
  const auto [rest, second_code] = std::from_chars(x + 1, end, hidden);
  if (second_code != std::errc() || rest != end || tokens == 0 || hidden == 0) return {};
  if (tokens > (std::size_t{1} << 48) / hidden) return {};
  return std::pair(tokens, hidden);
}

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::vector<std::string> shapes(argv + 1, argv + argc);
  if (shapes.empty()) shapes = {"256x4096", "1024x4096", "4096x4096"};
  const example::named_file table{"the table", "compare_backends.csv"};
  for (const std::string& shape : shapes) {
    const auto extents = parse_shape(shape);
    if (!extents) throw std::runtime_error("a shape is two numbers, as 256x4096; what is " + shape + "?");
    add<first>(shape, extents->first, extents->second);
    add<second>(shape, extents->first, extents->second);
  }
  example::check_writable(table);
  collector all;
  benchmark::RunSpecifiedBenchmarks(&all);

  std::ostringstream csv;
  csv << "kernel_name,kernel_provider,kernel_operation_mode,metric_name,metric_unit,x_name,x_label,x_value,y_value_50,"
         "y_value_20,y_value_80,extra_benchmark_config_str,gpu_name,timestamp,liger_version\n";
  std::printf("%s forward, ms: median (20 %% to 80 %%)\n", op);
  for (const std::string& shape : shapes) {
    const spread a = all.results[case_name<first>(shape)], b = all.results[case_name<second>(shape)];
    // Options of Google Benchmark may leave cases out.
    if (a.samples.empty() || b.samples.empty())
      throw std::runtime_error("shape " + shape + " was not measured on both backends, so there is no table");
    for (const auto& [name, ms] : {std::pair{first::info.name, a}, std::pair{second::info.name, b}}) {
      std::printf("%-12s %-10s %.4f (%.4f to %.4f)\n", shape.c_str(), std::string(name).c_str(), ms.at(0.5), ms.at(0.2),
                  ms.at(0.8));
      write_row(csv, std::string(name), shape, ms);
    }
    std::printf("%-12s %s takes %.2f times as long\n", "", std::string(second::info.name).c_str(),
                b.at(0.5) / a.at(0.5));
  }
  example::replace_file(table.path, csv.view());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "compare_backends: these shapes do not fit into memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "compare_backends: %s\n", error.what());
  }
  return 2;
}
