// A run from its weights to what it leaves, in one element type; a source for each, as either compiles for long.
#ifndef EXAMPLE_FINETUNE_RUN_HPP
#define EXAMPLE_FINETUNE_RUN_HPP

#include <tigon/core/executor.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../support/output_file.hpp"
#include "../support/profile.hpp"
#include "../support/profile_table.hpp"
#include "../support/progress.hpp"
#include "../support/svg.hpp"
#include "checkpoint.hpp"
#include "trainer.hpp"

namespace example {

inline constexpr double none = std::numeric_limits<double>::quiet_NaN();

/// A step for the table and the picture; held_out is NaN where it was not asked for.
struct entry {
  std::size_t step;
  step_report of;
  double held_out;
  double seconds = 0;  ///< of training
};

inline void write_csv(const std::string& path, const std::vector<entry>& run) {
  std::ostringstream out;
  out << "step,learning_rate,loss,gradient_norm,tokens,held_out_loss\n";
  for (const entry& e : run)
    out << e.step << ',' << csv_number(e.of.rate) << ',' << csv_number(e.of.loss) << ','
        << csv_number(e.of.gradient_norm) << ',' << e.of.tokens << ',' << csv_number(e.held_out) << '\n';
  replace_file(path, out.view());
}

inline void write_svg(const std::string& path, const std::vector<entry>& run) {
  line_chart chart{"Fine-tuning loss", "step", "loss per token (nats)", {{"training", {}}, {"held out", {}}}};
  for (const entry& e : run) {
    chart.series[0].points.emplace_back(static_cast<double>(e.step), e.of.loss);
    if (!std::isnan(e.held_out)) chart.series[1].points.emplace_back(static_cast<double>(e.step), e.held_out);
  }
  if (chart.series[1].points.size() < 2) chart.series.pop_back();
  save_svg(path, chart);
}

inline std::uint64_t hash_of_samples(const std::vector<sample>& samples) {
  std::uint64_t hash = samples.size();
  for (const sample& s : samples)
    hash = hash_of(std::as_bytes(std::span(s.targets)), hash_of(std::as_bytes(std::span(s.ids)), hash));
  return hash;
}

/// All that decides the bits of the steps to come.
inline run_identity identity_of(const finetune_options& o, const std::vector<sample>& samples,
                                const std::vector<float>& base) {
  std::ostringstream method, optimizer;
  method << "full";
  if (o.lora.rank != 0) {
    method.str("");
    method << "rank " << o.lora.rank << " alpha " << o.lora.alpha << " of";
    for (const std::string& target : o.lora.targets) method << ' ' << target;
    method << " beside weights " << hash_of(std::as_bytes(std::span(base)));
  }
  optimizer.precision(17);
  for (const double v : {o.lr, o.min_lr, o.weight_decay, o.beta1, o.beta2, o.eps, o.clip}) optimizer << v << ' ';
  optimizer << o.schedule << ' ' << o.warmup << ' ' << o.steps;
  const std::string config = finetune::read_file(std::filesystem::path(o.folder) / "config.json");
  const std::uint64_t of_config = hash_of(std::as_bytes(std::span(config)));
  return {{"config", std::to_string(of_config)},
          {"method", method.str()},
          {"optimizer", optimizer.str()},
          {"data", std::to_string(hash_of_samples(samples))},
          {"windows", std::to_string(o.seq_len) + " tokens, " + std::to_string(o.batch) + " a pass, " +
                          std::to_string(o.accumulate) + " passes"},
          {"seed", std::to_string(o.seed)},
          {"dtype", o.dtype}};
}

/// Trains to the last step, or to where held-out loss no longer falls.
template <tigon::element T>
class fine_tuning {
 public:
  fine_tuning(const finetune_options& o, const architecture& a, std::vector<sample> train,
              const std::vector<sample>& held_out, tigon::thread_pool& pool)
      : o_(o), layout_(a), lora_(layout_, o.lora) {
    std::vector<float> weights(layout_.total);
    read_weights(o.folder, a, layout_, weights);
    identity_ = identity_of(o, train, weights);
    held_out_ = windows_of(held_out, o.batch * o.seq_len);
    if (o.profile || !o.trace.empty()) timed_.emplace(pool);
    const tigon::executor_ref executor = timed_ ? tigon::executor_ref(*timed_) : tigon::executor_ref(pool);
    trainer_.emplace(o, a, layout_, lora_, std::move(weights), window_source(std::move(train), o.seq_len, o.seed),
                     executor, timed_ ? &*timed_ : nullptr);
    if (o.resume) resume();
  }

  void run(const architecture& a, std::size_t threads) {
    const trained_parameters& trained = trainer_->trained();
    std::printf(
        "%s: %s, %zu layers, hidden %zu, %.2f million parameters, %.2f million of them trained; %s on %s, %zu %s\n",
        o_.folder.c_str(), a.model_type.c_str(), a.layers, a.hidden, millions(layout_.total),
        lora_.empty() ? millions(layout_.total) : millions(trained.values.size()), o_.dtype.c_str(),
        std::string(tigon::default_backend::info.name).c_str(), threads, threads == 1 ? "thread" : "threads");
    std::printf("%zu samples in %zu windows of at most %zu tokens\n", trainer_->data().samples().size(),
                trainer_->data().windows(), o_.seq_len);
    std::fflush(stdout);
    const std::size_t begin = trainer_->steps_done();
    const std::size_t end = o_.stop_at != 0 ? o_.stop_at : o_.steps;
    if (begin >= end)
      throw std::runtime_error("the state in " + o_.out + " has " + std::to_string(begin) +
                               " steps already, and the run ends after " + std::to_string(end));
    progress bar("fine-tuning", end, o_.batch * o_.accumulate * o_.seq_len);
    bar.start_at(begin);
    std::size_t tokens = 0;
    bool ends = false;
    while (!ends) {
      const auto begun = std::chrono::steady_clock::now();
      entry e{trainer_->steps_done() + 1, trainer_->step(), none};
      e.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
      if (!std::isfinite(e.of.loss) || !std::isfinite(e.of.gradient_norm))
        throw std::domain_error("the loss or its gradient is no longer finite at step " + std::to_string(e.step) +
                                "; lower --lr");
      ends = e.step == end;
      if (!held_out_.empty() && (ends || (o_.eval_every != 0 && e.step % o_.eval_every == 0))) {
        e.held_out = trainer_->evaluate(held_out_);
        ends = ends || no_longer_better(e.held_out);
      }
      bar.count_tokens(tokens += e.of.tokens);
      bar.update(e.step, e.of.loss, std::isnan(e.held_out) ? "" : "  held out " + four_digits(e.held_out));
      curve_.push_back(e);
      if (!o_.out.empty() && (ends || (o_.save_every != 0 && e.step % o_.save_every == 0))) save(ends);
    }
    report();
    if (o_.profile && timed_) print_profile(*timed_, threads, o_.dtype == "bf16");
    if (!o_.csv.empty()) write_csv(o_.csv, curve_);
    if (!o_.svg.empty()) write_svg(o_.svg, curve_);
    if (!o_.trace.empty()) replace_file(o_.trace, timed_->trace());
  }

 private:
  static double millions(std::size_t n) { return static_cast<double>(n) / 1e6; }
  static std::string four_digits(double v) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4f", v);
    return text;
  }

  bool no_longer_better(double held_out) {
    if (held_out < at_.best)
      at_.best = held_out, at_.evaluations_since_best = 0;
    else
      ++at_.evaluations_since_best;
    return o_.patience != 0 && static_cast<std::size_t>(at_.evaluations_since_best) >= o_.patience;
  }

  void resume() {
    at_ = load_state(std::filesystem::path(o_.out) / state_name, trainer_->trained(), identity_);
    if (!trainer_->data().go_to({static_cast<std::uint64_t>(at_.epoch), static_cast<std::size_t>(at_.taken)}))
      throw std::runtime_error("the state in " + o_.out + " stands behind the end of the data");
    trainer_->restored(static_cast<std::size_t>(at_.step));
  }

  /// The state first: after a crash between the two it is the newer one, and the model that of an earlier step.
  void save(bool last) {
    const std::filesystem::path out = o_.out;
    at_.step = static_cast<std::int64_t>(trainer_->steps_done());
    at_.epoch = static_cast<std::int64_t>(trainer_->data().at().epoch);
    at_.taken = static_cast<std::int64_t>(trainer_->data().at().taken);
    save_state(out / state_name, trainer_->trained(), at_, identity_);
    if (!lora_.empty() && !o_.merge)
      save_adapters(o_.folder, out, lora_, trainer_->trained().values);
    else if (lora_.empty())
      save_model(o_.folder, out, layout_, trainer_->base(), o_.save_dtype);
    else if (last)
      save_model(o_.folder, out, layout_, trainer_->merged(), o_.save_dtype);
  }

  /// Tokens per second of the median step; the first touches memory for the first time and is left out.
  double speed() const {
    std::vector<double> rates;
    for (const entry& e : curve_)
      if (&e != &curve_.front() || curve_.size() == 1) rates.push_back(static_cast<double>(e.of.tokens) / e.seconds);
    const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
    std::nth_element(rates.begin(), middle, rates.end());
    return *middle;
  }

  void report() const {
    const entry& last = curve_.back();
    std::printf("\nloss %.4f", last.of.loss);
    if (!std::isnan(last.held_out)) std::printf(", held-out loss %.4f", last.held_out);
    std::printf(" after %zu steps; %.0f tokens/s (median step), peak of activations %.1f MiB\n", last.step, speed(),
                static_cast<double>(trainer_->peak_bytes()) / (1 << 20));
    if (!o_.out.empty()) std::printf("saved in %s\n", o_.out.c_str());
  }

  const finetune_options& o_;
  weight_layout layout_;
  lora_layout lora_;
  std::optional<profile> timed_;
  std::optional<finetune_trainer<T>> trainer_;
  std::vector<window> held_out_;
  run_identity identity_;
  run_position at_;
  std::vector<entry> curve_;
};

}  // namespace example
#endif
