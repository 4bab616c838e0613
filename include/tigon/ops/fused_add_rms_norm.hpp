// Residual addition and RMSNorm in one pass, forward and backward.
#ifndef TIGON_OPS_FUSED_ADD_RMS_NORM_HPP
#define TIGON_OPS_FUSED_ADD_RMS_NORM_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/norm/fused_add_rms_norm_kernel.hpp>

namespace tigon {

/// The residual stream's step: add, then normalise the sum; both are results.
///
///   s = x + r            rounded to the storage type, and the norm is taken of the rounded sum
///   y = rms_norm(s)      rstd[i] = 1 / sqrt(mean_j s[i,j]^2 + eps), y = s * rstd * (offset + w)
///   m = dy * (offset + w),   k[i] = sum_j m[i,j] s[i,j]
///   dx = dr = rstd * m - rstd^3 * k / cols * s + ds,   dw[j] = sum_i dy[i,j] * s[i,j] * rstd[i]
///
/// Formula    docs/formulas/fused_add_rms_norm.md.
/// Shapes     x, r, s, y, dy, ds, dx [rows, cols]; w, dw [cols] or `absent`; dw may be absent beside a w, which is then
///            frozen; rstd [rows]; ds may be an empty view (its data null: the sum has no other use), or dy may (y has
///            no use: dx is ds, dw is 0). cols >= 1, rows may be 0.
/// Types      as rms_norm; x and r have one type.
/// Precision  as rms_norm; dx is rounded once, ds is added before that.
/// Options    backward uses rstd, and eps has no effect. offset and casting are those of forward.
/// Writes     s, y, rstd; dx, which is the gradient of x and of r; dr only where its view has memory;
///            dw is overwritten, or added to with gradient::accumulate.
/// Aliasing   forward: s and y may each be x or r, but s may not be y. backward: dx may be dy or ds. Otherwise no
///            output shares an element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative, a number outside option_range), workspace;
///            before the first write.
/// Range      every finite s whose rstd is finite in its type: with eps = 0, rows whose root mean square is at least
///            the smallest normal number. NaN makes its row of y and dx NaN, and dw. An infinity does the same, except
///            in y, where its own element becomes NaN and the rest of its row becomes 0.
/// Max error  f32 4e-7, bf16 6e-3 of |reference| + its root mean square; gradients 2e-6, 8e-3, that of dw of
///            |reference| + the root sum of squares of what it is the sum of (tests/ops/fused_add_rms_norm_test.cpp),
///            for any number of rows (tests/rows/many_rows_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 64, 0.5f), r(4 * 64, 1), w(64, 2), y(4 * 64), s(4 * 64), rstd(4), dx(4 * 64), dw(64);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), 4, 64); };
/// tigon::fused_add_rms_norm_forward(rows(x), rows(r), w, rows(y), rows(s), rstd);
/// tigon::fused_add_rms_norm_backward(rows(y), rows(s), rows(s), w, rstd,
///                                    tigon::fused_add_rms_norm_gradients{rows(dx), dw});  // dy = y, ds = s
/// ```
using fused_add_rms_norm_options = rms_norm_options;

/// Bytes of workspace that fused_add_rms_norm_backward takes, with dw or without.
template <class B = default_backend, class T>
std::size_t fused_add_rms_norm_workspace(std::size_t rows, std::size_t cols, parameters of = parameters::trained) {
  return rms_norm_workspace<B, T>(rows, cols, of);
}

/// s, y and rstd from x, r and w. See fused_add_rms_norm_options for the contract.
template <class B = default_backend, class T, parameter W>
void fused_add_rms_norm_forward(in_matrix<T> x, in_matrix<T> r, const W& w, matrix_view<T> y, matrix_view<T> s,
                                std::type_identity_t<saved_t<op::fused_add_rms_norm, B, accumulator_t<T>>> rstd,
                                fused_add_rms_norm_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(w);
  static_assert(admits_parameter<T, decltype(weight)>());
  arguments args("fused_add_rms_norm_forward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.in("r", r, x.rows, x.cols);
  args.optional_in("w", weight, x.cols);
  args.out("s", s, x.rows, x.cols).may_be("x", "r");
  args.out("y", y, x.rows, x.cols).may_be("x", "r");
  args.out("rstd", rstd, x.rows);
  args.eps<accumulator_t<T>>(opt.eps);
  args.finite<accumulator_t<T>>("offset", opt.offset);
  args.check();
  kernel_for<op::fused_add_rms_norm, B>::template forward<B, T>(x, r, weight, y, s, rstd, opt, ctx);
}

/// dx (which is dr too, and copied to dr where that view has memory) and dw from dy, ds and what forward left.
/// See fused_add_rms_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter DW>
void fused_add_rms_norm_backward(in_matrix<T> dy, in_matrix<T> ds, in_matrix<T> s, const W& w,
                                 std::type_identity_t<saved_t<op::fused_add_rms_norm, B, const accumulator_t<T>>> rstd,
                                 const fused_add_rms_norm_gradients<T, DW>& gradients,
                                 fused_add_rms_norm_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(w);
  const fused_add_rms_norm_gradients to{gradients.dx, as_out_vector<T>(gradients.dw), gradients.dr};
  static_assert(admits_parameter<T, decltype(weight), decltype(to.dw)>());
  arguments args("fused_add_rms_norm_backward");
  args.at_least_one("cols", s.cols);
  args.in("s", s);
  args.that(dy.data != nullptr || ds.data != nullptr || s.rows == 0, error_code::shape, "dy", "absent, as ds is",
            "one of the two, or both");
  args.optional_in("dy", dy, s.rows, s.cols);
  args.optional_in("ds", ds, s.rows, s.cols);
  args.optional_in("w", weight, s.cols);
  args.in("rstd", rstd, s.rows);
  args.out("dx", to.dx, s.rows, s.cols).may_be("dy", "ds");
  args.optional_out("dr", to.dr, s.rows, s.cols);
  args.optional_out("dw", to.dw, weight.size);
  args.finite<accumulator_t<T>>("offset", opt.offset);
  args.check();
  ctx.workspace().expect("fused_add_rms_norm_backward",
                         fused_add_rms_norm_workspace<B, T>(s.rows, s.cols, trained_if(to.dw.data != nullptr)));
  kernel_for<op::fused_add_rms_norm, B>::template backward<B, T>(dy, ds, s, weight, rstd, to, opt, ctx);
}

TIGON_EXPLAINS(fused_add_rms_norm_forward)
TIGON_EXPLAINS(fused_add_rms_norm_backward)

}  // namespace tigon

#include <tigon/ops/rms_norm.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_FUSED_ADD_RMS_NORM_HPP
