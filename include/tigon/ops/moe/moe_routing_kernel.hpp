// The generic kernel of moe_routing.
#ifndef TIGON_OPS_MOE_MOE_ROUTING_KERNEL_HPP
#define TIGON_OPS_MOE_MOE_ROUTING_KERNEL_HPP

#include <tigon/ops/moe/moe_routing_options.hpp>

#include <algorithm>
#include <span>
#include <string>

namespace tigon {

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

}  // namespace tigon

#endif  // TIGON_OPS_MOE_MOE_ROUTING_KERNEL_HPP
