// The tag and options of moe_router.
#ifndef TIGON_OPS_MOE_MOE_ROUTER_OPTIONS_HPP
#define TIGON_OPS_MOE_MOE_ROUTER_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/moe/router_scores.hpp>

namespace tigon {

namespace op {
struct moe_router {
  static constexpr std::string_view name = "moe_router";
};
}  // namespace op

/// The contract is in ops/moe_router.hpp.
struct moe_router_options {
  router_score score = router_score::softmax;
  bool normalise = true;  ///< the weights of a token add up to scale
  double scale = 1;
  std::size_t groups = 1;       ///< equal ones of experts beside each other
  std::size_t kept_groups = 1;  ///< those of the largest scores, whose experts are chosen; as many as groups: no limit
  router_group_score group_score = router_group_score::two_largest;
};

}  // namespace tigon

#endif  // TIGON_OPS_MOE_MOE_ROUTER_OPTIONS_HPP
