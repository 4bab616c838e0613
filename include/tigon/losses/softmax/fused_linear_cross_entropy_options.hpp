// The tag, options and operands of fused_linear_cross_entropy.
#ifndef TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP
#define TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP

#include <tigon/losses/linear/few_rows_linear.hpp>
#include <tigon/losses/softmax/cross_entropy_options.hpp>

namespace tigon {

namespace op {
struct fused_linear_cross_entropy {
  static constexpr std::string_view name = "fused_linear_cross_entropy";
};
}  // namespace op

/// The contract is in losses/fused_linear_cross_entropy.hpp.
struct fused_linear_cross_entropy_options {
  cross_entropy_options loss = {};
  bool token_scaling = false;  ///< loss and gradient of a row times the probability of its target
};

/// What a call makes beside gradients; a span without memory is not written.
template <class A>
struct cross_entropy_results {
  std::span<A> loss{};
  cross_entropy_metrics<A> metrics{};
};

namespace detail {
inline namespace TIGON_ABI {
/// What a fused linear cross entropy reads and writes; a view without memory is an absent argument.
template <layer_types T>
struct linear_loss {
  linear_layer<T> head;
  linear_gradients<T> out;
  vector_view<const accumulator_t<T>> upstream;  ///< one number, or one for each row that counts; empty: 1
  chosen_rows kept{};  ///< which rows these are; labels and results are of them, in their order
};
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_CROSS_ENTROPY_OPTIONS_HPP
