// Softmax over the last axis, forward and backward.
#ifndef TIGON_OPS_SOFTMAX_HPP
#define TIGON_OPS_SOFTMAX_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/softmax/softmax_kernel.hpp>

namespace tigon {

/// Softmax over the last axis.
///
///   y[i,j] = exp(scale * (x[i,j] - max_j x[i,j])) / sum_j of the same
///   delta[i] = sum_j dy[i,j] y[i,j] / sum_j y[i,j],   dx = scale * y * (dy - delta)
///
/// Formula    docs/formulas/softmax.md.
/// Shapes     x, y, dy, dx [rows, cols]. cols >= 1, rows may be 0.
/// Types      f32, bf16, f16 or f64, the same for all.
/// Precision  exponentials (for bf16 and f16 no more exact than y can store), sum and delta in f32 (f64 for f64), one
///            rounding at y and dx. A row of the rounded y need not add up to 1; so that dy - delta is not wrong by
///            that, delta is divided by the sum of y.
/// Options    backward takes those of forward.
/// Writes     y, dx.
/// Aliasing   forward: y may be x, and then rows of more than 1024 columns of f32 or f64 may be rounded differently.
///            backward: dx may be dy or y. Otherwise no output shares an element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (a scale that is not above 0, or outside option_range),
///            workspace; before the first write.
/// Edges      -inf gives 0; a row that has +inf or NaN, or only -inf, is NaN.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square, both ways (tests/ops/softmax_test.cpp). For
///            any input, where the terms of dx cancel: one rounding, and 1e-6 of scale y_j (|dy_j| + sum y |dy|)
///            (tests/fuzz/activations.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 64, 0.5f), y(4 * 64), dx(4 * 64);
/// const tigon::matrix_view in(x.data(), 4, 64), out(y.data(), 4, 64), gradient(dx.data(), 4, 64);
/// tigon::softmax_forward(in, out);
/// tigon::softmax_backward(out, out, gradient);  // dy = y
/// ```
struct softmax_options;

namespace detail {
inline namespace TIGON_ABI {
template <class T>
void expect_scale(const expects& expect, double scale) {
  expect.above_zero<accumulator_t<T>>("scale", scale);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// y from x. See softmax_options for the contract.
template <class B = default_backend, class T>
void softmax_forward(in_matrix<T> x, matrix_view<T> y, softmax_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("softmax_forward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.out("y", y, x.rows, x.cols).may_be("x");
  detail::expect_scale<T>(args, opt.scale);
  args.check();
  ctx.workspace().expect("softmax_forward", softmax_workspace<B, T>(x.cols, ctx));
  kernel_for<op::softmax, B>::template forward<B, T>(x, y, opt, ctx);
}

/// dx from dy and y. See softmax_options for the contract.
template <class B = default_backend, class T>
void softmax_backward(in_matrix<T> dy, in_matrix<T> y, matrix_view<T> dx, softmax_options opt = {},
                      context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("softmax_backward");
  args.at_least_one("cols", y.cols);
  args.in("y", y);
  args.in("dy", dy, y.rows, y.cols);
  args.out("dx", dx, y.rows, y.cols).may_be("dy", "y");
  detail::expect_scale<T>(args, opt.scale);
  args.check();
  kernel_for<op::softmax, B>::template backward<B, T>(dy, y, dx, opt, ctx);
}

TIGON_EXPLAINS(softmax_forward)
TIGON_EXPLAINS(softmax_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SOFTMAX_HPP
