// Training of a folder's model: all of its weights, or adapters beside them.
#ifndef EXAMPLE_FINETUNE_TRAINER_HPP
#define EXAMPLE_FINETUNE_TRAINER_HPP

#include <tigon/comm/communicator.hpp>
#include <tigon/ops/adamw.hpp>
#include <tigon/rows/row.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../../support/profile.hpp"
#include "frozen_model.hpp"
#include "objective.hpp"
#include "options.hpp"
#include "trained.hpp"
#include "windows.hpp"

namespace example {

/// What a step did.
struct step_report {
  double loss = 0;           ///< mean over the targets, the pairs, or the answers with labels
  double gradient_norm = 0;  ///< before clipping
  double rate = 0;
  std::size_t tokens = 0;
  preference_report pairs = {};
};

/// to = from
template <tigon::element T>
void round_to(std::span<const float> from, std::span<T> to, tigon::context& ctx) {
  const tigon::matrix_view<const float> x(from.data(), 1, from.size());
  const tigon::matrix_view<T> y(to.data(), 1, to.size());
  tigon::for_rows<tigon::default_backend>(
      ctx, 1, y.cols, [=] TIGON_FN(auto row) { row.map(tigon::reads(x), tigon::writes(y), [](auto v) { return v; }); });
}

/// A step takes `accumulate` passes of `batch` windows, pairs or answers with labels; its loss is the mean over the
/// terms of all of them. Gradients of sums are added up, and AdamW divides them by the number of terms. Of several
/// ranks, rank r takes passes r, r + ranks, ...; all have all weights and take the same step.
template <tigon::element T>
class finetune_trainer {
 public:
  finetune_trainer(const finetune_options& options, const architecture& a, const weight_layout& layout,
                   const lora_layout& lora, pass_source data, tigon::executor_ref executor,
                   tigon::communicator_ref comm, profile* timed = nullptr)
      : o_(options),
        layout_(layout),
        lora_(lora),
        comm_(comm),
        ctx_(executor, workspace_),
        profile_(timed),
        schedule_(schedule_of(options)),
        data_(std::move(data)),
        model_(a, layout, lora, {most_tokens(options), options.recompute}, ctx_, timed),
        objective_(options.preference, options.distillation, a, most_tokens(options), ctx_, timed) {
    if (lora.empty()) {
      std::vector<float> weights(layout.total);
      read_weights(options.folder, a, layout, weights);
      trained_ = {std::move(weights), decay_groups(layout.tensors)};
      if constexpr (!std::same_as<T, float>) frozen_.matrices.resize(layout.total);
    } else {
      frozen_ = frozen_weights<T>(options.folder, a, layout);
      trained_ = {lora.initial(options.seed), decay_groups(lora.tensors)};
      if constexpr (!std::same_as<T, float>) adapters_.resize(lora.total);
    }
    values_have_changed();
  }

  std::size_t steps_done() const { return step_; }
  double rate() const { return schedule_(step_); }
  pass_source& data() { return data_; }
  trained_parameters& trained() { return trained_; }
  const trained_parameters& trained() const { return trained_; }
  const frozen_weights<T>& frozen() const { return frozen_; }
  const frozen_model<T>* teacher() const { return objective_.teacher(); }
  std::size_t peak_bytes() const {
    return model_.peak_bytes() + (teacher() != nullptr ? teacher()->bytes() - ctx_.workspace().high_water() : 0);
  }

  /// Gives answers the log-probabilities of the reference: a folder's model, or this one before its first step. Of
  /// several ranks each computes a share, and share_reference() has to follow. Returns a hash of its weights.
  std::uint64_t refer(std::initializer_list<training_data*> all) {
    const auto by = [&](double softcap, const auto& answer) {
      for (training_data* one : all)
        one->set_reference(log_probabilities<T>(model_.doors(), one->samples(), {most_tokens(o_), softcap}, answer,
                                                {comm_.rank(), comm_.size()}));
    };
    if (o_.reference.empty()) {
      by(model_.of().logit_softcap, [&](const packed_documents& of) { return model_.answer(weights(), of); });
      return lora_.empty() ? hash_of(std::as_bytes(std::span(trained_.values))) : frozen_.hash();
    }
    frozen_model<T> reference(o_.reference, most_tokens(o_), ctx_);
    if (reference.of().vocab != model_.of().vocab)
      throw std::runtime_error("the reference in " + o_.reference + " has another vocabulary");
    by(reference.of().logit_softcap, [&](const packed_documents& of) { return reference.answer(of); });
    return reference.hash();
  }

  /// All ranks call it, with data of the same samples: each gets the shares of the others.
  void share_reference(std::initializer_list<training_data*> all) const {
    if (comm_.size() == 1) return;
    for (training_data* one : all) {
      std::vector<float> mine;
      for (const std::vector<float>& of_sample : one->reference())
        mine.insert(mine.end(), of_sample.begin(), of_sample.end());
      std::vector<float> sum(mine.size()), scratch(comm_.size() << 16);
      tigon::comm::reduce_in_rank_order<float>(comm_, mine, std::span(sum), scratch, std::plus<>());
      auto from = sum.begin();
      for (std::vector<float>& of_sample : one->reference()) {
        std::copy_n(from, of_sample.size(), of_sample.begin());
        from += static_cast<std::ptrdiff_t>(of_sample.size());
      }
    }
  }

  /// After trained() was written to from outside.
  void restored(std::size_t steps) {
    step_ = steps;
    values_have_changed();
  }

  step_report step() {
    const auto timed = profile::step(profile_);
    step_report out;
    double sum = 0, terms = 0;
    bool first = true;
    for (std::size_t number = 0; number < o_.accumulate; ++number) {
      const training_pass pass = data_.next(o_.batch);
      terms += pass.terms(), out.tokens += pass.of.ids.size();
      if (number % comm_.size() != comm_.rank()) continue;
      model_gradients to;
      (lora_.empty() ? to.weights : to.adapters) = trained_.gradient;
      to.mode = std::exchange(first, false) ? tigon::gradient::overwrite : tigon::gradient::accumulate;
      sum += objective_(model_, weights(), to, pass);
    }
    out.loss = of_ranks(sum) / terms, out.rate = rate(), out.pairs = report_of_ranks();
    add_gradients_of_ranks();
    const auto part = profile::part(profile_, "update");
    out.gradient_norm = update(1 / terms);
    return out;
  }

  /// Mean loss over the terms of these passes, as they are; ranks share them.
  double evaluate(std::span<const training_pass> passes) {
    double sum = 0, terms = 0;
    for (std::size_t i = 0; i < passes.size(); ++i) {
      terms += passes[i].terms();
      if (i % comm_.size() == comm_.rank()) sum += objective_(model_, weights(), {}, passes[i]);
    }
    (void)objective_.take_report();
    return of_ranks(sum) / terms;
  }

 private:
  static std::size_t most_tokens(const finetune_options& o) {
    return (o.preference.paired() ? 2 : 1) * o.batch * o.seq_len;
  }

  model_weights<T> weights() const {
    if constexpr (std::same_as<T, float>) {
      if (lora_.empty()) return {trained_.values, trained_.values};
      return frozen_.view(trained_.values);
    } else {
      if (lora_.empty()) return {frozen_.matrices, trained_.values};
      return frozen_.view(adapters_);
    }
  }

  /// The sum over the ranks, in their order.
  double of_ranks(double mine) const {
    std::vector<double> all(comm_.size());
    tigon::comm::all_gather<double>(comm_, {&mine, 1}, std::span(all));
    double sum = 0;
    for (const double one : all) sum += one;
    return sum;
  }
  preference_report report_of_ranks() {
    const preference_report mine = objective_.take_report();
    if (o_.preference.loss == preference_loss::none) return mine;
    return {of_ranks(mine.pairs), of_ranks(mine.won), of_ranks(mine.margin), of_ranks(mine.kl)};
  }
  void add_gradients_of_ranks() {
    if (comm_.size() == 1) return;
    const auto part = profile::part(profile_, "exchange");
    constexpr std::size_t block = std::size_t{1} << 16;
    gathered_.resize(comm_.size() * block);
    for (std::size_t begin = 0; begin < trained_.gradient.size(); begin += block) {
      const auto mine = std::span(trained_.gradient).subspan(begin, std::min(block, trained_.gradient.size() - begin));
      tigon::comm::all_gather<float>(comm_, mine, std::span(gathered_).first(comm_.size() * mine.size()));
      for (std::size_t i = 0; i < mine.size(); ++i) {
        mine[i] = gathered_[i];
        for (std::size_t r = 1; r < comm_.size(); ++r) mine[i] += gathered_[r * mine.size() + i];
      }
    }
  }

  double update(double gradient_scale) {
    const std::span<T> rounded = this->rounded();
    std::vector<tigon::adamw_parameter<float, float, float, T>> list;
    for (const decay_group& group : trained_.groups) {
      const auto of = [&](auto all) { return all.subspan(group.begin, group.end - group.begin); };
      list.push_back({of(std::span(trained_.values)), of(std::span<const float>(trained_.gradient)),
                      of(std::span(trained_.first_moment)), of(std::span(trained_.second_moment)),
                      rounded.empty() ? std::span<T>() : of(rounded), group.decay});
    }
    tigon::adamw_options opt;
    opt.learning_rate = rate(), opt.beta1 = o_.beta1, opt.beta2 = o_.beta2, opt.eps = o_.eps;
    opt.weight_decay = o_.weight_decay, opt.max_norm = o_.clip, opt.gradient_scale = gradient_scale;
    opt.step = ++step_;
    const auto timed =
        profile::call(profile_, "adamw", {0, static_cast<double>(trained_.values.size() * (7 * 4 + sizeof(T)))});
    return tigon::adamw(list, opt, ctx_);
  }

  /// Where the trained parameters are kept in T as well; empty for f32.
  std::span<T> rounded() {
    if constexpr (std::same_as<T, float>)
      return {};
    else
      return lora_.empty() ? std::span<T>(frozen_.matrices) : std::span<T>(adapters_);
  }
  void values_have_changed() {
    if constexpr (!std::same_as<T, float>) round_to<T>(trained_.values, rounded(), ctx_);
  }

  const finetune_options& o_;
  const weight_layout& layout_;
  const lora_layout& lora_;
  tigon::communicator_ref comm_;
  tigon::workspace workspace_;
  tigon::context ctx_;
  profile* profile_;
  finetune::schedule schedule_;
  pass_source data_;
  trained_parameters trained_;
  frozen_weights<T> frozen_;  ///< beside adapters; with all weights trained in 16 bits, their roundings
  std::vector<T> adapters_;   ///< rounded, where T has 16 bits
  causal_model<T> model_;
  objective<T> objective_;
  std::vector<float> gathered_;
  std::size_t step_ = 0;
};

}  // namespace example
#endif
