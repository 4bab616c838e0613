// A run from its weights to what it leaves, in one element type; a source for each, as either compiles for long.
#ifndef EXAMPLE_FINETUNE_RUN_HPP
#define EXAMPLE_FINETUNE_RUN_HPP

#include <tigon/comm/communicator.hpp>
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

#include "../../support/output_file.hpp"
#include "../../support/profile.hpp"
#include "../../support/profile_table.hpp"
#include "../../support/progress.hpp"
#include "../../support/ranks.hpp"
#include "../../support/svg.hpp"
#include "checkpoint.hpp"
#include "packing.hpp"
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

/// What a loss is a mean over.
enum class term { token, pair, answer };

/// Of pairs: the share of those whose chosen answer has the larger reward, and the mean difference of the rewards. Of
/// answers with labels: the share of those whose reward is on their side of the baseline, how far, and KL.
inline void write_csv(const std::string& path, const std::vector<entry>& run, term of_loss) {
  std::ostringstream out;
  out << "step,learning_rate,loss,gradient_norm,tokens,held_out_loss";
  out << (of_loss == term::token  ? "\n"
          : of_loss == term::pair ? ",reward_accuracy,reward_margin\n"
                                  : ",reward_accuracy,reward_margin,kl\n");
  for (const entry& e : run) {
    out << e.step << ',' << csv_number(e.of.rate) << ',' << csv_number(e.of.loss) << ','
        << csv_number(e.of.gradient_norm) << ',' << e.of.tokens << ',' << csv_number(e.held_out);
    const preference_report& p = e.of.pairs;
    if (of_loss != term::token) out << ',' << csv_number(p.won / p.pairs) << ',' << csv_number(p.margin / p.pairs);
    if (of_loss == term::answer) out << ',' << csv_number(p.kl / p.pairs);
    out << '\n';
  }
  replace_file(path, out.view());
}

inline void write_svg(const std::string& path, const std::vector<entry>& run, const char* of_term) {
  line_chart chart{"Fine-tuning loss", "step", of_term, {{"training", {}}, {"held out", {}}}};
  for (const entry& e : run) {
    chart.series[0].points.emplace_back(static_cast<double>(e.step), e.of.loss);
    if (!std::isnan(e.held_out)) chart.series[1].points.emplace_back(static_cast<double>(e.step), e.held_out);
  }
  if (chart.series[1].points.size() < 2) chart.series.pop_back();
  save_svg(path, chart);
}

inline std::uint64_t hash_of_data(const training_data& data) {
  std::uint64_t hash = data.samples().size();
  if (!data.labels().empty()) hash = hash_of(std::as_bytes(data.labels()), hash);
  for (const sample& s : data.samples())
    hash = hash_of(std::as_bytes(std::span(s.targets)), hash_of(std::as_bytes(std::span(s.ids)), hash));
  return hash;
}

/// All that decides the bits of the steps to come, but for the hashes of other models. `frozen` is the hash of the
/// weights beside adapters. Falling rates depend on the number of steps.
inline run_identity identity_of(const finetune_options& o, const training_data& data, std::uint64_t frozen) {
  run_identity out = numbers_of(o.given);
  const std::string config = finetune::read_file(std::filesystem::path(o.folder) / "config.json");
  out["config"] = exact_text(hash_of(std::as_bytes(std::span(config))));
  out["data"] = exact_text(hash_of_data(data));
  out["weights beside adapters"] = exact_text(frozen);
  out["steps"] = o.schedule == "constant" ? "any" : exact_text(o.steps);
  out["teacher"] = out["reference"] = "none";
  return out;
}

/// Trains to the last step, or to where held-out loss no longer falls.
template <tigon::element T>
class fine_tuning {
 public:
  fine_tuning(const finetune_options& o, const architecture& a, run_data data, tigon::thread_pool& pool,
              tigon::communicator_ref comm)
      : o_(o), a_(a), comm_(comm), layout_(a), lora_(layout_, o.lora) {
    if (o.profile || !o.trace.empty()) timed_.emplace(pool);
    const tigon::executor_ref executor = timed_ ? tigon::executor_ref(*timed_) : tigon::executor_ref(pool);
    training_data held_out({}, false, 1);
    on_all_ranks(comm, [&] { held_out = begin(std::move(data), executor); });
    if (comm.size() > 1)
      same_on_all_ranks(comm, hash_of_beginning(), "the ranks begin with different options, data or weights");
    same_on_all_ranks(comm, hash_of_data(held_out), "the ranks evaluate different data");
    if (o_.preference.has_reference()) trainer_->share_reference({&trainer_->data().data(), &held_out});
    held_out_ = held_out.passes(held_out.paired() ? o_.batch : 1);
  }

  void run(std::size_t threads) {
    const architecture& a = a_;
    const trained_parameters& trained = trainer_->trained();
    std::printf(
        "%s: %s, %zu layers, hidden %zu, %.2f million parameters, %.2f million of them trained; %s on %s, %zu %s\n",
        o_.folder.c_str(), a.model_type.c_str(), a.layers, a.hidden, millions(layout_.total),
        lora_.empty() ? millions(layout_.total) : millions(trained.values.size()), o_.dtype.c_str(),
        std::string(tigon::default_backend::info.name).c_str(), threads, threads == 1 ? "thread" : "threads");
    const training_data& data = trainer_->data().data();
    if (data.paired())
      std::printf("%zu %s of at most %zu tokens\n", data.units(),
                  data.labels().empty() ? "pairs of answers" : "answers with labels", o_.seq_len);
    else
      std::printf("%zu samples in %zu windows of at most %zu tokens\n", data.samples().size(), data.units(),
                  o_.seq_len);
    if (comm_.size() > 1) std::printf("%zu passes a step over %zu ranks\n", o_.accumulate, comm_.size());
    std::fflush(stdout);
    const std::size_t begin = trainer_->steps_done();
    const std::size_t end = o_.stop_at != 0 ? o_.stop_at : o_.steps;
    if (begin == end && lacks_its_model()) {  // a state whose model could not be saved as it was asked for
      on_all_ranks(comm_, [&] {
        if (comm_.rank() == 0) save_weights(true);
      });
      std::printf("saved in %s\n", o_.out.c_str());
      return;
    }
    if (begin >= end)
      throw shared_fault("the state in " + o_.out + " has " + std::to_string(begin) +
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
      const bool saves = !o_.out.empty() && (ends || (o_.save_every != 0 && e.step % o_.save_every == 0));
      on_all_ranks(comm_, [&] {  // the others end with the first rank where it cannot save
        if (saves && comm_.rank() == 0) save(ends);
      });
    }
    report();
    if (o_.profile && timed_) print_profile(*timed_, threads, o_.dtype == "bf16");
    on_all_ranks(comm_, [&] {
      if (comm_.rank() == 0)
        write_files(!data.paired() ? term::token : data.labels().empty() ? term::pair : term::answer);
    });
  }

 private:
  /// Returns what is evaluated.
  training_data begin(run_data data, tigon::executor_ref executor) {
    const bool paired = data.paired;
    training_data held_out(std::move(data.held_out), paired, o_.batch * o_.seq_len, std::move(data.held_out_labels));
    training_data train(std::move(data.train), paired, o_.seq_len, std::move(data.train_labels));
    trainer_.emplace(o_, a_, layout_, lora_, pass_source(std::move(train), o_.seed), executor, comm_,
                     timed_ ? &*timed_ : nullptr);
    identity_ = identity_of(o_, trainer_->data().data(), lora_.empty() ? 0 : trainer_->frozen().hash());
    if (trainer_->teacher() != nullptr) identity_["teacher"] = std::to_string(trainer_->teacher()->hash());
    if (o_.preference.has_reference())
      identity_["reference"] = std::to_string(trainer_->refer({&trainer_->data().data(), &held_out}));
    if (o_.resume) resume();
    if (!o_.out.empty() && saves_model()) expect_saveable_start();
    return held_out;
  }

  /// Of all that the steps to come, and their end, depend on.
  std::uint64_t hash_of_beginning() const {
    const trained_parameters& trained = trainer_->trained();
    std::uint64_t hash = hash_of(std::as_bytes(std::span(&at_, 1)));
    for (const auto* const part : {&trained.values, &trained.first_moment, &trained.second_moment})
      hash = hash_of(std::as_bytes(std::span(*part)), hash);
    for (const auto& [key, value] : identity_) hash = hash_of(std::as_bytes(std::span(value)), hash);
    return hash;
  }

  void write_files(term of_loss) const {
    if (!o_.csv.empty()) write_csv(o_.csv, curve_, of_loss);
    constexpr const char* of_term[] = {"loss per token (nats)", "loss per pair", "loss per answer"};
    if (!o_.svg.empty()) write_svg(o_.svg, curve_, of_term[static_cast<int>(of_loss)]);
    if (!o_.trace.empty()) replace_file(o_.trace, timed_->trace());
  }

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
      throw std::runtime_error("the state in " + o_.out + " is behind the end of the data");
    trainer_->restored(static_cast<std::size_t>(at_.step));
  }

  /// The state first: after a crash between the two it is the newer one, and the model that of an earlier step.
  void save(bool last) {
    const std::filesystem::path out = o_.out;
    std::filesystem::create_directories(out);
    at_.step = static_cast<std::int64_t>(trainer_->steps_done());
    at_.epoch = static_cast<std::int64_t>(trainer_->data().at().epoch);
    at_.taken = static_cast<std::int64_t>(trainer_->data().at().taken);
    if (!is_finite(trainer_->trained()))
      throw std::domain_error("the weights or the moments of AdamW are no longer finite at step " +
                              std::to_string(at_.step) + ", which is not saved; lower --lr");
    save_state(out / state_name, trainer_->trained(), at_, identity_);
    try {
      save_weights(last);
    } catch (const std::runtime_error& fault) {
      throw std::runtime_error(std::string(fault.what()) + "; the state of step " + std::to_string(at_.step) +
                               " is saved in " + o_.out + ", and --resume goes on from it");
    }
  }
  void save_weights(bool last) {
    const std::filesystem::path out = o_.out;
    if (!saves_model())
      save_adapters(o_.folder, out, lora_, trainer_->trained().values);
    else if (lora_.empty())
      save_model(o_.folder, out, layout_, trainer_->trained().values, o_.save_dtype);
    else if (last)
      save_model(o_.folder, out, layout_, merged(), o_.save_dtype);
  }
  bool saves_model() const { return lora_.empty() || o_.merge; }

  /// Before the first step: what it begins with, in the type of --save-dtype.
  void expect_saveable_start() const {
    if (o_.save_dtype == "f32") return;
    const std::span<const float> all = trainer_->trained().values;
    if (lora_.empty())
      for (const weight_tensor& t : layout_.tensors) expect_saveable(t, weight_layout::of(all, t), o_.save_dtype);
    std::vector<float> values;
    const auto memory = [&](const weight_tensor& t) {
      values.resize(t.size());
      return std::span(values);
    };
    if (!lora_.empty())
      read_weights(o_.folder, a_, layout_, memory, [&](const weight_tensor& t, std::span<const float> from) {
        expect_saveable(t, from, o_.save_dtype);
      });
  }

  /// Whether a state is resumed, and the model beside it is missing or of another type than --save-dtype.
  bool lacks_its_model() const {
    if (!o_.resume || !saves_model()) return false;
    const std::filesystem::path path = std::filesystem::path(o_.out) / "model.safetensors";
    std::error_code code;
    if (!std::filesystem::exists(path, code)) return true;
    const dtype wanted = o_.save_dtype == "f32" ? dtype::f32 : o_.save_dtype == "bf16" ? dtype::bf16 : dtype::f16;
    const auto saved = safetensors_file::map(path);
    return saved.tensors().empty() || saved.tensors().begin()->second.type != wanted;
  }

  /// The folder's weights with the adapters added in.
  std::vector<float> merged() {
    std::vector<float> out(layout_.total);
    read_weights(o_.folder, a_, layout_, out);
    lora_.merge(layout_, trainer_->trained().values, out);
    return out;
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
    if (const preference_report& p = last.of.pairs; p.pairs != 0)
      std::printf(", %.0f %% of the %s, margin %.3f", 100 * p.won / p.pairs,
                  o_.preference.paired() ? "pairs in order" : "answers on their side of the baseline",
                  p.margin / p.pairs);
    std::printf(" after %zu steps; %.0f tokens/s (median step), peak of activations %.1f MiB\n", last.step, speed(),
                static_cast<double>(trainer_->peak_bytes()) / (1 << 20));
    if (!o_.out.empty()) std::printf("saved in %s\n", o_.out.c_str());
  }

  const finetune_options& o_;
  const architecture& a_;
  tigon::communicator_ref comm_;
  weight_layout layout_;
  lora_layout lora_;
  std::optional<profile> timed_;
  std::optional<finetune_trainer<T>> trainer_;
  std::vector<training_pass> held_out_;
  run_identity identity_;
  run_position at_;
  std::vector<entry> curve_;
};

}  // namespace example
#endif
