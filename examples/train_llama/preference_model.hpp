#ifndef EXAMPLE_TRAIN_LLAMA_PREFERENCE_MODEL_HPP
#define EXAMPLE_TRAIN_LLAMA_PREFERENCE_MODEL_HPP

#include <tigon/losses/fused_linear_dpo.hpp>
#include <tigon/losses/fused_linear_kto.hpp>
#include <tigon/losses/fused_linear_orpo.hpp>
#include <tigon/losses/fused_linear_simpo.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fused_model.hpp"
#include "pairs.hpp"

namespace example {

enum class preference_loss { dpo, orpo, simpo, kto };

/// DPO and KTO look at log-probabilities beside those of the starting policy.
constexpr bool has_reference(preference_loss loss) {
  return loss == preference_loss::dpo || loss == preference_loss::kto;
}

struct preference_objective {
  preference_loss loss = preference_loss::dpo;
  double beta = 0.1;
  double gamma = 0.5;  ///< SimPO's margin
};

/// train_llama's model, which learns from pairs.
class preference_model : public fused_model<float> {
 public:
  /// For batches of at most `pairs` pairs.
  preference_model(const model_config& config, const parameter_layout& layout, std::size_t seq_len, std::size_t pairs,
                   tigon::context& ctx, preference_objective objective)
      : fused_model<float>(config, layout, seq_len, 2 * pairs, ctx), objective_(objective) {}

  /// Log-probabilities of the continuations [2 pairs], chosen ones first: sums over tokens where there is a reference,
  /// else means.
  std::vector<float> logps(weight_views<float> weights, const pair_batch& batch) {
    weights_ = weights;
    std::vector<float> out(2 * batch.pairs);
    head_loss(forward(batch.ids), batch, {}, out, {}, {});
    return out;
  }

  /// The loss, the gradient of every parameter and the log-probabilities. `reference` is what logps() gave for the
  /// starting policy, or empty.
  double learn(weight_views<float> weights, const pair_batch& batch, std::span<const float> reference,
               std::span<float> logps) {
    weights_ = weights;
    const auto y = forward(batch.ids);
    const auto dy = first(dy_, batch.ids.size());
    const double loss = head_loss(y, batch, reference, logps, dy, grad(layout_.head));
    backward(dy, batch.ids);
    if (objective_.loss == preference_loss::kto) {
      double sum = 0;
      for (std::size_t i = 0; i < logps.size(); ++i) sum += static_cast<double>(logps[i] - reference[i]);
      baseline_ = static_cast<float>(std::max(0.0, sum / static_cast<double>(logps.size())));
    }
    return loss;
  }

 private:
  double head_loss(matrix<float> y, const pair_batch& batch, std::span<const float> reference, std::span<float> logps,
                   matrix<float> dy, matrix<float> dhead) {
    const tigon::linear_layer head{y, weight(layout_.head)};
    const tigon::linear_gradients<float> gradients{.dx = dy, .dw = dhead};
    const tigon::token_ids target(matrix<const std::int32_t>(batch.targets.data(), 2 * batch.pairs, seq_len_));
    const tigon::reference_model<float> before{.logps = reference};
    float value = 0;
    const tigon::preference_results<float> results{.loss = std::span(&value, 1),
                                                   .chosen_logps = logps.first(batch.pairs),
                                                   .rejected_logps = logps.last(batch.pairs)};
    const auto [loss, beta, gamma] = objective_;
    switch (loss) {
      case preference_loss::dpo:
        tigon::fused_linear_dpo_forward<small_chunks>(head, {target}, results, gradients, {.beta = beta}, before, ctx_);
        break;
      case preference_loss::orpo:
        tigon::fused_linear_orpo_forward<small_chunks>(head, {target}, results, gradients, {.beta = beta}, ctx_);
        break;
      case preference_loss::simpo:
        tigon::fused_linear_simpo_forward<small_chunks>(head, target, results, gradients,
                                                        {.beta = beta, .gamma = gamma}, ctx_);
        break;
      case preference_loss::kto: {
        std::vector<std::uint8_t> desirable(2 * batch.pairs);
        std::fill_n(desirable.begin(), batch.pairs, std::uint8_t{1});
        tigon::fused_linear_kto_forward<small_chunks>(head, {target, desirable}, std::span<const float>(&baseline_, 1),
                                                      {.loss = results.loss, .logps = logps}, gradients, {.beta = beta},
                                                      before, ctx_);
        break;
      }
    }
    return static_cast<double>(value);
  }

  preference_objective objective_;
  /// KTO's kl: how far the policy has gone from its start, by the batch before this one; at least 0.
  float baseline_ = 0;
};

}  // namespace example
#endif
