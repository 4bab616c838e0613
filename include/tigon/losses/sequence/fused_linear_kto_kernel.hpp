// The generic kernel of fused_linear_kto.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_KTO_KERNEL_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_KTO_KERNEL_HPP

#include <tigon/losses/sequence/fused_linear_kto_options.hpp>
#include <tigon/losses/sequence/fused_linear_unpaired_preference_kernel.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// The loss of a sequence; kl is one number, one a sequence, or empty.
template <class A>
struct kto_sequence {
  std::span<const A> kl;
  double beta, desirable_weight, undesirable_weight;

  TIGON_EITHER_SIDE sequence_value operator()(const preference_sequence& s) const {
    const double baseline = kl.empty() ? 0 : static_cast<double>(kl[kl.size() == 1 ? 0 : s.index]);
    const double sign = s.desirable ? 1 : -1, weight = s.desirable ? desirable_weight : undesirable_weight;
    const double u = beta * sign * (s.ratio - baseline), against = logistic(-u);
    return {weight * against, -weight * beta * sign * logistic(u) * against};
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_kto, backends::generic> : detail::unpaired_kernel {};

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_KTO_KERNEL_HPP
