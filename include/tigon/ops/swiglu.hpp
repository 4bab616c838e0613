// SwiGLU gate, forward and backward.
#ifndef TIGON_OPS_SWIGLU_HPP
#define TIGON_OPS_SWIGLU_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/gate/swiglu_kernel.hpp>

namespace tigon {

/// Gated SiLU.
///
///   z     = gate_multiplier * gate,   v = z * sigmoid(z),   y = down_multiplier * v * up
///   dup   = down_multiplier * dy * v
///   dgate = down_multiplier * gate_multiplier * dy * up * (s + v (1 - s)),   s = sigmoid(z)
/// and where limit, slope or up_offset say so
///   z     = min(gate_multiplier * gate, limit),   s = sigmoid(slope * z)
///   u     = min(max(up, -limit), limit) + up_offset
///   y     = down_multiplier * z s * u
///   dup   = down_multiplier * dy * z s                            0 where |up| > limit
///   dgate = down_multiplier * gate_multiplier * dy * u * (s + slope * z s (1 - s))
///                                                                 0 where gate_multiplier * gate > limit
///
/// Formula    docs/formulas/swiglu.md; Shazeer, "GLU Variants Improve Transformer", 2020.
/// Shapes     gate, up, y, dy, dgate, dup [rows, cols]; both may be 0. The halves of one buffer are two views with
///            the buffer's row stride: gate = b.cols_from(0, n), up = b.cols_from(n, n); or see swiglu_fused.
/// Types      f32, bf16, f16 or f64, the same for all.
/// Precision  f32 (f64 for f64), one rounding at y, dgate, dup; round_gate also rounds silu to the storage type.
/// Options    backward takes those of forward.
/// Writes     y, dgate, dup.
/// Aliasing   forward: y may be gate or up. backward: dgate and dup may each be gate, up or dy, but not one another;
///            written over gate and up, a second backward would read gradients. Otherwise no output shares an element
///            with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (a slope or limit that is not above 0; a number, 64 slope or
///            the product of the multipliers outside option_range); before the first write.
/// Edges      silu(-inf) = 0, silu(+inf) = inf, NaN stays NaN, also under a limit.
/// Max error  f32 6e-7, bf16 4e-3 of |reference| + its root mean square, both ways; twice that in 16 bits with
///            round_gate (tests/ops/swiglu_test.cpp).
///
/// ```cpp
/// std::vector<float> gate(4 * 64, 0.5f), up(4 * 64, 2), y(4 * 64), dgate(4 * 64), dup(4 * 64);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), 4, 64); };
/// tigon::swiglu_forward(rows(gate), rows(up), rows(y));
/// tigon::swiglu_backward(rows(y), rows(gate), rows(up), rows(dgate), rows(dup));  // dy = y
/// ```
struct swiglu_options;

/// y from gate and up. See swiglu_options for the contract.
template <class B = default_backend, class T>
void swiglu_forward(in_matrix<T> gate, in_matrix<T> up, matrix_view<T> y, swiglu_options opt = {},
                    context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("swiglu_forward");
  args.in("gate", gate, y.rows, y.cols);
  args.in("up", up, y.rows, y.cols);
  args.out("y", y).may_be("gate", "up");
  detail::expect_swiglu_options<accumulator_t<T>>(args, opt);
  args.check();
  kernel_for<op::swiglu, B>::template forward<B, T>(gate, up, y, opt, ctx);
}

/// dgate and dup from dy, gate and up. See swiglu_options for the contract.
template <class B = default_backend, class T>
void swiglu_backward(in_matrix<T> dy, in_matrix<T> gate, in_matrix<T> up, matrix_view<T> dgate, matrix_view<T> dup,
                     swiglu_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::expect_gate_gradients("swiglu_backward", dy, gate, up, dgate, dup);
  detail::expect_swiglu_options<accumulator_t<T>>(expects("swiglu_backward"), opt);
  kernel_for<op::swiglu, B>::template backward<B, T>(dy, gate, up, dgate, dup, opt, ctx);
}

TIGON_EXPLAINS(swiglu_forward)
TIGON_EXPLAINS(swiglu_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SWIGLU_HPP
