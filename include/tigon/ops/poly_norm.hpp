// PolyNorm over the last axis, forward and backward.
#ifndef TIGON_OPS_POLY_NORM_HPP
#define TIGON_OPS_POLY_NORM_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/norm/poly_norm_kernel.hpp>

namespace tigon {

/// The normalised powers of a row, mixed. Numbers with a p exist for p = 3, 2, 1, in this order.
///
///   rstd_p[i] = 1 / sqrt(mean_j x[i,j]^(2p) + eps)
///   y         = sum_p w_p x^p rstd_p + b
///   S_p[i]    = sum_j dy x^p,   h_p = rstd_p S_p / cols
///   dx        = sum_p w_p p x^(p-1) rstd_p (dy - h_p rstd_p x^p)
///   dw_p      = sum_i rstd_p S_p,   db = sum_ij dy
///
/// Formula    docs/formulas/poly_norm.md; Zhuo et al., "Polynomial Composition Activations", 2024.
/// Shapes     x, y, dy, dx [rows, cols]; w, dw [3], the weight of the cube first; b, db [1]; rstd [3 rows], three
///            numbers a row. Gradients of parameters may be `absent`: those are frozen. cols >= 1, rows may be 0.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; w and dw any of them, b and db any of them (f64 only with f64).
/// Precision  f32 (f64 for f64), y, dx, dw and db are rounded once; f64 for rows that f32 does not hold, and in
///            backward for narrow rows and small problems.
/// Options    backward uses rstd, and eps has no effect, except where dx of rows of a few columns nearly cancels: there
///            eps adds the digits that rstd lacks in f32, if the two agree.
/// Writes     y, rstd, dx; dw and db are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: dx may be dy or x. forward: y may not be x, which backward needs. Otherwise no output shares an
///            element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative, or outside option_range), workspace; before
///            the first write.
/// Range      every finite x.
/// Edges      NaN makes its row of y and dx NaN. An infinity turns into NaN in y, where the rest of its row is b, and
///            makes its row of dx NaN. Either makes dw NaN.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square; gradients 2e-6, 4e-3, those of parameters
///            of |reference| + the root sum of squares of what it is the sum of (tests/ops/poly_norm_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 64, 0.5f), w(3, 1), b(1), y(4 * 64), rstd(4 * 3), dx(4 * 64), dw(3), db(1);
/// const tigon::matrix_view in(x.data(), 4, 64), out(y.data(), 4, 64), gradient(dx.data(), 4, 64);
/// tigon::poly_norm_forward(in, w, b, out, rstd);
/// tigon::poly_norm_backward(out, in, w, rstd, tigon::norm_gradients{gradient, dw, db});  // dy = y
/// ```
struct poly_norm_options;

/// Bytes of workspace that poly_norm_backward takes, with dw or db, or without both.
template <class B = default_backend, class T>
std::size_t poly_norm_workspace(std::size_t rows, parameters of = parameters::trained) {
  return of == parameters::frozen ? 0 : workspace::bytes_for<double>(4, rows);
}

/// y and rstd from x, w and b. See poly_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter Bias>
void poly_norm_forward(in_matrix<T> x, const W& w, const Bias& b, matrix_view<T> y,
                       std::type_identity_t<saved_t<op::poly_norm, B, accumulator_t<T>>> rstd,
                       poly_norm_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(w);
  const auto bias = as_in_vector<T>(b);
  static_assert(admits_parameter<T, decltype(weight)>() && admits_parameter<T, decltype(bias)>());
  arguments args("poly_norm_forward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.in("w", weight, 3);
  args.in("b", bias, 1);
  args.out("y", y, x.rows, x.cols);
  args.out("rstd", rstd, 3 * x.rows);
  args.eps<accumulator_t<T>>(opt.eps);
  args.check();
  kernel_for<op::poly_norm, B>::template forward<B, T>(x, weight, bias, y, rstd, opt, ctx);
}

/// dx, dw and db from dy and what forward left. See poly_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter DW, parameter DB>
void poly_norm_backward(in_matrix<T> dy, in_matrix<T> x, const W& w,
                        std::type_identity_t<saved_t<op::poly_norm, B, const accumulator_t<T>>> rstd,
                        const norm_gradients<T, DW, DB>& gradients, poly_norm_options opt = {},
                        context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, W, DW>;
  const auto weight = as_in_vector<P>(w);
  const norm_gradients to{gradients.dx, as_out_vector<P>(gradients.dw), as_out_vector<T>(gradients.db)};
  static_assert(admits_parameter<T, decltype(weight), decltype(to.dw)>() && admits_parameter<T, decltype(to.db)>());
  arguments args("poly_norm_backward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.in("dy", dy, x.rows, x.cols);
  args.in("w", weight, 3);
  args.in("rstd", rstd, 3 * x.rows);
  args.out("dx", to.dx, x.rows, x.cols).may_be("dy", "x");
  args.optional_out("db", to.db, 1);
  args.optional_out("dw", to.dw, 3);
  args.eps<accumulator_t<T>>(opt.eps);
  args.check();
  ctx.workspace().expect("poly_norm_backward", poly_norm_workspace<B, T>(x.rows, detail::trained(to)));
  kernel_for<op::poly_norm, B>::template backward<B, T>(dy, x, weight, rstd, to, opt, ctx);
}

TIGON_EXPLAINS(poly_norm_forward)
TIGON_EXPLAINS(poly_norm_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_POLY_NORM_HPP
