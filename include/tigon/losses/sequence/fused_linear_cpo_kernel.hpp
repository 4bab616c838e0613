// The generic kernel of fused_linear_cpo.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_CPO_KERNEL_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_CPO_KERNEL_HPP

#include <tigon/losses/sequence/fused_linear_cpo_options.hpp>
#include <tigon/losses/sequence/fused_linear_preference_kernel.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// Also SimPO, which has a margin.
struct cpo_pair {
  double beta, label_smoothing, margin = 0;

  TIGON_EITHER_SIDE pair_value operator()(const preference_pair& p) const {
    const double u = beta * (p.chosen - p.rejected) - margin, e = label_smoothing;
    const auto share = [](double part, double v) { return part == 0 ? 0 : part * v; };  // 0 times infinity
    const double d = beta * (e * logistic(u) - (1 - e) * logistic(-u));
    return {share(1 - e, softplus(-u)) + share(e, softplus(u)), d, -d, {}};
  }
};

template <class A>
void expect_cpo(std::string_view op, double label_smoothing) {
  expects(op).number<A>(label_smoothing >= 0 && label_smoothing <= 1, "label_smoothing", label_smoothing,
                        "a number from 0 to 1");
}
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_cpo, backends::generic> : detail::pair_kernel {};

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_CPO_KERNEL_HPP
