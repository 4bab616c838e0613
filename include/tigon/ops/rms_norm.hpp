// RMSNorm over the last axis, forward and backward.
#ifndef TIGON_OPS_RMS_NORM_HPP
#define TIGON_OPS_RMS_NORM_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/norm/rms_norm_kernel.hpp>

namespace tigon {

/// y and rstd from x and w. See rms_norm_options for the contract.
template <class B = default_backend, class T, parameter W>
void rms_norm_forward(in_matrix<T> x, const W& w, matrix_view<T> y,
                      std::type_identity_t<saved_t<op::rms_norm, B, accumulator_t<T>>> rstd, rms_norm_options opt = {},
                      context& ctx = default_context()) {
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
                       DW&& dw, rms_norm_options opt = {}, context& ctx = default_context()) {
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

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_RMS_NORM_HPP
