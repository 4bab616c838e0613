// What a run minimises: cross entropy, a loss on answers, or the divergence from a teacher beside cross entropy.
#ifndef EXAMPLE_FINETUNE_OBJECTIVE_HPP
#define EXAMPLE_FINETUNE_OBJECTIVE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "frozen_model.hpp"
#include "objective_options.hpp"
#include "windows.hpp"

namespace example {

/// Of the pairs that were seen, how many have a larger reward for the chosen answer, and the sum of the differences. A
/// reward is beta times a log-probability, less the reference's. Of answers with labels, how many have a reward on
/// their side of the baseline, beta kl; the sum of how far they are there; and that of kl.
struct preference_report {
  double pairs = 0, won = 0, margin = 0, kl = 0;
};

/// Documents of a pass as the losses on answers want them: as many rows each as the longest has.
template <tigon::element T>
class pair_rows {
 public:
  using operators = model_operators<T>;

  /// How a model's answers are weighed; `kl` is of answers with labels.
  struct terms {
    const preference_options& options;
    double softcap;
    float kl;
  };
  double loss(operators& doors, const typename operators::head_layer& layer,
              const typename operators::head_gradients& to, const training_pass& pass, const terms& by,
              preference_report& report) {
    const preference_options& o = by.options;
    const float kl = by.kl;
    const window& of = pass.of;
    const std::size_t documents = of.begins.size() - 1, width = layer.x.cols;
    std::size_t length = 0;
    for (std::size_t d = 0; d < documents; ++d) length = std::max(length, end(of, d) - begin(of, d));
    x_.resize(documents * length * width), dx_.resize(to.dx.data == nullptr ? 0 : x_.size());
    targets_.assign(documents * length, finetune::not_counted);
    reference_.assign(pass.reference.empty() ? 0 : targets_.size(), 0.0f);
    const auto each_row = [&](const auto& fn) {
      for (std::size_t d = 0; d < documents; ++d)
        for (std::size_t i = begin(of, d); i < end(of, d); ++i) fn(i, d * length + i - begin(of, d));
    };
    each_row([&](std::size_t i, std::size_t row) {
      std::copy_n(layer.x.row(i), width, x_.begin() + static_cast<std::ptrdiff_t>(row * width));
      targets_[row] = of.targets[i];
      if (!reference_.empty()) reference_[row] = pass.reference[i];
    });
    typename operators::head_gradients padded = to;
    if (!dx_.empty()) padded.dx = {dx_.data(), targets_.size(), width};
    std::vector<float> rewards(documents);
    float loss = 0;
    const typename operators::head_layer rows{matrix<const T>(x_.data(), targets_.size(), width), layer.w};
    const matrix<const std::int32_t> targets(targets_.data(), documents, length);
    if (pass.desirable.empty()) {
      tigon::preference_results<float> results{.loss = std::span(&loss, 1)};
      results.chosen_rewards = std::span(rewards).first(pass.pairs);
      results.rejected_rewards = std::span(rewards).last(pass.pairs);
      doors.preference(rows, targets, o, by.softcap, reference_, results, padded);
    } else {
      tigon::unpaired_results<float> results{.loss = std::span(&loss, 1)};
      results.rewards = rewards;
      doors.labelled_preference(rows, {tigon::token_ids(targets), pass.desirable}, o, by.softcap, kl, reference_,
                                results, padded);
    }
    if (!dx_.empty())
      each_row([&](std::size_t i, std::size_t row) {
        std::copy_n(dx_.begin() + static_cast<std::ptrdiff_t>(row * width), width, to.dx.row(i));
      });
    report.pairs += static_cast<double>(pass.pairs), report.kl += static_cast<double>(pass.pairs) * kl;
    const double baseline = o.beta * static_cast<double>(kl);
    for (std::size_t i = 0; i < pass.pairs; ++i) {
      const double own = static_cast<double>(rewards[i]);
      const double margin = pass.desirable.empty()   ? own - static_cast<double>(rewards[pass.pairs + i])
                            : pass.desirable[i] != 0 ? own - baseline
                                                     : baseline - own;
      report.won += margin > 0, report.margin += margin;
    }
    return static_cast<double>(loss);
  }

 private:
  static std::size_t begin(const window& of, std::size_t d) { return static_cast<std::size_t>(of.begins[d]); }
  static std::size_t end(const window& of, std::size_t d) { return begin(of, d + 1); }

  std::vector<T> x_, dx_;
  std::vector<std::int32_t> targets_;
  std::vector<float> reference_;
};

/// A part of the windows of something: every `of`-th, from number `first` on.
struct share_of_windows {
  std::size_t first = 0, of = 1;
};

/// Of a model that answers: what it takes at once, and the cap of its logits.
struct answering {
  std::size_t most_tokens;
  double softcap = 0;
};

/// log p of every target of the samples by a model: answer(documents) is its head. 0 outside the share.
template <tigon::element T, class Answer>
std::vector<std::vector<float>> log_probabilities(model_operators<T>& doors, const std::vector<sample>& samples,
                                                  answering how, const Answer& answer, share_of_windows share = {}) {
  std::vector<std::vector<float>> out(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) out[i].resize(samples[i].ids.size());
  const auto windows = finetune::pack(samples, how.most_tokens);
  for (std::size_t number = share.first; number < windows.size(); number += share.of) {
    const std::vector<finetune::slice>& slices = windows[number];
    const window of = finetune::make_window(samples, slices, how.most_tokens);
    std::vector<float> values(of.ids.size());
    doors.log_probabilities(answer(documents_of(of)), of.targets, how.softcap, values);
    auto from = values.begin();
    for (const finetune::slice& part : slices) {
      const auto to = static_cast<std::ptrdiff_t>(part.first), count = static_cast<std::ptrdiff_t>(part.count);
      std::copy_n(from, count, out[part.sample].begin() + to);
      from += count;
    }
  }
  return out;
}

template <tigon::element T>
class objective {
 public:
  objective(const preference_options& preference, const distillation_options& distillation, const architecture& a,
            std::size_t most_tokens, tigon::context& ctx, profile* timed = nullptr)
      : preference_(preference), distillation_(distillation), profile_(timed) {
    if (distillation_.teacher.empty()) return;
    teacher_ = std::make_unique<frozen_model<T>>(distillation_.teacher, most_tokens, ctx, timed);
    if (teacher_->of().vocab < a.vocab)
      throw std::runtime_error("the teacher in " + distillation_.teacher + " has a vocabulary of " +
                               std::to_string(teacher_->of().vocab) + ", and the model one of " +
                               std::to_string(a.vocab));
  }

  /// The loss of a pass, a sum over its terms, and with gradients that have memory those.
  double operator()(causal_model<T>& model, const model_weights<T>& weights, const model_gradients& to,
                    const training_pass& pass) {
    const packed_documents of = documents_of(pass.of);
    const auto run = [&](const auto& head) {
      return to.weights.empty() && to.adapters.empty() ? model.loss(weights, of, pass.terms(), head)
                                                       : model.step(weights, to, of, pass.terms(), head);
    };
    if (pass.pairs != 0) {
      const float kl = pass.desirable.empty() ? 0.0f : baseline(model, weights, pass);
      return run([&](const auto& layer, const auto& gradients) {
        return rows_.loss(model.doors(), layer, gradients, pass, {preference_, model.of().logit_softcap, kl}, report_);
      });
    }
    if (!teacher_) return run(model.cross_entropy(of));
    const auto teacher = [&] {
      const auto timed = profile::part(profile_, "teacher");
      return teacher_->answer(of);
    }();
    return run([&](const auto& layer, const auto& gradients) {
      return model.doors().distillation({layer, model.of().logit_softcap}, {teacher, teacher_->of().logit_softcap},
                                        of.targets, distillation_, gradients);
    });
  }

  /// Of the pairs since the last call.
  preference_report take_report() { return std::exchange(report_, {}); }
  const frozen_model<T>* teacher() const { return teacher_.get(); }

 private:
  /// KTO's estimate of how far the model is from the reference, of prompts with others' answers: the mean of log p less
  /// the reference's, or 0 where that is negative. A constant: nothing is learned from it.
  float baseline(causal_model<T>& model, const model_weights<T>& weights, const training_pass& pass) const {
    const auto timed = profile::part(profile_, "baseline");
    std::vector<float> values(pass.others.ids.size());
    model.doors().log_probabilities(model.answer(weights, documents_of(pass.others)), pass.others.targets,
                                    model.of().logit_softcap, values);
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      sum += static_cast<double>(values[i]) - static_cast<double>(pass.others_reference[i]);
    return static_cast<float>(std::max(0.0, sum / static_cast<double>(pass.pairs)));
  }

  preference_options preference_;
  distillation_options distillation_;
  profile* profile_;
  std::unique_ptr<frozen_model<T>> teacher_;
  pair_rows<T> rows_;
  preference_report report_;
};

}  // namespace example
#endif
