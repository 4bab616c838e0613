#ifndef EXAMPLE_TRAIN_LLAMA_DISTILLED_MODEL_HPP
#define EXAMPLE_TRAIN_LLAMA_DISTILLED_MODEL_HPP

#include <tigon/losses/fused_linear_jsd.hpp>

#include <cstdint>
#include <span>

#include "fused_model.hpp"

namespace example {

/// train_llama's model, which shows what its head reads, and learns from another one's.
class distilled_model : public fused_model<float> {
 public:
  using fused_model<float>::fused_model;

  /// The last norm's output for some windows, and the head that follows.
  tigon::linear_layer<float> teach(weight_views<float> weights, std::span<const std::int32_t> ids) {
    weights_ = weights;
    return {forward(ids), weight(layout_.head)};
  }

  /// The divergence from the teacher for the same windows, and the gradient of every parameter.
  double learn(weight_views<float> weights, std::span<const std::int32_t> ids,
               const tigon::linear_layer<float>& teacher, tigon::fused_linear_jsd_options options) {
    weights_ = weights;
    const auto y = forward(ids);
    const auto dy = first(dy_, ids.size());
    float divergence = 0;
    tigon::fused_linear_jsd_forward<small_chunks>(tigon::linear_layer{y, weight(layout_.head)}, teacher, tigon::absent,
                                                  std::span(&divergence, 1), {.dx = dy, .dw = grad(layout_.head)},
                                                  options, ctx_);
    backward(dy, ids);
    return static_cast<double>(divergence);
  }
};

}  // namespace example
#endif
