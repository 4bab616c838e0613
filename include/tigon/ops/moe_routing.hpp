// Routing metadata of a mixture of experts: which tokens an expert gets, and in which order.
#ifndef TIGON_OPS_MOE_ROUTING_HPP
#define TIGON_OPS_MOE_ROUTING_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/moe/moe_routing_kernel.hpp>

#include <limits>

namespace tigon {

/// The pairs of a token and an expert that it chose, sorted by expert. Pair q = k t + j is the j-th of the k choices of
/// token t; a position p is a place in the sorted order.
///
///   counts[e]    = pairs of expert e
///   offsets[e]   = sum over e' < e of counts[e'], the first position of expert e;   offsets[experts] = k tokens
///   positions[q] = offsets[e] + pairs q' < q of the same expert e
///   scatter[p]   = the pair at position p, the inverse of positions;   gather[p] = scatter[p] / k, its token
///
/// Formula    docs/formulas/moe.md.
/// Shapes     indices [tokens, k]; counts [experts]; offsets [experts + 1]; gather, scatter, positions [k tokens].
///            tokens and k may be 0, experts >= 1; k may be larger than experts.
/// Types      indices std::int32_t or std::int64_t; the outputs either of them, the same for all.
/// Precision  exact. The sort is stable: inside an expert pairs are in the order of the tokens, and those of one token,
///            which may choose an expert several times, in the order of its choices. An expert may have no pairs.
/// Writes     counts, offsets, gather, scatter, positions; those without memory are not written.
/// Aliasing   no output shares an element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, workspace, argument (more pairs than the type of the outputs counts),
///            and index (in every build) for an index outside [0, experts); before the first write.
/// Max error  none (tests/ops/moe_routing_test.cpp).
///
/// ```cpp
/// const std::vector<std::int32_t> experts{0, 2, 2, 1};
/// std::vector<std::int32_t> counts(3), offsets(4), gather(4), scatter(4), positions(4);
/// tigon::moe_routing_forward(tigon::matrix_view(experts.data(), 2, 2), 3,
///                            tigon::moe_order<std::int32_t>{counts, offsets, gather, scatter, positions});
/// ```
template <class O>
struct moe_order;

/// The order of the pairs of `indices`. See moe_order for the contract.
template <class B = default_backend, class I, class O>
void moe_routing_forward(matrix_view<I> indices, std::size_t experts, moe_order<O> order,
                         context& ctx = default_context<B>()) {
  using E = std::remove_const_t<I>;
  static_assert(token_id<E> && token_id<O>, "tigon: indices of experts are std::int32_t or std::int64_t");
  const std::size_t pairs = workspace::product(indices.rows, indices.cols);
  arguments args("moe_routing_forward");
  args.at_least_one("experts", experts);
  args.in("indices", indices);
  args.optional_out("counts", order.counts, experts);
  args.optional_out("offsets", order.offsets, experts + 1);
  args.optional_out("gather", order.gather, pairs);
  args.optional_out("scatter", order.scatter, pairs);
  args.optional_out("positions", order.positions, pairs);
  args.that(pairs <= static_cast<std::size_t>(std::numeric_limits<O>::max()), error_code::argument, "indices",
            "of more pairs than the type of the outputs counts", "outputs of std::int64_t");
  args.check();
  detail::expect_experts<E>("moe_routing_forward", indices, experts);
  ctx.workspace().expect("moe_routing_forward", moe_routing_workspace(experts));
  kernel_for<op::moe_routing, B>::template forward<B, E, O>(indices, experts, order, ctx);
}

TIGON_EXPLAINS(moe_routing_forward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MOE_ROUTING_HPP
