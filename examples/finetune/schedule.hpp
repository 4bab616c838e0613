// The learning rate of each step, and when to end before the last one.
#ifndef EXAMPLE_FINETUNE_SCHEDULE_HPP
#define EXAMPLE_FINETUNE_SCHEDULE_HPP

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace example::finetune {

/// The learning rate as transformers' get_scheduler has it: a linear warm-up from 0, then what the kind says.
/// With least > 0 cosine is transformers' cosine_with_min_lr and linear falls in the same way to that share of the peak.
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

/// The warm-up that is a share of all steps, rounded up as transformers does.
inline std::size_t warmup_steps(std::size_t steps, double share) {
  if (!(share >= 0 && share <= 1)) throw std::runtime_error("the warm-up is a share of the steps between 0 and 1");
  return static_cast<std::size_t>(std::ceil(share * static_cast<double>(steps)));
}

/// Ends a run after `patience` evaluations in a row none of which was better than the best by more than `margin`.
/// With patience 0 it never does.
class early_stop {
 public:
  explicit early_stop(std::size_t patience, double margin = 0) : patience_(patience), margin_(margin) {}

  /// Takes the loss of an evaluation; true: the run should end. A loss that is not a number is never better.
  bool operator()(double loss) {
    if (loss < best_ - margin_ || (!found_ && loss == loss)) {
      best_ = loss;
      found_ = true;
      worse_ = 0;
      better_ = true;
    } else {
      ++worse_;
      better_ = false;
    }
    return patience_ != 0 && worse_ >= patience_;
  }

  /// Whether the last evaluation was the best so far.
  bool better() const { return better_; }
  double best() const { return best_; }

  /// As a checkpoint keeps it; the numbers come back in all their bits.
  std::string to_text() const {
    char text[80];
    std::snprintf(text, sizeof text, "%a %zu %d", best_, worse_, found_ ? 1 : 0);
    return text;
  }

  void from_text(const std::string& text) {
    double best = 0;
    std::size_t worse = 0;
    int found = 0, end = 0;
    const int read = std::sscanf(text.c_str(), "%la %zu %d%n", &best, &worse, &found, &end);
    if (read != 3 || static_cast<std::size_t>(end) != text.size() || (found != 0 && found != 1))
      throw std::runtime_error("the state of an early stop is saved as three numbers, not as this");
    best_ = best, worse_ = worse, found_ = found == 1, better_ = false;
  }

 private:
  std::size_t patience_;
  double margin_;
  double best_ = std::numeric_limits<double>::infinity();
  std::size_t worse_ = 0;
  bool found_ = false, better_ = false;
};

}  // namespace example::finetune
#endif
