// Mixture of experts over ranks: its contract, and what ranks tell one another before they write.
#ifndef TIGON_OPS_EXPERT_PARALLEL_MOE_CONTRACT_HPP
#define TIGON_OPS_EXPERT_PARALLEL_MOE_CONTRACT_HPP

#include <tigon/comm/communicator.hpp>
#include <tigon/ops/moe_contract.hpp>

namespace tigon {

namespace op {
struct expert_parallel_moe {
  static constexpr std::string_view name = "expert_parallel_moe";
};
}  // namespace op

/// moe where every rank has tokens and experts of its own: of R ranks with `experts` each, rank r has experts [r
/// experts, (r + 1) experts) of R experts in all, whose indices the choices of all ranks name. y and dx of the own
/// tokens, gradients of weights and biases of the own experts, sums over the tokens of all ranks.
///
/// Formula    docs/formulas/moe.md. Rows of x (and dy) are gathered from all ranks; what the pairs of an expert add to
///            y or dx comes back in rounds, a chunk of every rank at a time. Backward makes g and u again from x.
/// Shapes     as moe, of this rank's tokens and experts; tokens, k, experts, hidden and intermediate are equal on all
///            ranks.
/// Types      as moe, the same on all ranks.
/// Precision  as moe.
/// Order      as moe: for any number of ranks that share the experts alike, the bits of moe on the tokens of all ranks
///            one behind the other, with all experts.
/// Options    backward: as in forward.
/// Writes     as moe. Which of dx and dweights are computed is the same on all ranks.
/// Aliasing   none: any layout in which no written element is shared.
/// Memory     x (and dy) and the choices of all ranks; a row of sums for every pair of the own tokens; a chunk as moe,
///            and that of every rank. See expert_parallel_moe_workspace.
/// Threads    the same bits for any number of them.
/// Throws     tigon::error: as moe, the same on all ranks, whichever of them found it; and state where ranks differ in
///            what has to be equal; before the first write.
/// Max error  as moe, and its bits (tests/ops/expert_parallel_moe_test.cpp).
template <class Gate = mlp_gate>
using expert_parallel_moe_options_for = moe_options_for<Gate>;
using expert_parallel_moe_options = moe_options;

namespace detail {
inline namespace TIGON_ABI {

/// What has to be equal on all ranks.
struct moe_record {
  std::size_t tokens, choices, experts, hidden, intermediate, type, index;
  std::uint64_t gradients;  ///< dx, dweights: a bit each

  moe_record() = default;
  moe_record(moe_shape s, std::size_t type_bytes, std::size_t index_bytes, bool dx, bool dweights)
      : tokens(s.tokens),
        choices(s.choices),
        experts(s.experts),
        hidden(s.hidden),
        intermediate(s.intermediate),
        type(type_bytes),
        index(index_bytes),
        gradients((dx ? 1u : 0u) + (dweights ? 2u : 0u)) {}
};

inline void expect_alike(std::string_view op, std::span<const moe_record> ranks) {
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const auto same = [&](std::string_view name, auto moe_record::*field) {
      if (ranks[r].*field != ranks[0].*field)
        fail_argument(error_code::state, op, name, std::to_string(ranks[r].*field) + " on rank " + std::to_string(r),
                      std::to_string(ranks[0].*field) + ", as on rank 0");
    };
    same("tokens", &moe_record::tokens), same("k", &moe_record::choices), same("experts", &moe_record::experts);
    same("hidden", &moe_record::hidden), same("intermediate", &moe_record::intermediate);
    same("bytes of an element", &moe_record::type), same("bytes of an index", &moe_record::index);
    same("the choice of dx and dweights", &moe_record::gradients);
  }
}

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#endif  // TIGON_OPS_EXPERT_PARALLEL_MOE_CONTRACT_HPP
