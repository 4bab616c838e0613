// SwiGLU gate of gate and up in one buffer, forward and backward.
#ifndef TIGON_OPS_SWIGLU_FUSED_HPP
#define TIGON_OPS_SWIGLU_FUSED_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/gate/swiglu_fused_kernel.hpp>

namespace tigon {

/// swiglu (see swiglu_options) of gate and up in one buffer.
///
///   halves:       gate[i,j] = gate_up[i,j],    up[i,j] = gate_up[i,cols+j]
///   interleaved:  gate[i,j] = gate_up[i,2j],   up[i,j] = gate_up[i,2j+1]
///   dgate_up has dgate where gate_up has gate, dup where it has up.
///
/// Formula    docs/formulas/swiglu.md.
/// Shapes     gate_up, dgate_up [rows, 2 cols]; y, dy [rows, cols]; both may be 0.
/// Types      f32, bf16, f16 or f64, the same for all.
/// Precision  as swiglu.
/// Options    backward takes those of forward.
/// Writes     y, dgate_up.
/// Aliasing   backward: dgate_up may be gate_up; a second backward would then read gradients. forward: no overlap; for
///            y over the gate use swiglu_forward with two views. Otherwise no output shares an element with another
///            argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (as swiglu); before the first write.
/// Edges      as swiglu.
/// Max error  that of swiglu, and its bits (tests/ops/swiglu_fused_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 128, 0.5f), y(4 * 64), dx(4 * 128);
/// const tigon::matrix_view in(x.data(), 4, 128), out(y.data(), 4, 64), gradient(dx.data(), 4, 128);
/// tigon::swiglu_fused_forward(in, out, tigon::gate_layout::halves);
/// tigon::swiglu_fused_backward(out, in, gradient, tigon::gate_layout::halves);  // dy = y
/// ```
using swiglu_fused_options = swiglu_options;

/// y from gate_up. See swiglu_fused_options for the contract.
template <class B = default_backend, class T>
void swiglu_fused_forward(in_matrix<T> gate_up, matrix_view<T> y, gate_layout layout = gate_layout::halves,
                          swiglu_fused_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("swiglu_fused_forward");
  args.in("gate_up", gate_up, y.rows, 2 * y.cols);
  args.out("y", y);
  detail::expect_swiglu_options<accumulator_t<T>>(args, opt);
  args.check();
  kernel_for<op::swiglu_fused, B>::template forward<B, T>(gate_up, y, layout, opt, ctx);
}

/// dgate_up from dy and gate_up. See swiglu_fused_options for the contract.
template <class B = default_backend, class T>
void swiglu_fused_backward(in_matrix<T> dy, in_matrix<T> gate_up, matrix_view<T> dgate_up,
                           gate_layout layout = gate_layout::halves, swiglu_fused_options opt = {},
                           context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("swiglu_fused_backward");
  args.in("dy", dy);
  args.in("gate_up", gate_up, dy.rows, 2 * dy.cols);
  args.out("dgate_up", dgate_up, dy.rows, 2 * dy.cols).may_be("gate_up");
  detail::expect_swiglu_options<accumulator_t<T>>(args, opt);
  args.check();
  kernel_for<op::swiglu_fused, B>::template backward<B, T>(dy, gate_up, dgate_up, layout, opt, ctx);
}

TIGON_EXPLAINS(swiglu_fused_forward)
TIGON_EXPLAINS(swiglu_fused_backward)

}  // namespace tigon

#include <tigon/ops/swiglu.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SWIGLU_FUSED_HPP
