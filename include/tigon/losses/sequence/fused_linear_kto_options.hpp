// The tag and options of fused_linear_kto.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_KTO_OPTIONS_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_KTO_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/losses/sequence/fused_linear_unpaired_preference_options.hpp>

namespace tigon {

namespace op {
struct fused_linear_kto {
  static constexpr std::string_view name = "fused_linear_kto";
};
}  // namespace op

/// The contract is in losses/fused_linear_kto.hpp.
struct fused_linear_kto_options {
  unpaired_options sequences{};
  double beta = 0.1;  ///< above 0
  double desirable_weight = 1, undesirable_weight = 1;
  bool average_log_prob = false;
};

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_KTO_OPTIONS_HPP
