// The tag and results of moe_routing.
#ifndef TIGON_OPS_MOE_MOE_ROUTING_OPTIONS_HPP
#define TIGON_OPS_MOE_MOE_ROUTING_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

#include <span>

namespace tigon {

namespace op {
struct moe_routing {
  static constexpr std::string_view name = "moe_routing";
};
}  // namespace op

/// The contract is in ops/moe_routing.hpp.
template <class O>
struct moe_order {
  std::span<O> counts, offsets, gather, scatter, positions;
};

}  // namespace tigon

#endif  // TIGON_OPS_MOE_MOE_ROUTING_OPTIONS_HPP
