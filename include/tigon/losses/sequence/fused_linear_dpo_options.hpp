// The tag, options and operands of fused_linear_dpo.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_DPO_OPTIONS_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_DPO_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/losses/sequence/fused_linear_preference_options.hpp>

namespace tigon {

namespace op {
struct fused_linear_dpo {
  static constexpr std::string_view name = "fused_linear_dpo";
};
}  // namespace op

/// The loss of a pair, as a function of u = beta ((c - c0) - (r - r0)) or of its two parts.
enum class dpo_loss {
  sigmoid,    ///< Rafailov et al., 2023; with label_smoothing the conservative form
  hinge,      ///< Zhao et al., 2023 (SLiC)
  exo_pair,   ///< Ji et al., 2024; label_smoothing above 0
  nca_pair,   ///< Chen et al., 2024
  robust,     ///< Chowdhury et al., 2024; label_smoothing below 1/2
  bco_pair,   ///< Jung et al., 2024, without the running mean
  sppo_hard,  ///< Wu et al., 2024
  apo_zero,   ///< D'Oosterlinck et al., 2024
  apo_down,   ///< the same
  discopop,   ///< Lu et al., 2024
  ipo,        ///< Azar et al., 2023; always on means over tokens
};

/// The contract is in losses/fused_linear_dpo.hpp.
struct fused_linear_dpo_options {
  preference_options pairs{};
  dpo_loss loss = dpo_loss::sigmoid;
  double beta = 0.1;           ///< above 0
  double label_smoothing = 0;  ///< sigmoid: [0, 1/2]; robust: [0, 1/2); exo_pair: (0, 1/2)
  double discopop_tau = 0.05;  ///< above 0
  bool compute_nll_loss = false;
  bool average_log_prob = false;
};

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_DPO_OPTIONS_HPP
