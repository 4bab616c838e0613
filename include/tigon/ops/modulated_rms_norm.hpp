// RMSNorm with a scale and a shift for every group of rows, forward and backward.
#ifndef TIGON_OPS_MODULATED_RMS_NORM_HPP
#define TIGON_OPS_MODULATED_RMS_NORM_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/norm/modulated_rms_norm_kernel.hpp>

namespace tigon {

/// RMSNorm whose result is scaled and shifted by what rows of a group share, as in diffusion transformers.
///
///   rstd[i] = 1 / sqrt(mean_j x[i,j]^2 + eps),   a = x * rstd * (offset + w)      w absent: a = x * rstd
///   y       = a * (1 + scale[g]) + shift[g],     g = i / group_rows               shift absent: 0
///   u       = dy * (1 + scale[g]),   m = u * (offset + w),   k[i] = sum_j m[i,j] x[i,j]
///   dx      = rstd * m - rstd^3 * k / cols * x,   dw[j] = sum_i u[i,j] x[i,j] rstd[i]
///   dscale[g,j] = sum over i in g of dy[i,j] a[i,j],   dshift[g,j] = sum over i in g of dy[i,j]
///
/// Formula    docs/formulas/modulated_rms_norm.md; Peebles and Xie, "Scalable Diffusion Models with Transformers",
///            2023.
/// Shapes     x, y, dy, dx [rows, cols]; w, dw [cols] or `absent`; dw may be absent beside a w, which is then frozen;
///            scale, shift, dscale, dshift [groups, cols], shift and dshift may be empty views; rstd [rows]. groups =
///            rows / group_rows; where group_rows is not stated, 1 or rows and nothing else, so that no row meets
///            another's scale by mistake. cols >= 1, rows may be 0.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; w and dw any of them, scale, shift and their gradients any of
///            them (f64 only with f64).
/// Precision  sums and rstd in f32 (f64 for f64); y, dx, dw, dscale, dshift are rounded once (llama also rounds x *
///            rstd).
/// Options    backward uses rstd, and eps has no effect, except where dx of rows of a few columns nearly cancels: there
///            eps adds the digits that rstd lacks in f32, if the two agree. offset, group_rows and casting are those of
///            forward.
/// Writes     y, rstd, dx; dw, dscale and dshift are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: dx may be dy or x. forward: y may not be x, which backward needs. Otherwise no output shares an
///            element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative, a number outside option_range), workspace;
///            before the first write.
/// Range      every finite x whose rstd is finite in its type: with eps = 0, rows whose root mean square is at least
///            the smallest normal number. NaN makes its row of y and dx NaN, and dw and dscale. An infinity does the
///            same, except in y, where its own element becomes NaN and the rest of its row becomes the shift.
/// Max error  f32 1e-6, bf16 1e-2 of |reference| + its root mean square; gradients 2e-6, 2e-2
///            (tests/ops/modulated_rms_norm_test.cpp), for any number of rows (tests/rows/many_rows_test.cpp).
///
/// ```cpp
/// std::vector<float> x(6 * 64, 0.5f), w(64, 1), scale(2 * 64), shift(2 * 64), y(6 * 64), rstd(6);
/// std::vector<float> dx(6 * 64), dw(64), dscale(2 * 64), dshift(2 * 64);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 64, 64); };
/// const tigon::modulated_rms_norm_options opt{.group_rows = 3};  // three tokens have one scale and shift
/// tigon::modulated_rms_norm_forward(rows(x), w, rows(scale), rows(shift), rows(y), rstd, opt);
/// tigon::modulated_rms_norm_backward(
///     rows(y), rows(x), w, rows(scale), rstd,
///     tigon::modulated_rms_norm_gradients{rows(dx), dw, rows(dscale), rows(dshift)}, opt);  // dy = y
/// ```
struct modulated_rms_norm_options;

namespace detail {
inline namespace TIGON_ABI {
/// Declares x, w and scale. The rows of scale belong to those of x without doubt.
template <class A>
void declare_modulated_rms_norm(arguments& args, extent x, vector_extent w, extent scale,
                                modulated_rms_norm_options opt) {
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.optional_in("w", w, x.cols);
  if (opt.group_rows == 0) {
    args.that(scale.rows == 1 || scale.rows == x.rows, error_code::shape, "scale",
              "of other than 1 row or a row for every row of x", "option group_rows, the rows that share one of it");
    args.in("scale", scale, scale.rows, x.cols);
  } else {
    args.that(x.rows % opt.group_rows == 0, error_code::shape, "group_rows", "no divisor of the rows of x", "one");
    args.in("scale", scale, x.rows / opt.group_rows, x.cols);
  }
  args.eps<A>(opt.eps);
  args.finite<A>("offset", opt.offset);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that modulated_rms_norm_backward takes, with dw or without, and forward at most; `groups` is the
/// number of rows of scale.
template <class B = default_backend, class T>
std::size_t modulated_rms_norm_workspace(std::size_t rows, std::size_t cols, std::size_t groups,
                                         const context& ctx = default_context<B>(),
                                         parameters of = parameters::trained);

/// y and rstd from x, w, scale and shift. See modulated_rms_norm_options for the contract.
template <class B = default_backend, class T, parameter W, class S>
void modulated_rms_norm_forward(in_matrix<T> x, const W& w, matrix_view<S> scale,
                                in_matrix<std::remove_const_t<S>> shift, matrix_view<T> y,
                                std::type_identity_t<saved_t<op::modulated_rms_norm, B, accumulator_t<T>>> rstd,
                                modulated_rms_norm_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using M = std::remove_const_t<S>;
  const auto weight = as_in_vector<T>(w);
  static_assert(admits_parameter<T, decltype(weight)>() && admits_parameter<T, vector_view<M>>());
  arguments args("modulated_rms_norm_forward");
  detail::declare_modulated_rms_norm<accumulator_t<T>>(args, x, weight, scale, opt);
  args.optional_in("shift", shift, scale.rows, x.cols);
  args.out("y", y, x.rows, x.cols);
  args.out("rstd", rstd, x.rows);
  args.check();
  ctx.workspace().expect("modulated_rms_norm_forward",
                         modulated_rms_norm_workspace<B, T>(x.rows, x.cols, scale.rows, ctx));
  kernel_for<op::modulated_rms_norm, B>::template forward<B, T>(x, weight, matrix_view<const M>(scale), shift, y, rstd,
                                                                opt, ctx);
}

/// dx, dw, dscale and dshift from dy and what forward left. See modulated_rms_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter DW, class S>
void modulated_rms_norm_backward(in_matrix<T> dy, in_matrix<T> x, const W& w, in_matrix<S> scale,
                                 std::type_identity_t<saved_t<op::modulated_rms_norm, B, const accumulator_t<T>>> rstd,
                                 const modulated_rms_norm_gradients<T, DW, S>& gradients,
                                 modulated_rms_norm_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(w);
  const modulated_rms_norm_gradients to{gradients.dx, as_out_vector<T>(gradients.dw), gradients.dscale,
                                        gradients.dshift};
  static_assert(admits_parameter<T, decltype(weight), decltype(to.dw)>() && admits_parameter<T, vector_view<S>>());
  arguments args("modulated_rms_norm_backward");
  detail::declare_modulated_rms_norm<accumulator_t<T>>(args, x, weight, scale, opt);
  args.in("dy", dy, x.rows, x.cols);
  args.in("rstd", rstd, x.rows);
  args.out("dx", to.dx, x.rows, x.cols).may_be("dy", "x");
  args.optional_out("dshift", to.dshift, scale.rows, x.cols);
  args.out("dscale", to.dscale, scale.rows, x.cols);
  args.optional_out("dw", to.dw, weight.size);
  args.check();
  ctx.workspace().expect(
      "modulated_rms_norm_backward",
      modulated_rms_norm_workspace<B, T>(x.rows, x.cols, scale.rows, ctx, trained_if(to.dw.data != nullptr)));
  kernel_for<op::modulated_rms_norm, B>::template backward<B, T>(dy, x, weight, scale, rstd, to, opt, ctx);
}

template <class B, class T>
std::size_t modulated_rms_norm_workspace(std::size_t rows, std::size_t cols, std::size_t groups, const context& ctx,
                                         parameters of) {
  using A = accumulator_t<T>;
  using generic = kernel<op::modulated_rms_norm, backends::generic>;
  const auto sums = [=](std::size_t n) {
    return of == parameters::frozen ? 0 : simd::partials_workspace<B, A>(n, cols, 1);
  };
  if (generic::by_row(rows, cols, groups)) return sums(rows);
  return workspace::bytes_for<A>(groups, cols) +
         kernel_for<op::modulated_rms_norm, B>::template groups_workspace<B, A>(rows, cols, groups, sums(groups), ctx);
}

TIGON_EXPLAINS(modulated_rms_norm_forward)
TIGON_EXPLAINS(modulated_rms_norm_backward)

}  // namespace tigon

#include <tigon/ops/rms_norm.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MODULATED_RMS_NORM_HPP
