#ifndef EXAMPLE_TRAIN_LLAMA_ADAMW_HPP
#define EXAMPLE_TRAIN_LLAMA_ADAMW_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

namespace example {

/// AdamW (Loshchilov and Hutter, 2019) over one flat array of f32 master weights.
struct adamw_options {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;          ///< added to the root of the second moment
  float weight_decay = 0.1f;  ///< decoupled: times the learning rate, not through the moments
  float grad_clip = 1.0f;     ///< largest global norm of the gradient; 0 leaves it as it is
};

/// A stretch of the flat array; norms are not decayed.
struct parameter_group {
  std::size_t begin, end;
  float decay;  ///< factor on weight_decay: 1 for matrices, 0 for norms
};

/// Linear warm-up to `peak`, then half a cosine down to `lowest` at the last step. step counts from 0.
inline float cosine_rate(std::size_t step, std::size_t steps, std::size_t warmup, float peak, float lowest) {
  if (step < warmup) return peak * static_cast<float>(step + 1) / static_cast<float>(warmup);
  const double way =
      steps > warmup + 1 ? static_cast<double>(step - warmup) / static_cast<double>(steps - warmup - 1) : 0;
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * std::min(way, 1.0)));
  return static_cast<float>(lowest + (peak - lowest) * cosine);
}

/// Elements that one call of a parallel_for's function works on. Fixed, so that partial sums, and with
/// them every bit of the result, do not depend on the number of threads.
inline constexpr std::size_t adamw_chunk = std::size_t{1} << 15;

constexpr std::size_t adamw_chunks(std::size_t n) { return (n + adamw_chunk - 1) / adamw_chunk; }

/// The L2 norm of all gradients together: a sum of squares in double per chunk, the chunks in order.
/// parallel_for(count, fn) calls fn(i) once for every i in [0, count).
template <class ParallelFor>
double global_norm(std::span<const float> gradient, const ParallelFor& parallel_for) {
  std::vector<double> partial(adamw_chunks(gradient.size()));
  parallel_for(partial.size(), [&](std::size_t chunk) {
    const std::size_t begin = chunk * adamw_chunk, end = std::min(begin + adamw_chunk, gradient.size());
    // Eight running sums in a fixed pattern, so that a compiler may use vectors without reordering.
    double sums[8] = {};
    for (std::size_t i = begin; i < end; ++i) sums[i % 8] += static_cast<double>(gradient[i]) * gradient[i];
    partial[chunk] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  });
  double sum = 0;
  for (const double value : partial) sum += value;
  return std::sqrt(sum);
}

class adamw {
 public:
  adamw(std::size_t parameters, std::vector<parameter_group> groups, adamw_options options)
      : options_(options), groups_(std::move(groups)), first_(parameters), second_(parameters) {}

  /// One step; returns the gradient's norm before clipping.
  template <class ParallelFor>
  double step(std::span<float> weights, std::span<const float> gradient, float rate, const ParallelFor& parallel_for) {
    ++steps_;
    const double norm = global_norm(gradient, parallel_for);
    const bool clips = options_.grad_clip > 0 && norm > options_.grad_clip;
    const float scale = clips ? static_cast<float>(options_.grad_clip / norm) : 1.0f;
    // The moments start at zero; these factors undo the pull towards it.
    const auto age = static_cast<double>(steps_);
    const auto unbias1 = static_cast<float>(1 / (1 - std::pow(static_cast<double>(options_.beta1), age)));
    const auto unbias2 = static_cast<float>(1 / (1 - std::pow(static_cast<double>(options_.beta2), age)));
    for (const parameter_group& group : groups_) {
      const float decay = options_.weight_decay * group.decay;
      parallel_for(adamw_chunks(group.end - group.begin), [&](std::size_t chunk) {
        const std::size_t begin = group.begin + chunk * adamw_chunk, end = std::min(begin + adamw_chunk, group.end);
        const float beta1 = options_.beta1, beta2 = options_.beta2, eps = options_.eps;
        float *w = weights.data(), *m = first_.data(), *v = second_.data();
        const float* g = gradient.data();
        for (std::size_t i = begin; i < end; ++i) {
          const float gi = g[i] * scale;
          m[i] = beta1 * m[i] + (1 - beta1) * gi;
          v[i] = beta2 * v[i] + (1 - beta2) * gi * gi;
          w[i] -= rate * (m[i] * unbias1 / (std::sqrt(v[i] * unbias2) + eps) + decay * w[i]);
        }
      });
    }
    return norm;
  }

  /// The whole state beside the weights, for checkpoints.
  std::vector<float>& first_moment() { return first_; }
  std::vector<float>& second_moment() { return second_; }
  std::size_t steps() const { return steps_; }
  void set_steps(std::size_t steps) { steps_ = steps; }

 private:
  adamw_options options_;
  std::vector<parameter_group> groups_;
  std::vector<float> first_, second_;
  std::size_t steps_ = 0;
};

}  // namespace example
#endif
