// The tag and options of kl_div.
#ifndef TIGON_LOSSES_DIVERGENCE_KL_DIV_OPTIONS_HPP
#define TIGON_LOSSES_DIVERGENCE_KL_DIV_OPTIONS_HPP

#include <tigon/losses/divergence/divergence_rows.hpp>

namespace tigon {

namespace op {
struct kl_div {
  static constexpr std::string_view name = "kl_div";
};
}  // namespace op

/// The contract is in losses/kl_div.hpp.
struct kl_div_options {
  divergence_reduction reduction = divergence_reduction::batchmean;
  bool log_target = false;  ///< teacher holds log-probabilities
  double eps = 0;           ///< log P is taken of no less than this, without log_target; 0: of every P, 0 log 0 = 0
  double denominator = 0;   ///< the n of a batch in several calls; 0: rows
};

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_KL_DIV_OPTIONS_HPP
