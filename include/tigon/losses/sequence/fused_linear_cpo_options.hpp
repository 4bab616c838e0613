// The tag and options of fused_linear_cpo.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_CPO_OPTIONS_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_CPO_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/losses/sequence/fused_linear_preference_options.hpp>

namespace tigon {

namespace op {
struct fused_linear_cpo {
  static constexpr std::string_view name = "fused_linear_cpo";
};
}  // namespace op

/// The contract is in losses/fused_linear_cpo.hpp.
struct fused_linear_cpo_options {
  preference_options pairs{};
  double beta = 0.1;           ///< above 0
  double label_smoothing = 0;  ///< in [0, 1]
  bool compute_nll_loss = true;
  bool average_log_prob = false;
};

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_CPO_OPTIONS_HPP
