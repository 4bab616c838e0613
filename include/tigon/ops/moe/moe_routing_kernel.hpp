// Routing metadata of a mixture of experts: which tokens an expert gets, and in which order.
#ifndef TIGON_OPS_MOE_ROUTING_HPP
#define TIGON_OPS_MOE_ROUTING_HPP

#include <tigon/backend/operator.hpp>

#include <algorithm>
#include <limits>
#include <span>
#include <string>

namespace tigon {

namespace op {
struct moe_routing {
  static constexpr std::string_view name = "moe_routing";
};
}  // namespace op

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
/// Types      indices std::int32_t or std::int64_t; the outputs either of them, one for all.
/// Precision  exact. The sort is stable: inside an expert pairs are in the order of the tokens, and those of one token,
///            which may choose an expert several times, in the order of its choices. An expert may have no pairs.
/// Writes     counts, offsets, gather, scatter, positions; those without memory are not written.
/// Aliasing   none: any layout in which no written element is shared.
/// Throws     tigon::error: shape, stride, alias, workspace, argument (more pairs than the type of the outputs counts),
///            and index (in every build) for an index outside [0, experts); before the first write.
/// Max error  none (tests/ops/moe_routing_test.cpp).
template <class O>
struct moe_order {
  std::span<O> counts, offsets, gather, scatter, positions;
};

template <>
struct kernel<op::moe_routing, backends::generic> {
  using forward_only = void;

  template <backend, token_id I, token_id O>
  static void forward(matrix_view<const I> indices, std::size_t experts, moe_order<O> order, context& ctx) {
    workspace::frame frame(ctx.workspace());
    auto* next = frame.template take<std::size_t>(experts);
    std::fill(next, next + experts, std::size_t{0});
    for (std::size_t t = 0; t < indices.rows; ++t)
      for (std::size_t j = 0; j < indices.cols; ++j) ++next[indices.row(t)[j]];
    std::size_t first = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      const std::size_t count = next[e];
      put(order.counts, e, count), put(order.offsets, e, first);
      next[e] = first;
      first += count;
    }
    put(order.offsets, experts, first);
    for (std::size_t t = 0, pair = 0; t < indices.rows; ++t)
      for (std::size_t j = 0; j < indices.cols; ++j, ++pair) {
        const std::size_t p = next[indices.row(t)[j]]++;
        put(order.gather, p, t), put(order.scatter, p, pair), put(order.positions, pair, p);
      }
  }

  template <token_id O>
  static TIGON_INLINE void put(std::span<O> to, std::size_t at, std::size_t value) {
    if (to.data() != nullptr) to[at] = static_cast<O>(value);
  }
};

/// Bytes of workspace that moe_routing_forward takes.
constexpr TIGON_INLINE std::size_t moe_routing_workspace(std::size_t experts) {
  return workspace::bytes_for<std::size_t>(experts);
}

namespace detail {
inline namespace TIGON_ABI {
template <token_id I>
void expect_experts(std::string_view op, matrix_view<const I> indices, std::size_t experts) {
  for (std::size_t t = 0; t < indices.rows; ++t)
    for (std::size_t j = 0; j < indices.cols; ++j)
      if (const I e = indices.row(t)[j]; e < 0 || static_cast<std::size_t>(e) >= experts)
        fail_argument(error_code::index, op, "indices[" + std::to_string(t) + ", " + std::to_string(j) + "]",
                      std::to_string(e), "at least 0 and below " + std::to_string(experts));
}
}  // namespace TIGON_ABI
}  // namespace detail

/// The order of the pairs of `indices`. See moe_order for the contract.
template <class B = default_backend, class I, class O>
void moe_routing_forward(matrix_view<I> indices, std::size_t experts, moe_order<O> order,
                         context& ctx = default_context()) {
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

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MOE_ROUTING_HPP
