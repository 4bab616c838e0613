// tigon_bench: every op, on every backend, against what this machine can do at the moment.
#include "support/buffers.hpp"
#include "support/csv.hpp"
#include "support/machine.hpp"
#include "support/registry.hpp"
#include "support/runner.hpp"
#include "support/statistics.hpp"
#include "support/sweep.hpp"

#include "../support/options.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace tb = tigon_bench;

namespace {

struct arguments {
  std::vector<std::string> ops, dtypes, backends, shapes, modes, variants, sweeps, axes;
  std::vector<std::size_t> threads, lengths, values;
  std::string csv, model, cache = "warm";
  bool overwrite = false, list = false, pin = false, digest = false;
  std::size_t repetitions = 10, tokens = 2048;
  double budget = 0.5, memory_gib = 0;
};

/// One row of the table to be, and where it stands on the axis of its picture.
struct bench_case {
  tb::request asked;
  std::string x_name, x_label, x_value;
  std::string setting, value;  ///< of a sweep
  std::string reason;          ///< why it cannot be asked for; empty mostly
};

template <class Range, class F>
std::string joined(const Range& values, F&& name, const char* between = ",") {
  std::string text;
  for (const auto& v : values) text += (text.empty() ? "" : between) + std::string(name(v));
  return text;
}

const std::string& dims_of(const tb::op_entry& op, const tb::variant_entry& variant) {
  return variant.dims.empty() ? op.dims : variant.dims;
}

void print_list() {
  for (const tb::op_entry& op : tb::ops()) {
    std::printf("%s\n  shape     %s\n  dtypes    %s\n  backends  %s\n", op.name.c_str(), op.dims.c_str(),
                joined(op.dtypes, [](tb::dtype d) { return tb::name_of(d); }).c_str(),
                joined(op.backends, [](const std::string& s) { return s; }).c_str());
    for (const tb::variant_entry& v : op.variants)
      std::printf("  variant   %-10s modes %-23s default shape %s%s\n", v.name.c_str(),
                  joined(v.modes, [](tb::mode m) { return tb::name_of(m); }).c_str(), tb::text_of(v.shape).c_str(),
                  v.dims.empty() ? "" : (" (" + v.dims + ")").c_str());
  }
  std::printf("models of --sweep-mode model_config, and one more for --model:\n");
  for (const tb::model_shape& m : tb::models())
    std::printf("  %-18s hidden %zu, intermediate %zu, vocab %zu, heads %zu over %zu, experts %zu\n",
                std::string(m.name).c_str(), m.hidden, m.intermediate, m.vocab, m.heads, m.kv_heads, m.experts);
}

void print_machine() {
  std::printf("# %s\n# %s, flags %s\n# target %s, tigon %s, %s\n", tb::cpu_name().c_str(), tb::compiler_name().c_str(),
              tb::compiler_flags().c_str(), tb::target_name().c_str(), tb::library_version().c_str(),
              tb::timestamp().c_str());
  for (const tb::backend_description& b : tb::describe_backends())
    std::printf("# backend %-12s %s, %zu lanes of f32\n", b.name.c_str(), b.target.c_str(), b.lanes);
  std::printf("%-26s %-12s %-5s %-15s %-9s %-18s %2s %10s %17s %8s %8s %9s %6s  %s\n", "op", "backend", "dtype", "mode",
              "variant", "shape", "T", "ms", "20..80 %", "GB/s", "GFLOP/s", "limit ms", "of it", "limit");
  std::fflush(stdout);
}

std::string shown(double value, const char* format) {
  if (value != value) return "-";
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// A line that two builds agree in if they have the same bits.
void print_digest(const tb::op_entry& op, const tb::request& r) {
  std::printf("%s %s %s %s %s %s %zu %016llx\n", op.name.c_str(), r.backend.c_str(),
              std::string(tb::name_of(r.element)).c_str(), std::string(tb::name_of(r.direction)).c_str(),
              r.variant.c_str(), tb::text_of(r.shape).c_str(), r.threads,
              static_cast<unsigned long long>(tb::digest(op, r)));
  std::fflush(stdout);
}

void print_result(const tb::op_entry& op, const tb::request& r, const tb::result& x) {
  std::printf("%-26s %-12s %-5s %-15s %-9s %-18s %2zu %10.4f %8.4f %8.4f %8s %8s %9.4f %6.3f  %s\n", op.name.c_str(),
              r.backend.c_str(), std::string(tb::name_of(r.element)).c_str(),
              std::string(tb::name_of(r.direction)).c_str(), r.variant.c_str(), tb::text_of(r.shape).c_str(), r.threads,
              x.ms_50, x.ms_20, x.ms_80, shown(x.gbytes_per_s, "%.2f").c_str(), shown(x.gflops_per_s, "%.1f").c_str(),
              x.bound.milliseconds, x.fraction, x.bound.kind.c_str());
  std::fflush(stdout);
}

tb::csv_row row_for(const tb::op_entry& op, const bench_case& c, const arguments& args) {
  const tb::request& r = c.asked;
  nlohmann::json config{{"dtype", tb::name_of(r.element)},
                        {"variant", r.variant},
                        {"threads", r.threads},
                        {"cache", args.cache},
                        {"pinned", args.pin && r.threads == 1}};
  if (!c.setting.empty()) config[c.setting] = c.value;
  tb::csv_row row;
  row.kernel_name = op.name;
  row.kernel_provider = r.backend;
  row.kernel_operation_mode = tb::name_of(r.direction);
  row.x_name = c.x_name;
  row.x_label = c.x_label;
  row.x_value = c.x_value;
  row.extra_benchmark_config = config.dump();
  row.gpu_name = tb::cpu_name() + " " + tb::target_name() + " " + std::to_string(r.threads) + "T";
  row.timestamp = tb::timestamp();
  row.version = tb::library_version();
  row.gbytes_per_s = row.gflops_per_s = row.limit_ms = row.fraction_of_limit = tb::not_a_number;
  row.y_value_50 = row.y_value_20 = row.y_value_80 = tb::not_a_number;
  row.shape = tb::text_of(r.shape);
  return row;
}

class session {
 public:
  explicit session(const arguments& args)
      : args_(args),
        settings_{.budget_seconds = args.budget,
                  .repetitions = args.repetitions,
                  .cache = args.cache == "cold" ? tb::cache_state::cold : tb::cache_state::warm,
                  .pin = args.pin ? tb::run_settings::pinning::on : tb::run_settings::pinning::off} {
    if (!args.csv.empty())
      csv_ =
          std::make_unique<tb::csv_file>(args.csv, args.overwrite ? tb::existing_row::replace : tb::existing_row::keep);
  }

  void run(const tb::op_entry& op, const bench_case& c) {
    const tb::request& r = c.asked;
    tb::csv_row speed = row_for(op, c, args_);
    speed.metric_name = "speed";
    speed.metric_unit = "ms";
    tb::csv_row memory = speed;
    memory.metric_name = "memory";
    memory.metric_unit = "MB";
    if (csv_ != nullptr && csv_->keeps(speed) && csv_->keeps(memory)) {
      say(op, c, "kept", "its rows are in " + args_.csv + " already (--overwrite replaces them)");
      return;
    }
    try {
      if (!c.reason.empty()) throw tb::unsupported(c.reason);
      check(op, r);
      if (args_.digest) return print_digest(op, r);
      const tb::result x = tb::measure(op, r, settings_);
      print_result(op, r, x);
      speed.y_value_50 = x.ms_50, speed.y_value_20 = x.ms_20, speed.y_value_80 = x.ms_80;
      speed.gbytes_per_s = x.gbytes_per_s;
      speed.gflops_per_s = x.gflops_per_s;
      speed.limit_ms = x.bound.milliseconds;
      speed.limit_kind = x.bound.kind;
      speed.fraction_of_limit = x.fraction;
      memory.y_value_50 = memory.y_value_20 = memory.y_value_80 = x.memory_mb;
    } catch (const tb::unsupported& e) {
      speed.reason = e.what();
    } catch (const std::bad_alloc&) {
      speed.reason = refused_memory;
    } catch (const tigon::error& e) {
      const bool memory = e.code() == tigon::error_code::workspace;
      speed.reason = memory ? refused_memory : e.what();
      failed_ = failed_ || !memory;
    } catch (const std::exception& e) {
      speed.reason = e.what();
      failed_ = true;
    }
    if (!speed.reason.empty()) say(op, c, "not measured", speed.reason);
    memory.reason = speed.reason;
    if (csv_ != nullptr) csv_->add(speed), csv_->add(memory);
  }

  bool failed() const { return failed_; }

 private:
  static constexpr const char* refused_memory = "too much memory: the system refused it";

  template <class T, class Range>
  static bool has(const Range& values, const T& value) {
    return std::find(values.begin(), values.end(), value) != values.end();
  }

  static void check(const tb::op_entry& op, const tb::request& r) {
    const auto variant =
        std::find_if(op.variants.begin(), op.variants.end(), [&](const auto& v) { return v.name == r.variant; });
    if (variant == op.variants.end())
      throw tb::unsupported("has no variant " + r.variant + "; it has " +
                            joined(op.variants, [](const auto& v) { return v.name; }));
    if (!has(variant->modes, r.direction))
      throw tb::unsupported("variant " + r.variant + " has no mode " + std::string(tb::name_of(r.direction)) +
                            "; it has " + joined(variant->modes, [](tb::mode m) { return tb::name_of(m); }));
    if (!has(op.dtypes, r.element))
      throw tb::unsupported("has no dtype " + std::string(tb::name_of(r.element)) + "; it has " +
                            joined(op.dtypes, [](tb::dtype d) { return tb::name_of(d); }));
    if (!has(op.backends, r.backend))
      throw tb::unsupported("has no backend " + r.backend + " in this build; it has " +
                            joined(op.backends, [](const std::string& s) { return s; }));
    if (r.shape.size() != variant->shape.size())
      throw tb::unsupported("takes a shape of " + std::to_string(variant->shape.size()) + " numbers (" + op.dims +
                            "), not " + tb::text_of(r.shape));
  }

  static void say(const tb::op_entry& op, const bench_case& c, const char* what, const std::string& why) {
    const tb::request& r = c.asked;
    std::fprintf(stderr, "%s, %s, %s, %s, %s, %s, %zu threads: %s: %s\n", op.name.c_str(), r.backend.c_str(),
                 std::string(tb::name_of(r.element)).c_str(), std::string(tb::name_of(r.direction)).c_str(),
                 r.variant.c_str(), c.x_value.c_str(), r.threads, what, why.c_str());
  }

  const arguments& args_;
  tb::run_settings settings_;
  std::unique_ptr<tb::csv_file> csv_;
  bool failed_ = false;
};

/// What a sweep counts memory with: one backend speaks for all, in the direction that holds most.
tb::byte_counter counter_for(const tb::op_entry& op, const tb::variant_entry& variant, tb::dtype element) {
  const auto highway = std::find(op.backends.begin(), op.backends.end(), "highway");
  tb::request r{.element = element,
                .backend = highway != op.backends.end() ? *highway : op.backends.front(),
                .shape = {},
                .threads = 1,
                .direction = variant.modes.back(),
                .variant = variant.name};
  return [&op, r](const tb::extents& shape) mutable {
    r.shape = shape;
    return static_cast<double>(tb::footprint(op, r));
  };
}

/// The points of all sweeps that were asked for, those over an axis from every shape; without a sweep the shapes.
std::vector<tb::sweep> sweeps_for(const tb::op_entry& op, const tb::variant_entry& variant, tb::dtype element,
                                  const arguments& args, double usable_bytes) {
  const std::string& dims = dims_of(op, variant);
  std::vector<tb::sweep> sweeps;
  for (const std::string& name : args.sweeps)
    sweeps.push_back(tb::make_sweep({.kind = tb::sweep_named(name),
                                     .model = args.model,
                                     .tokens = args.tokens,
                                     .lengths = args.lengths,
                                     .usable_bytes = usable_bytes},
                                    dims, variant.shape, counter_for(op, variant, element)));
  std::vector<tb::extents> fixed;
  for (const std::string& s : args.shapes) fixed.push_back(tb::parse_shape(s));
  if (fixed.empty()) fixed.push_back(variant.shape);
  for (const std::string& axis : args.axes)
    for (const tb::extents& shape : fixed) sweeps.push_back(tb::make_axis_sweep(axis, args.values, dims, shape));
  if (!sweeps.empty()) return sweeps;
  tb::sweep shapes{"shape", dims, {}, {}, {}};
  for (const tb::extents& shape : fixed) shapes.points.push_back({tb::text_of(shape), shape, {}});
  return {shapes};
}

/// Every combination that was asked for; what was not asked for: all that the op has, in f32 and with one thread.
std::vector<bench_case> cases_for(const tb::op_entry& op, const arguments& args, double usable_bytes) {
  std::vector<std::string> variants = args.variants, backends = args.backends;
  if (variants.empty())
    for (const tb::variant_entry& v : op.variants) variants.push_back(v.name);
  if (backends.empty()) backends = op.backends;

  std::vector<bench_case> all;
  for (const std::string& variant : variants) {
    const auto known =
        std::find_if(op.variants.begin(), op.variants.end(), [&](const auto& v) { return v.name == variant; });
    const tb::variant_entry& entry = known == op.variants.end() ? op.variants.front() : *known;
    std::vector<tb::mode> modes;
    for (const std::string& m : args.modes) modes.push_back(tb::mode_named(m));
    if (modes.empty()) modes = entry.modes;
    for (const std::string& dtype : args.dtypes)
      for (const tb::sweep& sweep : sweeps_for(op, entry, tb::dtype_named(dtype), args, usable_bytes))
        for (const tb::sweep_point& point : sweep.points)
          for (const tb::mode m : modes)
            for (const std::size_t threads : args.threads)
              for (const std::string& backend : backends)
                all.push_back({{tb::dtype_named(dtype), backend, point.shape, threads, m, variant},
                               sweep.x_name,
                               sweep.x_label,
                               point.x_value,
                               sweep.setting,
                               sweep.value,
                               point.reason});
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  arguments args;
  CLI::App app("Times the operators against streaming and arithmetic limits that are measured in the same run.");
  std::vector<std::string> op_names;
  for (const tb::op_entry& op : tb::ops()) op_names.push_back(op.name);
  using example::add_list;
  add_list(app, "--op", args.ops, "Operators, all if none is named", CLI::IsMember(op_names));
  add_list(app, "--dtype", args.dtypes, "f32 (default), bf16, f16, f64, i8",
           CLI::IsMember({"f32", "bf16", "f16", "f64", "i8"}));
  add_list(app, "--backend", args.backends, "Backends, all if none is named, or for `all`");
  auto* const shapes = add_list(app, "--shape", args.shapes, "As 2048x4096; --list says what the numbers mean");
  auto* const sweeps = add_list(app, "--sweep-mode", args.sweeps,
                                "Instead of shapes: token_length, growing in one model; model_config, seven models",
                                CLI::IsMember({"token_length", "model_config"}))
                           ->excludes(shapes);
  std::vector<std::string> model_names;
  for (const tb::model_shape& m : tb::models()) model_names.emplace_back(m.name);
  model_names.emplace_back("small");
  app.add_option("--model", args.model, "Of token_length (default llama_3_8b, with experts qwen3_moe_30b)")
      ->check(CLI::IsMember(model_names))
      ->needs(sweeps);
  add_list(app, "--tokens", args.lengths,
           "Of token_length (default: powers of two from 1024, as far as model and memory go)",
           CLI::Range(std::size_t{1}, std::size_t{1} << 32))
      ->needs(sweeps);
  app.add_option("--bt", args.tokens, "Tokens of model_config, at most (default 2048)")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 32))
      ->needs(sweeps);
  auto* const axes =
      add_list(app, "--sweep-axis", args.axes,
               "One number of the shape (default or --shape) alone: batch, seq_len, tokens, hidden, vocab, blocks, "
               "experts or another word of --list");
  add_list(app, "--values", args.values, "Of --sweep-axis (default: a quarter to four times)",
           CLI::Range(std::size_t{1}, std::size_t{1} << 32))
      ->needs(axes);
  app.add_option("--memory", args.memory_gib, "GiB that the arrays may take (default 0.4 of the memory)")
      ->check(example::between(1e-3, 1e6));
  add_list(app, "--threads", args.threads, "Threads (default 1)", CLI::Range(1, 1024));
  add_list(app, "--mode", args.modes, "All modes of the operator if none is named",
           CLI::IsMember({"forward", "backward", "full", "no_grad_forward"}));
  add_list(app, "--variant", args.variants, "All variants of the operator if none is named");
  app.add_option("--csv", args.csv, "Table to add rows to");
  app.add_flag("--overwrite", args.overwrite, "Replace rows of the table that have the same key");
  app.add_flag("--list", args.list, "Print what exists and stop");
  app.add_option("--repetitions", args.repetitions, "At least this many (default 10)")->check(CLI::Range(2, 1000));
  app.add_option("--budget", args.budget, "Timed seconds a case (default 0.5)")->check(example::between(0.01, 600));
  app.add_option("--cache", args.cache,
                 "warm (default): same buffers again and again; cold: caches flushed before each call")
      ->check(CLI::IsMember({"warm", "cold"}));
  app.add_flag("--digest", args.digest, "Run every case once and print a digest of its arrays; nothing is timed");
  app.add_flag("--pin", args.pin, "Keep the measuring thread of one-thread cases on its processor");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (args.list) return print_list(), 0;
  if (args.dtypes.empty()) args.dtypes = {"f32"};
  if (args.threads.empty()) args.threads = {1};
  if (std::find(args.backends.begin(), args.backends.end(), "all") != args.backends.end()) args.backends.clear();
  const double usable =
      args.memory_gib > 0 ? args.memory_gib * (1 << 30) : 0.4 * static_cast<double>(tb::memory_bytes());
  tb::limit_memory(static_cast<std::size_t>(usable));

  try {
    session s(args);
    if (args.digest)
      tb::clear_blocks_first();
    else
      print_machine();
    for (const tb::op_entry& op : tb::ops()) {
      if (!args.ops.empty() && std::find(args.ops.begin(), args.ops.end(), op.name) == args.ops.end()) continue;
      for (const bench_case& c : cases_for(op, args, usable)) s.run(op, c);
    }
    return s.failed() ? 1 : 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tigon_bench: %s\n", e.what());
    return 2;
  }
}
