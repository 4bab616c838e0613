// LayerNorm over the last axis, forward and backward.
#ifndef TIGON_OPS_LAYER_NORM_HPP
#define TIGON_OPS_LAYER_NORM_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/norm/layer_norm_kernel.hpp>

namespace tigon {

/// LayerNorm over the last axis.
///
///   mean[i] = mean_j x[i,j],   rstd[i] = 1 / sqrt(mean_j (x[i,j] - mean[i])^2 + eps)
///   xh      = (x - mean) * rstd,   y = xh * w + b             absent: w = 1, b = 0
///   h       = dy * w,   c1[i] = mean_j xh[i,j] h[i,j],   c2[i] = mean_j h[i,j]
///   dx      = rstd * (h - c2 - xh * c1),   dw[j] = sum_i dy * xh,   db[j] = sum_i dy
///
/// Formula    docs/formulas/layer_norm.md; Ba, Kiros and Hinton, "Layer Normalization", 2016.
/// Shapes     x, y, dy, dx [rows, cols]; w, b, dw, db [cols] or `absent`; a gradient may be absent beside its
///            parameter, which is then frozen; mean, rstd [rows]. cols >= 1, rows may be 0.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; parameters of one type, any of them (f64 only with f64).
/// Precision  the variance is summed about 0, or about the mean where that is more than a deviation away from 0; sums,
///            mean and rstd in f32 (f64 for f64); backward makes up for the rounding of mean; y, dx, dw, db rounded
///            once.
/// Options    backward uses mean and rstd, and eps has no effect.
/// Writes     y, mean, rstd, dx; dw and db are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: dx may be dy or x. forward: y may not be x, which backward needs. Otherwise no output shares an
///            element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative, or outside option_range), workspace; before
///            the first write.
/// Range      any mean that x can hold beside the deviation, and every deviation whose rstd is finite in its type: with
///            eps = 0, at least the smallest normal number. NaN or an infinity makes its row of y and dx NaN, and dw.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square, forward at least of 1; gradients 2e-6, 4e-3
///            (tests/ops/layer_norm_test.cpp), for any number of rows (tests/rows/many_rows_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 64, 0.5f), w(64, 2), b(64, 1), y(4 * 64), mean(4), rstd(4), dx(4 * 64), dw(64), db(64);
/// const tigon::matrix_view rows(x.data(), 4, 64), out(y.data(), 4, 64), gradient(dx.data(), 4, 64);
/// tigon::layer_norm_forward(rows, w, b, out, mean, rstd, {.eps = 1e-5});
/// tigon::layer_norm_backward(out, rows, w, mean, rstd, tigon::norm_gradients{gradient, dw, db});  // dy = y
/// ```
struct layer_norm_options;

/// y, mean and rstd from x, w and b. See layer_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter Bias>
void layer_norm_forward(in_matrix<T> x, const W& w, const Bias& b, matrix_view<T> y,
                        std::type_identity_t<saved_t<op::layer_norm, B, accumulator_t<T>>> mean,
                        std::type_identity_t<saved_t<op::layer_norm, B, accumulator_t<T>>> rstd,
                        layer_norm_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<parameter_element_t<T, W, Bias>>(w);
  const auto bias = as_in_vector<parameter_element_t<T, W, Bias>>(b);
  static_assert(admits_parameter<T, decltype(weight), decltype(bias)>());
  arguments args("layer_norm_forward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.optional_in("w", weight, x.cols);
  args.optional_in("b", bias, x.cols);
  args.out("y", y, x.rows, x.cols);
  args.out("rstd", rstd, x.rows);
  args.out("mean", mean, x.rows);
  args.eps<accumulator_t<T>>(opt.eps);
  args.check();
  kernel_for<op::layer_norm, B>::template forward<B, T>(x, weight, bias, y, mean, rstd, opt, ctx);
}

/// dx, dw and db from dy and what forward left. See layer_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter DW, parameter DB>
void layer_norm_backward(in_matrix<T> dy, in_matrix<T> x, const W& w,
                         std::type_identity_t<saved_t<op::layer_norm, B, const accumulator_t<T>>> mean,
                         std::type_identity_t<saved_t<op::layer_norm, B, const accumulator_t<T>>> rstd,
                         const norm_gradients<T, DW, DB>& gradients, layer_norm_options opt = {},
                         context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto [weight, to] = detail::views_of_norm<T>(w, gradients);
  arguments args("layer_norm_backward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.in("dy", dy, x.rows, x.cols);
  args.optional_in("w", weight, x.cols);
  args.in("mean", mean, x.rows);
  args.in("rstd", rstd, x.rows);
  args.out("dx", to.dx, x.rows, x.cols).may_be("dy", "x");
  args.optional_out("db", to.db, x.cols);
  args.optional_out("dw", to.dw, x.cols);
  args.check();
  ctx.workspace().expect("layer_norm_backward", layer_norm_workspace<B, T>(x.rows, x.cols, detail::trained(to)));
  kernel_for<op::layer_norm, B>::template backward<B, T>(dy, x, weight, mean, rstd, to, opt, ctx);
}

TIGON_EXPLAINS(layer_norm_forward)
TIGON_EXPLAINS(layer_norm_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_LAYER_NORM_HPP
