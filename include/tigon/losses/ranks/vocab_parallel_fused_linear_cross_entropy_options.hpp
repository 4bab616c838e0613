// The tag, options and operands of vocab_parallel_fused_linear_cross_entropy.
#ifndef TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP
#define TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP

#include <tigon/losses/ranks/shard_linear.hpp>
#include <tigon/losses/softmax/fused_linear_cross_entropy_options.hpp>

namespace tigon {

namespace op {
struct vocab_parallel_fused_linear_cross_entropy {
  static constexpr std::string_view name = "vocab_parallel_fused_linear_cross_entropy";
};
}  // namespace op

/// The contract is in losses/vocab_parallel_fused_linear_cross_entropy.hpp.
struct vocab_parallel_fused_linear_cross_entropy_options {
  cross_entropy_options loss = {};
  bool token_scaling = false;  ///< loss and gradient of a row times the probability of its target
  double upstream = 1;         ///< gradients of forward are those of the loss times this
};

namespace detail {
inline namespace TIGON_ABI {
/// What the public functions are called with; backward has an upstream gradient and no loss.
template <layer_types T>
struct shard_cross_entropy_call {
  communicator_ref comm;
  const linear_shard<T>& part;
  linear_gradients<T> gradients;
  std::span<const accumulator_t<T>> upstream;
  cross_entropy_results<accumulator_t<T>> to;
  bool backward;
};
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP
