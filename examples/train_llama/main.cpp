// Trains a small Llama on real text. --help lists the options.
#include <tigon/core/executor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../../support/kernel_memory.hpp"
#include "../../support/profile.hpp"
#include "../../support/profile_table.hpp"
#include "../../support/progress.hpp"
#include "../../support/ranks.hpp"
#include "../../support/svg.hpp"
#include "checkpoint.hpp"
#include "fused_model.hpp"
#include "options.hpp"
#include "parameters.hpp"
#include "plain_model.hpp"
#include "run_files.hpp"
#include "text.hpp"
#include "tokenizer.hpp"
#include "trainer.hpp"

namespace {

using namespace example;

constexpr double none = std::numeric_limits<double>::quiet_NaN();

/// What a run leaves for the table and the files: one entry for each step.
struct curve {
  std::string name;
  std::vector<double> loss, held_out;  ///< held_out is NaN where it was not asked for
  double tokens_per_second = 0;
  std::size_t peak_bytes = 0;
};

struct record {
  std::size_t first_step = 0;
  std::vector<double> rate;
  std::vector<curve> curves;
};

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void write_csv(const std::string& path, const record& r) {
  std::ostringstream out;
  out << "step,learning_rate";
  for (const curve& c : r.curves) out << ',' << c.name << "_loss," << c.name << "_held_out_loss";
  out << '\n';
  for (std::size_t i = 0; i < r.rate.size(); ++i) {
    out << r.first_step + i + 1 << ',' << csv_number(r.rate[i]);
    for (const curve& c : r.curves) out << ',' << csv_number(c.loss[i]) << ',' << csv_number(c.held_out[i]);
    out << '\n';
  }
  replace_file(path, out.view());
}

void write_svg(const std::string& path, const record& r) {
  line_chart chart{"Training loss", "step", "loss per token (nats)", {}};
  const auto add = [&](const std::string& name, const std::vector<double>& values) {
    chart_series series{name, {}};
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!std::isnan(values[i])) series.points.emplace_back(static_cast<double>(r.first_step + i + 1), values[i]);
    if (series.points.size() > 1) chart.series.push_back(std::move(series));
  };
  for (const curve& c : r.curves) add(c.name, c.loss);
  for (const curve& c : r.curves) add(c.name + ", held out", c.held_out);
  save_svg(path, chart);
}

void print_comparison(const record& r) {
  const curve &fused = r.curves[0], &plain = r.curves[1];
  const std::size_t steps = r.rate.size(), stride = std::max<std::size_t>(1, steps / 20);
  std::printf("\n%8s %14s %14s %12s\n", "step", "fused loss", "plain loss", "difference");
  double largest = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    const double difference = fused.loss[i] - plain.loss[i];
    largest = std::max(largest, std::abs(difference));
    if (i % stride == 0 || i + 1 == steps)
      std::printf("%8zu %14.6f %14.6f %12.1e\n", r.first_step + i + 1, fused.loss[i], plain.loss[i], difference);
  }
  std::printf("\n%-34s %12s %12s %16s\n", "", "fused", "plain", "");
  std::printf("%-34s %12.4f %12.4f\n", "held-out loss", fused.held_out.back(), plain.held_out.back());
  std::printf("%-34s %12.0f %12.0f   fused / plain %.2f\n", "tokens per second (median step)", fused.tokens_per_second,
              plain.tokens_per_second, fused.tokens_per_second / plain.tokens_per_second);
  std::printf("%-34s %12.1f %12.1f   fused / plain %.2f\n", "peak of activations, MiB", mebibytes(fused.peak_bytes),
              mebibytes(plain.peak_bytes),
              static_cast<double>(fused.peak_bytes) / static_cast<double>(plain.peak_bytes));
  std::printf("largest difference of a loss: %.1e\n", largest);
}

/// Trains the runs side by side, step by step, so that a comparison sees the same machine at the same time.
template <class... Trainer>
record train(const run_options& o, const checkpoint_identity& identity, const parameter_layout& layout,
             tigon::communicator_ref comm, std::vector<std::string> names, Trainer&... trainers) {
  record r;
  if (comm.size() > 1)
    (same_on_all_ranks(
         comm, trainers.state_hash(),
         o.resume.empty() ? "the ranks begin with different weights" : "the ranks resume from different checkpoints"),
     ...);
  const std::size_t last = o.stop_at != 0 ? o.stop_at : o.steps;
  r.first_step = std::max({trainers.steps_done()...});
  if (r.first_step >= last)
    throw shared_fault("the checkpoint " + o.resume + " has " + std::to_string(r.first_step) +
                       " steps already, and the run ends after " + std::to_string(last));
  for (auto& name : names) r.curves.push_back({std::move(name), {}, {}, 0, 0});

  progress bar("training", last, o.batch * o.seq_len * sizeof...(Trainer));
  bar.start_at(r.first_step);
  const auto save = [&] {
    if constexpr (sizeof...(Trainer) == 1) (save_checkpoint(o.checkpoint, layout, trainers.state(), identity), ...);
  };
  for (std::size_t step = r.first_step + 1; step <= last; ++step) {
    r.rate.push_back(static_cast<double>(std::max({trainers.rate()...})));
    const bool evaluates = step == last || (o.eval_every != 0 && step % o.eval_every == 0);
    std::size_t k = 0;
    const auto advance = [&](auto& one) {
      curve& c = r.curves[k++];
      c.loss.push_back(one.step());
      if (!std::isfinite(c.loss.back()))
        throw std::domain_error("the loss is no longer finite at step " + std::to_string(step) + "; lower --lr");
      c.held_out.push_back(evaluates ? one.held_out_loss() : none);
    };
    (advance(trainers), ...);
    bar.update(step, r.curves[0].loss.back());
    // The others end with the first rank where it cannot save.
    const bool saves = step == last || (o.save_every != 0 && step % o.save_every == 0);
    on_all_ranks(comm, [&] {
      if (comm.rank() == 0 && !o.checkpoint.empty() && saves) save();
    });
  }
  std::size_t k = 0;
  const auto finish = [&](auto& one) {
    r.curves[k].tokens_per_second = one.tokens_per_second();
    r.curves[k++].peak_bytes = one.peak_bytes();
  };
  (finish(trainers), ...);
  return r;
}

template <tigon::element T, tigon::element S = float>
void run(const run_options& o, const model_config& config, const parameter_layout& layout, const tokenizer& pieces,
         corpus text, checkpoint_identity training, tigon::thread_pool& pool, tigon::communicator_ref comm) {
  std::optional<profile> timed;
  if (o.profile || !o.trace.empty()) timed.emplace(pool);
  const tigon::executor_ref executor = timed ? tigon::executor_ref(*timed) : tigon::executor_ref(pool);
  const bool writes = comm.rank() == 0;
  checkpoint_identity identity = identity_of(config, pieces);
  identity.emplace("dtype", o.dtype);
  for (const auto& [key, value] : identity) training.erase(key);
  using fused_trainer = trainer<llama_model<T, S>, T, S>;
  record r;
  std::string sample;
  const auto one = [&](auto&& single, const char* name) {
    if (!o.resume.empty()) on_all_ranks(comm, [&] { single.resume(o.resume, identity, training); });
    checkpoint_identity saved = training;
    saved.insert(identity.begin(), identity.end());
    r = train(o, saved, layout, comm, {name}, single);
    const curve& c = r.curves[0];
    std::printf("\n%s: loss %.4f, held-out loss %.4f, %.0f tokens/s (median step), peak of activations %.1f MiB\n",
                name, c.loss.back(), c.held_out.back(), c.tokens_per_second, mebibytes(c.peak_bytes));
    if (writes && o.sample_tokens != 0) sample = single.sample(pieces);
  };
  if constexpr (on_host) {
    using plain_trainer = trainer<plain_model<T>, T>;
    if (o.compare) {
      fused_trainer fused(o, config, layout, text, executor, comm);
      plain_trainer plain(o, config, layout, text, executor, comm);
      r = train(o, identity, layout, comm, {"fused", "plain"}, fused, plain);
      print_comparison(r);
      if (writes && o.sample_tokens != 0) sample = fused.sample(pieces);
    } else if (o.plain) {
      one(plain_trainer(o, config, layout, text, executor, comm), "plain");
    }
  }
  if (!o.compare && !o.plain) {
    one(fused_trainer(o, config, layout, text, executor, comm, timed ? &*timed : nullptr), "fused");
  }
  if (o.profile && timed) print_profile(*timed, pool.workers(), o.dtype == "bf16");
  if (o.sample_tokens != 0) std::printf("\nsample:\n%s\n", sample.c_str());
  on_all_ranks(comm, [&] {
    if (writes && !o.csv.empty()) write_csv(o.csv, r);
    if (writes && !o.svg.empty()) write_svg(o.svg, r);
    if (writes && !o.trace.empty()) replace_file(o.trace, timed->trace());
  });
}

/// With masters in f32, or on a GPU without.
template <class... Arguments>
void run_in_bf16(const run_options& o, Arguments&... of) {
  if constexpr (!on_host)
    if (o.state == "bf16") return run<tigon::bfloat16, tigon::bfloat16>(o, of...);
  run<tigon::bfloat16>(o, of...);
}

/// Enough for windows that differ, the same for every number of steps.
std::vector<std::int32_t> random_tokens(const run_options& o) {
  rng source(o.seed);
  std::vector<std::int32_t> ids(std::max<std::size_t>(1 << 16, 64 * (o.seq_len + 1)));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(source.below(o.vocab));
  return ids;
}

int train_llama(const run_options& o, const ranks& here) {
  const tigon::communicator_ref comm = here.comm();
  same_options_on_all_ranks(comm, o.given);
  same_on_all_ranks(comm, !o.resume.empty(),
                    "the ranks begin with different options: different --resume, which one has and another has not");
  same_kernels_on_all_ranks(comm);
  check_memory(least_bytes(o, o.windows_of_pass(comm.size())));
  std::string text;
  std::optional<tokenizer> tokens;
  const auto read = [&] {
    if (o.random) {
      tokens = tokenizer::none(o.vocab);
      return;
    }
    text = load_text(o.text);
    tokens = o.bytes ? tokenizer::bytes() : tokenizer::bpe(text, static_cast<int>(o.vocab), o.cache_dir);
  };
  // The first rank trains the tokenizer; the others find it in the cache, if that is theirs too.
  on_all_ranks(comm, [&] {
    if (here.first()) inventory_of(o).check(), read();
  });
  on_all_ranks(comm, [&] {
    if (!here.first()) read();
  });
  same_on_all_ranks(comm, text_hash(text), "the ranks read different texts");
  const tokenizer& pieces = *tokens;
  const std::vector<std::int32_t> ids = o.random ? random_tokens(o) : pieces.encode(text);
  same_on_all_ranks(comm, text_hash({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof ids[0]}),
                    "the ranks read different tokenizers from --cache-dir");
  corpus parts;
  on_all_ranks(comm, [&] { parts = split(ids, o.seq_len); });

  const model_config config = config_of(o);
  const parameter_layout layout(config);
  const std::size_t threads = o.threads != 0 ? o.threads : std::max(1u, std::thread::hardware_concurrency());
  tigon::thread_pool pool(threads);
  std::printf("%s: %zu tokens of a vocabulary of %d, the last %zu held out\n", o.random ? "random" : o.text.c_str(),
              ids.size(), pieces.vocab(), parts.held_out.size());
  std::printf(
      "%.2f million parameters: %zu layers, hidden %zu, intermediate %zu, %zu heads over %zu; %s on %s, %zu %s\n",
      static_cast<double>(layout.total) / 1e6, o.layers, o.hidden, o.intermediate, o.heads, o.kv_heads, o.dtype.c_str(),
      std::string(tigon::default_backend::info.name).c_str(), threads, threads == 1 ? "thread" : "threads");
  if (o.experts != 0)
    std::printf("%zu experts a layer, %zu of them for a token; balance loss times %g\n", o.experts, o.top_k, o.balance);
  if (const std::size_t windows = o.windows_of_pass(comm.size()); windows != o.batch)
    std::printf("%zu micro-batches a step over %zu %s: the losses of one process with --micro-batch %zu\n",
                o.batch / windows, comm.size(), comm.size() == 1 ? "rank" : "ranks", windows);
  std::fflush(stdout);
  const auto training = training_of(o, comm.size(), text_hash(text));
  if (o.dtype == "bf16")
    run_in_bf16(o, config, layout, pieces, parts, training, pool, comm);
  else
    run<float>(o, config, layout, pieces, parts, training, pool, comm);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const ranks here(argc, argv);
  const auto refused = [](const char* sentence, int code) {
    std::fprintf(stderr, "train_llama: %s\n", sentence);
    return code;
  };
  fail_at_limits();
  try {
    const auto parsed = parse_options(argc, argv, here.comm().size());
    on_all_ranks(here.comm(), [&] {
      if (!parsed.refusal.empty()) throw std::runtime_error(parsed.refusal);
    });
    same_on_all_ranks(here.comm(), parsed.options.has_value(), "one rank was asked for --help alone");
    return parsed.options ? train_llama(*parsed.options, here) : 0;
  } catch (const shared_fault& error) {  // on all ranks
    return here.first() ? refused(error.what(), 2) : 2;
  } catch (const std::domain_error& error) {  // the loss, which all ranks have
    return here.first() ? refused(error.what(), 1) : 1;
  } catch (const std::bad_alloc&) {
    return here.leave(refused("a model of these sizes does not fit into memory", 2));
  } catch (const tigon::error& error) {  // scratch memory
    const bool memory = error.code() == tigon::error_code::workspace;
    return here.leave(memory ? refused("a model of these sizes does not fit into memory", 2)
                             : refused(error.what(), 1));
  } catch (const std::runtime_error& error) {  // options, text, tokenizer, checkpoint, files
    return here.leave(refused(error.what(), 2));
  } catch (const std::exception& error) {
    return here.leave(refused(error.what(), 1));
  }
}
