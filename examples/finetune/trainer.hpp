// Training of a folder's model: all of its weights, or adapters beside them.
#ifndef EXAMPLE_FINETUNE_TRAINER_HPP
#define EXAMPLE_FINETUNE_TRAINER_HPP

#include <tigon/ops/adamw.hpp>
#include <tigon/rows/row.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "../support/profile.hpp"
#include "model.hpp"
#include "options.hpp"
#include "trained.hpp"
#include "windows.hpp"

namespace example {

/// What a step did.
struct step_report {
  double loss = 0;           ///< mean over the targets
  double gradient_norm = 0;  ///< before clipping
  double rate = 0;
  std::size_t tokens = 0;
};

/// A step takes `accumulate` passes of `batch` windows; its loss is the mean over the targets of all of them. Gradients
/// of sums are added up, and AdamW divides them by the number of targets.
template <tigon::element T>
class finetune_trainer {
 public:
  finetune_trainer(const finetune_options& options, const architecture& a, const weight_layout& layout,
                   const lora_layout& lora, std::vector<float> weights, window_source data,
                   tigon::executor_ref executor, profile* timed = nullptr)
      : o_(options),
        layout_(layout),
        lora_(lora),
        ctx_(executor, workspace_),
        profile_(timed),
        schedule_(schedule_of(options)),
        data_(std::move(data)),
        model_(a, layout, lora, {options.batch * options.seq_len, options.recompute}, ctx_, timed) {
    if (lora.empty()) {
      trained_ = {std::move(weights), decay_groups(layout.tensors)};
    } else {
      frozen_ = std::move(weights);
      trained_ = {lora.initial(options.seed), decay_groups(lora.tensors)};
    }
    if constexpr (!std::same_as<T, float>) {
      matrices_.resize(layout.total);
      round(base(), matrices_);
      adapters_.resize(lora.total);
    }
    values_have_changed();
  }

  std::size_t steps_done() const { return step_; }
  double rate() const { return schedule_(step_); }
  window_source& data() { return data_; }
  trained_parameters& trained() { return trained_; }
  const std::vector<float>& base() const { return lora_.empty() ? trained_.values : frozen_; }
  std::size_t peak_bytes() const { return model_.peak_bytes(); }

  /// After trained() was written to from outside.
  void restored(std::size_t steps) {
    step_ = steps;
    values_have_changed();
  }

  step_report step() {
    const auto timed = profile::step(profile_);
    step_report out;
    std::size_t targets = 0;
    double sum = 0;
    for (std::size_t pass = 0; pass < o_.accumulate; ++pass) {
      const window& pass_window = next_pass();
      targets += counted(pass_window), out.tokens += pass_window.ids.size();
      model_gradients to;
      (lora_.empty() ? to.weights : to.adapters) = trained_.gradient;
      to.mode = pass == 0 ? tigon::gradient::overwrite : tigon::gradient::accumulate;
      sum += model_.step(weights(), to, documents_of(pass_window));
    }
    out.loss = sum / static_cast<double>(targets), out.rate = rate();
    const auto part = profile::part(profile_, "update");
    out.gradient_norm = update(1 / static_cast<double>(targets));
    return out;
  }

  /// Mean loss over the targets of these samples, as they are.
  double evaluate(std::span<const window> windows) {
    double sum = 0;
    std::size_t targets = 0;
    for (const window& one : windows) {
      sum += model_.loss(weights(), documents_of(one));
      targets += counted(one);
    }
    return sum / static_cast<double>(targets);
  }

  /// The weights with the adapters added in.
  std::vector<float> merged() const {
    std::vector<float> out = base();
    if (!lora_.empty()) lora_.merge(layout_, trained_.values, out);
    return out;
  }

 private:
  model_weights<T> weights() const {
    if constexpr (std::same_as<T, float>)
      return {base(), base(), lora_.empty() ? std::span<const float>() : std::span<const float>(trained_.values)};
    else
      return {matrices_, base(), adapters_};
  }

  /// `batch` windows one behind another.
  const window& next_pass() {
    if (o_.batch == 1) return data_.next();
    pass_ = {{}, {}, {0}};
    for (std::size_t i = 0; i < o_.batch; ++i) {
      const window& one = data_.next();
      const auto begin = static_cast<std::int32_t>(pass_.ids.size());
      pass_.ids.insert(pass_.ids.end(), one.ids.begin(), one.ids.end());
      pass_.targets.insert(pass_.targets.end(), one.targets.begin(), one.targets.end());
      for (std::size_t d = 1; d < one.begins.size(); ++d) pass_.begins.push_back(begin + one.begins[d]);
    }
    return pass_;
  }

  double update(double gradient_scale) {
    std::vector<T>& rounded = lora_.empty() ? matrices_ : adapters_;
    std::vector<tigon::adamw_parameter<float, float, float, T>> list;
    for (const decay_group& group : trained_.groups) {
      const auto of = [&](auto all) { return all.subspan(group.begin, group.end - group.begin); };
      list.push_back({of(std::span(trained_.values)), of(std::span<const float>(trained_.gradient)),
                      of(std::span(trained_.first_moment)), of(std::span(trained_.second_moment)),
                      rounded.empty() ? std::span<T>() : of(std::span(rounded)), group.decay});
    }
    tigon::adamw_options opt;
    opt.learning_rate = rate(), opt.beta1 = o_.beta1, opt.beta2 = o_.beta2, opt.eps = o_.eps;
    opt.weight_decay = o_.weight_decay, opt.max_norm = o_.clip, opt.gradient_scale = gradient_scale;
    opt.step = ++step_;
    const auto timed =
        profile::call(profile_, "adamw", {0, static_cast<double>(trained_.values.size() * (7 * 4 + sizeof(T)))});
    return tigon::adamw(list, opt, ctx_);
  }

  void values_have_changed() {
    if constexpr (!std::same_as<T, float>) round(trained_.values, lora_.empty() ? matrices_ : adapters_);
  }
  void round(const std::vector<float>& from, std::vector<T>& to) {
    const tigon::matrix_view<const float> x(from.data(), 1, from.size());
    const tigon::matrix_view<T> y(to.data(), 1, to.size());
    tigon::for_rows<tigon::default_backend>(ctx_, 1, y.cols, [=] TIGON_FN(auto row) {
      row.map(tigon::reads(x), tigon::writes(y), [](auto v) { return v; });
    });
  }

  const finetune_options& o_;
  const weight_layout& layout_;
  const lora_layout& lora_;
  tigon::workspace workspace_;
  tigon::context ctx_;
  profile* profile_;
  finetune::schedule schedule_;
  window_source data_;
  window pass_;
  trained_parameters trained_;
  std::vector<float> frozen_;           ///< the weights, beside adapters
  std::vector<T> matrices_, adapters_;  ///< rounded, where T has 16 bits
  causal_model<T> model_;
  std::size_t step_ = 0;
};

}  // namespace example
#endif
