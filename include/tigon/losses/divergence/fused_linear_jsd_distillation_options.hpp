// The tag and options of fused_linear_jsd_distillation.
#ifndef TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_DISTILLATION_OPTIONS_HPP
#define TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_DISTILLATION_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/losses/divergence/fused_linear_distillation_options.hpp>

namespace tigon {

namespace op {
struct fused_linear_jsd_distillation {
  static constexpr std::string_view name = "fused_linear_jsd_distillation";
};
}  // namespace op

/// The contract is in losses/fused_linear_jsd_distillation.hpp.
struct fused_linear_jsd_distillation_options {
  fused_linear_distillation_options distillation = {};
  double beta = 0.5;  ///< in [0, 1]
};

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_DISTILLATION_OPTIONS_HPP
