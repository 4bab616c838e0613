// The generic kernel of fused_linear_grpo.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_GRPO_KERNEL_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_GRPO_KERNEL_HPP

#include <tigon/losses/sequence/fused_linear_grpo_options.hpp>
#include <tigon/losses/sequence/grpo_loss_options.hpp>
#include <tigon/losses/sequence/sequence_kernel.hpp>

namespace tigon {

template <>
struct kernel<op::fused_linear_grpo, backends::generic> : detail::sequence_kernel {};

namespace detail {
inline namespace TIGON_ABI {
/// Sequences as sequence_tokens has them: a token is a group where its loss needs nothing of others.
struct policy_groups {
  std::size_t groups, length;
  policy_groups(const policy_options& opt, token_rows at)
      : groups(policy_by_token(opt) ? at.rows() : at.batch), length(policy_by_token(opt) ? 1 : at.stride) {}
};

/// From log-probabilities of the tokens that count to their u, on the way through arrays of all rows.
template <class A>
struct policy_coefficients {
  const policy<A>& of;
  const sequence_tokens<A>& tokens;
  double *logp, *reference;
  A* u;
  std::span<const A> upstream;

  TIGON_NOINLINE void operator()(std::size_t begin, std::size_t n) const {
    const std::size_t from = tokens.first[begin], to = tokens.first[begin + n], stride = of.at.stride;
    for (std::size_t k = from; k < to; ++k) {
      logp[tokens.row[k]] = tokens.logp[k];
      if (tokens.reference_logp != nullptr) reference[tokens.row[k]] = tokens.reference_logp[k];
    }
    for (std::size_t row = begin * tokens.length, end; row < (begin + n) * tokens.length; row = end) {
      const std::size_t b = row / stride;
      end = std::min((begin + n) * tokens.length, (b + 1) * stride);
      of.gradient_of_tokens(b, row - b * stride, std::min(end - b * stride, of.at.len), logp + b * stride, upstream,
                            u + b * stride);
    }
    for (std::size_t k = from; k < to; ++k) tokens.u[k] = u[tokens.row[k]];
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_GRPO_KERNEL_HPP
