// The tag and options of fused_linear_jsd.
#ifndef TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_OPTIONS_HPP
#define TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/losses/divergence/fused_linear_distillation_options.hpp>

namespace tigon {

namespace op {
struct fused_linear_jsd {
  static constexpr std::string_view name = "fused_linear_jsd";
};
}  // namespace op

/// The contract is in losses/fused_linear_jsd.hpp.
struct fused_linear_jsd_options {
  double beta = 0.5;       ///< in [0, 1]
  double temperature = 1;  ///< from 1e-30 to 1e30
  std::int64_t ignore_index = -100;
  teacher_padding padding = teacher_padding::neg_inf;
  double denominator = 0;  ///< n, for a batch in several calls; 0: count
  double upstream = 1;     ///< gradients of forward are those of the loss times this
};

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_OPTIONS_HPP
