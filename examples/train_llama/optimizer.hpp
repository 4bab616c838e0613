#ifndef EXAMPLE_TRAIN_LLAMA_OPTIMIZER_HPP
#define EXAMPLE_TRAIN_LLAMA_OPTIMIZER_HPP

#include <tigon/ops/adamw.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "../../support/kernel_memory.hpp"

namespace example {

/// A stretch of the flat array; norms are not decayed.
struct parameter_group {
  std::size_t begin, end;
  double decay;  ///< factor on the weight decay: 1 for matrices, 0 for norms
};

/// Linear warm-up to `peak`, then half a cosine down to `lowest` at the last step. step counts from 0.
inline float cosine_rate(std::size_t step, std::size_t steps, std::size_t warmup, float peak, float lowest) {
  if (step < warmup) return peak * static_cast<float>(step + 1) / static_cast<float>(warmup);
  const double way =
      steps > warmup + 1 ? static_cast<double>(step - warmup) / static_cast<double>(steps - warmup - 1) : 0;
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * std::min(way, 1.0)));
  return static_cast<float>(lowest + (peak - lowest) * cosine);
}

/// Those of a run.
template <class Run>
tigon::adamw_options optimizer_options(const Run& o) {
  return {.beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay, .max_norm = o.clip};
}

/// AdamW over one flat array of weights in S: the moments, and the number of steps so far.
template <tigon::element S>
class optimizer_in {
 public:
  /// Of the options, learning_rate and step are the optimizer's own.
  optimizer_in(std::size_t parameters, std::vector<parameter_group> groups, tigon::adamw_options options)
      : options_(options), groups_(std::move(groups)), first_(parameters), second_(parameters) {}

  /// One step; returns the gradient's norm before clipping. `rounded`, if it has memory, is the weights in T.
  template <tigon::element T = S>
  double step(std::span<S> weights, std::span<const S> gradient, float rate, tigon::context& ctx,
              std::span<T> rounded = {}) {
    std::vector<tigon::adamw_parameter<S, S, S, T>> list;
    for (const parameter_group& group : groups_) {
      const auto of = [&](auto all) { return all.subspan(group.begin, group.end - group.begin); };
      list.push_back({of(weights), of(gradient), of(std::span(first_)), of(std::span(second_)),
                      rounded.empty() ? rounded : of(rounded), group.decay});
    }
    options_.learning_rate = static_cast<double>(rate);
    options_.step = ++steps_;
    return tigon::adamw(list, options_, ctx);
  }

  /// The whole state beside the weights, for checkpoints.
  kernel_vector<S>& first_moment() { return first_; }
  kernel_vector<S>& second_moment() { return second_; }
  std::size_t steps() const { return steps_; }
  void set_steps(std::size_t steps) { steps_ = steps; }

 private:
  tigon::adamw_options options_;
  std::vector<parameter_group> groups_;
  kernel_vector<S> first_, second_;
  std::size_t steps_ = 0;
};
/// Over f32 master weights.
using optimizer = optimizer_in<float>;

}  // namespace example
#endif
