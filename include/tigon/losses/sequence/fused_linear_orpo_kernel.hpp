// The generic kernel of fused_linear_orpo.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_ORPO_KERNEL_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_ORPO_KERNEL_HPP

#include <tigon/losses/sequence/fused_linear_orpo_options.hpp>
#include <tigon/losses/sequence/fused_linear_preference_kernel.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
struct orpo_pair {
  double beta;

  TIGON_EITHER_SIDE pair_value operator()(const preference_pair& p) const {
    const auto rest = [](double logp) {
      return std::max(-std::expm1(logp), double{std::numeric_limits<float>::min()});
    };
    const double c = rest(p.chosen), r = rest(p.rejected);
    // log(1 - e^x) from the side on which nothing cancels.
    const auto log_rest = [](double logp, double one_minus) {
      return one_minus < 0.5 ? std::log(one_minus) : std::log1p(-std::exp(logp));
    };
    const double odds = p.chosen - p.rejected - (log_rest(p.chosen, c) - log_rest(p.rejected, r));
    const double against = c + std::exp(p.chosen - p.rejected) * r;  // c / (1 + e^odds) is its share
    return {beta * softplus(-odds), -beta / against, beta * (c / against) / r, {-softplus(-odds), odds}};
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_orpo, backends::generic> : detail::pair_kernel {};

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_ORPO_KERNEL_HPP
