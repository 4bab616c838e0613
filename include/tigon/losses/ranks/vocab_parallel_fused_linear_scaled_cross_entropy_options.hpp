// The tag and options of vocab_parallel_fused_linear_scaled_cross_entropy.
#ifndef TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_OPTIONS_HPP
#define TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/losses/softmax/fused_linear_scaled_cross_entropy_options.hpp>

namespace tigon {

namespace op {
struct vocab_parallel_fused_linear_scaled_cross_entropy {
  static constexpr std::string_view name = "vocab_parallel_fused_linear_scaled_cross_entropy";
};
}  // namespace op

/// The contract is in losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp.
using vocab_parallel_fused_linear_scaled_cross_entropy_options = fused_linear_scaled_cross_entropy_options;

}  // namespace tigon

#endif  // TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_OPTIONS_HPP
