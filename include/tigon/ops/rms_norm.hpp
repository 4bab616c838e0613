// RMSNorm over the last axis, forward and backward.
#ifndef TIGON_OPS_RMS_NORM_HPP
#define TIGON_OPS_RMS_NORM_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/norm/rms_norm_kernel.hpp>

namespace tigon {

/// RMSNorm over the last axis.
///
///   rstd[i] = 1 / sqrt(mean_j x[i,j]^2 + eps)
///   y[i,j]  = x[i,j] * rstd[i] * (offset + w[j])          w absent: y = x * rstd
///   m       = dy * (offset + w),   k[i] = sum_j m[i,j] x[i,j]
///   dx      = rstd * m - rstd^3 * k / cols * x
///   dw[j]   = sum_i dy[i,j] * x[i,j] * rstd[i]
///
/// Formula    docs/formulas/rms_norm.md; Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
/// Shapes     x, y, dy, dx [rows, cols]; w, dw [cols] or `absent`; dw may be absent beside a w, which is then frozen;
///            rstd [rows]. cols >= 1, rows may be 0.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; w and dw any of them (f64 only with f64).
/// Precision  sums and rstd in f32 (f64 for f64); y, dx and dw are rounded once (llama also rounds x * rstd).
/// Options    backward uses rstd, and eps has no effect, except where dx of rows of a few columns nearly cancels: there
///            eps adds the digits that rstd lacks in f32, if the two agree. offset and casting are those of forward.
/// Writes     y, rstd, dx; dw is overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: dx may be dy or x. forward: y may not be x, which backward needs. Otherwise no output shares an
///            element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative, a number outside option_range), workspace;
///            before the first write.
/// Range      every finite x whose rstd is finite in its type: with eps = 0, rows whose root mean square is at least
///            the smallest normal number. NaN makes its row of y and dx NaN, and dw. An infinity does the same, except
///            in y, where it becomes NaN and the rest of its row 0.
/// Max error  f32 4e-7, bf16 6e-3 of |reference| + its root mean square; gradients 1e-6, 8e-3, that of dw of
///            |reference| + the root sum of squares of what it is the sum of (tests/ops/rms_norm_test.cpp),
///            for any number of rows (tests/rows/many_rows_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 64, 0.5f), w(64, 2), y(4 * 64), rstd(4), dx(4 * 64), dw(64);
/// const tigon::matrix_view rows(x.data(), 4, 64), out(y.data(), 4, 64);
/// tigon::rms_norm_forward(rows, w, out, rstd, {.eps = 1e-5});
/// tigon::rms_norm_backward(out, rows, w, rstd, tigon::matrix_view(dx.data(), 4, 64), dw, {.eps = 1e-5});  // dy = y
/// ```
struct rms_norm_options;

/// y and rstd from x and w. See rms_norm_options for the contract.
template <class B = default_backend, class T, parameter W>
void rms_norm_forward(in_matrix<T> x, const W& w, matrix_view<T> y,
                      std::type_identity_t<saved_t<op::rms_norm, B, accumulator_t<T>>> rstd, rms_norm_options opt = {},
                      context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(w);
  static_assert(admits_parameter<T, decltype(weight)>());
  arguments args("rms_norm_forward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.optional_in("w", weight, x.cols);
  args.out("y", y, x.rows, x.cols);
  args.out("rstd", rstd, x.rows);
  args.eps<accumulator_t<T>>(opt.eps);
  args.finite<accumulator_t<T>>("offset", opt.offset);
  args.check();
  kernel_for<op::rms_norm, B>::template forward<B, T>(x, weight, y, rstd, opt, ctx);
}

/// dx and dw from dy and what forward left. See rms_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter DW>
void rms_norm_backward(in_matrix<T> dy, in_matrix<T> x, const W& w,
                       std::type_identity_t<saved_t<op::rms_norm, B, const accumulator_t<T>>> rstd, matrix_view<T> dx,
                       DW&& dw, rms_norm_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(w);
  const auto dweight = as_out_vector<T>(dw);
  static_assert(admits_parameter<T, decltype(weight), decltype(dweight)>());
  arguments args("rms_norm_backward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.in("dy", dy, x.rows, x.cols);
  args.optional_in("w", weight, x.cols);
  args.in("rstd", rstd, x.rows);
  args.out("dx", dx, x.rows, x.cols).may_be("dy", "x");
  args.optional_out("dw", dweight, weight.size);
  args.finite<accumulator_t<T>>("offset", opt.offset);
  args.check();
  ctx.workspace().expect("rms_norm_backward",
                         rms_norm_workspace<B, T>(x.rows, x.cols, trained_if(dweight.data != nullptr)));
  kernel_for<op::rms_norm, B>::template backward<B, T>(dy, x, weight, rstd, dx, dweight, opt, ctx);
}

TIGON_EXPLAINS(rms_norm_forward)
TIGON_EXPLAINS(rms_norm_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_RMS_NORM_HPP
