// The tag and options of fused_linear_orpo.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_ORPO_OPTIONS_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_ORPO_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/losses/sequence/fused_linear_preference_options.hpp>

namespace tigon {

namespace op {
struct fused_linear_orpo {
  static constexpr std::string_view name = "fused_linear_orpo";
};
}  // namespace op

/// The contract is in losses/fused_linear_orpo.hpp.
struct fused_linear_orpo_options {
  preference_options pairs{};
  double beta = 0.1;  ///< above 0
  bool compute_nll_loss = true;
};

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_ORPO_OPTIONS_HPP
