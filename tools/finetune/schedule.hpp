// The learning rate of each step.
#ifndef EXAMPLE_FINETUNE_SCHEDULE_HPP
#define EXAMPLE_FINETUNE_SCHEDULE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace example::finetune {

/// The learning rate as transformers' get_scheduler has it: a linear warm-up from 0, then what the kind says.
/// With least > 0 cosine is transformers' cosine_with_min_lr and linear falls in the same way to that share of the
/// peak.
struct schedule {
  enum class kind { constant, linear, cosine } shape = kind::cosine;
  double peak = 2e-5;
  std::size_t steps = 0;   ///< of the whole run
  std::size_t warmup = 0;  ///< of them
  double least = 0;        ///< at the end, as a share of the peak

  /// Of the step with this number, from 0.
  double operator()(std::size_t step) const {
    const auto real = [](std::size_t n) { return static_cast<double>(n); };
    if (step < warmup) return peak * real(step) / real(std::max<std::size_t>(1, warmup));
    if (shape == kind::constant) return peak;
    const std::size_t falling = steps > warmup ? steps - warmup : 1;
    if (shape == kind::linear) {
      const double left = step < steps ? real(steps - step) / real(falling) : 0;
      return peak * (least + (1 - least) * left);
    }
    const double done = real(step - warmup) / real(falling);
    const double wave = 0.5 * (1 + std::cos(std::numbers::pi * done));
    return peak * std::max(0.0, least + (1 - least) * wave);
  }
};

}  // namespace example::finetune
#endif
