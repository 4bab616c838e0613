// Squared ReLU, forward and backward.
#ifndef TIGON_OPS_RELU_SQUARED_HPP
#define TIGON_OPS_RELU_SQUARED_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/gate/relu_squared_kernel.hpp>

namespace tigon {

/// The square of what is positive.
///
///   u  = max(x, 0),   y = u^2
///   dx = 2 dy u                  with from_y: u = sqrt(y)
///
/// Formula    docs/formulas/relu_squared.md; So et al., "Primer: Searching for Efficient Transformers", 2021.
/// Shapes     x, y, dy, dx [rows, cols]; both may be 0.
/// Types      f32, bf16, f16 or f64, the same for all.
/// Precision  f32 (f64 for f64), one rounding at y and dx. from_y: the relative error that rounding leaves in y is in
///            dx, too, half as large.
/// Writes     y, dx.
/// Aliasing   forward: y may be x with from_y; otherwise not, because backward needs x. backward: dx may be dy or x
///            (y). Otherwise no output shares an element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias; before the first write.
/// Edges      NaN stays NaN, -inf and zeros of either sign give 0, +inf gives inf. With from_y, dx is 0 where x^2
///            rounds to 0, and infinite where it rounds to infinity (f16: from 256 on).
/// Max error  f32 2e-7, bf16 4e-3 of |reference| + its root mean square, both ways; dx with from_y bf16 6e-3
///            (tests/ops/relu_squared_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 64, 0.5f), y(4 * 64), dx(4 * 64);
/// const tigon::matrix_view in(x.data(), 4, 64), out(y.data(), 4, 64), gradient(dx.data(), 4, 64);
/// tigon::relu_squared_forward(in, out);
/// tigon::relu_squared_backward(out, in, gradient);  // dy = y
/// ```
struct relu_squared_options;

/// y from x. See relu_squared_options for the contract.
template <class B = default_backend, class T>
void relu_squared_forward(in_matrix<T> x, matrix_view<T> y, relu_squared_options opt = {},
                          context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("relu_squared_forward");
  args.in("x", x, y.rows, y.cols);
  args.out("y", y);
  if (opt.from_y) args.may_be("x");
  args.check();
  kernel_for<op::relu_squared, B>::template forward<B, T>(x, y, ctx);
}

/// dx from dy and x, or with from_y from dy and y. See relu_squared_options for the contract.
template <class B = default_backend, class T>
void relu_squared_backward(in_matrix<T> dy, in_matrix<T> x, matrix_view<T> dx, relu_squared_options opt = {},
                           context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("relu_squared_backward");
  const char* saved = opt.from_y ? "y" : "x";
  args.in("dy", dy, dx.rows, dx.cols);
  args.in(saved, x, dx.rows, dx.cols);
  args.out("dx", dx).may_be("dy", saved);
  args.check();
  kernel_for<op::relu_squared, B>::template backward<B, T>(dy, x, dx, opt, ctx);
}

TIGON_EXPLAINS(relu_squared_forward)
TIGON_EXPLAINS(relu_squared_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_RELU_SQUARED_HPP
