// GEGLU gate, forward and backward.
#ifndef TIGON_OPS_GEGLU_HPP
#define TIGON_OPS_GEGLU_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/gate/geglu_kernel.hpp>

namespace tigon {

/// Gated GELU.
///
///   y  = gelu(gate) * up,   dup = dy * gelu(gate),   dgate = dy * up * gelu'(gate)
///   tanh form: z = 2 k (x + l x^3), s = sigmoid(z), gelu(x) = x s, gelu'(x) = s + x s (1 - s) 2 k (1 + 3 l x^2)
///   erf form:  gelu(x)  = x (1 + erf(x / sqrt 2)) / 2
///              gelu'(x) = (1 + erf(x / sqrt 2)) / 2 + x exp(-x^2 / 2) / sqrt(2 pi)
///
/// Formula    docs/formulas/geglu.md; Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016; Shazeer, 2020.
/// Shapes     gate, up, y, dy, dgate, dup [rows, cols]; both may be 0. Halves of one buffer as in swiglu.
/// Types      f32, bf16, f16 or f64, the same for all.
/// Precision  f32 (f64 for f64), one rounding at y, dgate, dup; round_gate also rounds gelu to the storage type.
/// Options    backward takes those of forward.
/// Writes     y, dgate, dup.
/// Aliasing   forward: y may be gate or up. backward: dgate and dup may each be gate, up or dy, but not one another.
///            Otherwise no output shares an element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias; before the first write.
/// Edges      gelu(-inf) = 0, gelu(+inf) = inf, NaN stays NaN.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square, both ways; twice that in 16 bits with
///            round_gate (tests/ops/geglu_test.cpp). In the erf form below gate = -3 the error is absolute: where all
///            gates are there, the bound is of |reference| + 0.05 |up| (of dup 0.05 |dy|).
///
/// ```cpp
/// std::vector<float> gate(4 * 64, 0.5f), up(4 * 64, 2), y(4 * 64), dgate(4 * 64), dup(4 * 64);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), 4, 64); };
/// tigon::geglu_forward(rows(gate), rows(up), rows(y));
/// tigon::geglu_backward(rows(y), rows(gate), rows(up), rows(dgate), rows(dup));  // dy = y
/// ```
struct geglu_options;

/// y from gate and up. See geglu_options for the contract.
template <class B = default_backend, class T>
void geglu_forward(in_matrix<T> gate, in_matrix<T> up, matrix_view<T> y, geglu_options opt = {},
                   context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("geglu_forward");
  args.in("gate", gate, y.rows, y.cols);
  args.in("up", up, y.rows, y.cols);
  args.out("y", y).may_be("gate", "up");
  args.check();
  kernel_for<op::geglu, B>::template forward<B, T>(gate, up, y, opt, ctx);
}

/// dgate and dup from dy, gate and up. See geglu_options for the contract.
template <class B = default_backend, class T>
void geglu_backward(in_matrix<T> dy, in_matrix<T> gate, in_matrix<T> up, matrix_view<T> dgate, matrix_view<T> dup,
                    geglu_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::expect_gate_gradients("geglu_backward", dy, gate, up, dgate, dup);
  kernel_for<op::geglu, B>::template backward<B, T>(dy, gate, up, dgate, dup, opt, ctx);
}

TIGON_EXPLAINS(geglu_forward)
TIGON_EXPLAINS(geglu_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_GEGLU_HPP
