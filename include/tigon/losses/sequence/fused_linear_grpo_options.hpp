// The tag of fused_linear_grpo.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_GRPO_OPTIONS_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_GRPO_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

namespace op {
struct fused_linear_grpo {
  static constexpr std::string_view name = "fused_linear_grpo";
};
}  // namespace op

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_GRPO_OPTIONS_HPP
