// The tag and options of fused_linear_cosine_distillation.
#ifndef TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_COSINE_DISTILLATION_OPTIONS_HPP
#define TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_COSINE_DISTILLATION_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/losses/divergence/fused_linear_distillation_options.hpp>

namespace tigon {

namespace op {
struct fused_linear_cosine_distillation {
  static constexpr std::string_view name = "fused_linear_cosine_distillation";
};
}  // namespace op

/// The contract is in losses/fused_linear_cosine_distillation.hpp.
struct fused_linear_cosine_distillation_options {
  fused_linear_distillation_options distillation = {};
  double beta = 0.5;
};

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_COSINE_DISTILLATION_OPTIONS_HPP
