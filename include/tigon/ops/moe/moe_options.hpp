// The tag, options, operands and checks of moe.
#ifndef TIGON_OPS_MOE_MOE_OPTIONS_HPP
#define TIGON_OPS_MOE_MOE_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/gemm/contract.hpp>
#include <tigon/ops/gate/swiglu_fused_options.hpp>
#include <tigon/ops/mlp/gate_of_options.hpp>
#include <tigon/ops/moe/arguments.hpp>
#include <tigon/ops/moe/moe_routing_options.hpp>

namespace tigon {

namespace op {
struct moe {
  static constexpr std::string_view name = "moe";
};
}  // namespace op

/// The contract is in ops/moe.hpp.
template <class Gate = mlp_gate>
struct moe_options_for {
  gate_layout layout = gate_layout::halves;
  gradient dw = gradient::overwrite;  ///< of the gradients of weights and biases
  Gate gate = {};                     ///< mlp_gate, swiglu_options or geglu_options
};
using moe_options = moe_options_for<>;

/// What forward leaves for any number of backwards, in memory of the caller: g and u of a pair side by side.
template <class T>
struct moe_saved {
  matrix_view<T> memory;  ///< [tokens * k, 2 * intermediate]
  bool filled = false;    ///< by forward
};

/// The calls that have a workspace, and the extents that it depends on.
enum class moe_pass { forward, inference, backward, recompute };
struct moe_shape {
  std::size_t tokens, choices, experts, hidden, intermediate;
};

namespace detail {
inline namespace TIGON_ABI {
template <class T, class W, class I, class R>
moe_shape declare_moe(arguments& args, matrix_view<const T> x, const moe_choices<I, R>& c, moe_weights<const W> w) {
  const moe_shape s{x.rows, c.indices.cols, w.experts, x.cols, w.down.cols};
  args.at_least_one("experts", s.experts);
  args.in("x", x);
  args.in("indices", c.indices, s.tokens, s.choices);
  args.in("weights", c.weights, s.tokens, s.choices);
  args.in("gate_up", w.gate_up, workspace::product(s.experts, 2, s.intermediate), s.hidden);
  args.in("down", w.down, workspace::product(s.experts, s.hidden), s.intermediate);
  args.optional_in("gate_up_bias", w.gate_up_bias, s.experts, workspace::product(2, s.intermediate));
  args.optional_in("down_bias", w.down_bias, s.experts, s.hidden);
  return s;
}
template <class T, class W, class G, class R>
void declare_moe_gradients(arguments& args, matrix_view<const T> dy, moe_weights<const W> w, moe_shape s,
                           const moe_gradients<T, G, R>& to) {
  args.in("dy", dy, s.tokens, s.hidden);
  args.optional_out("dx", to.dx, s.tokens, s.hidden);
  args.optional_out("dgate_up", to.dgate_up, w.gate_up.rows, w.gate_up.cols);
  args.optional_out("ddown", to.ddown, w.down.rows, w.down.cols);
  args.optional_out("dweights", to.dweights, s.tokens, s.choices);
  args.optional_out("dgate_up_bias", to.dgate_up_bias, s.experts, workspace::product(2, s.intermediate));
  args.optional_out("ddown_bias", to.ddown_bias, s.experts, s.hidden);
}

template <class B, class T, class W, class G, class I, class R>
consteval bool admits_moe() {
  static_assert(gemm_detail::admits_types<B, T, W, G>() && admits<B, R>());
  static_assert(mixes_with<T, R>, "tigon: double routing weights go only with double activations; convert one of them");
  static_assert(token_id<I>, "tigon: indices of experts are std::int32_t or std::int64_t");
  return true;
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_MOE_MOE_OPTIONS_HPP
