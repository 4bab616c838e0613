// GroupNorm over the channels of a group and all positions, forward and backward.
#ifndef TIGON_OPS_GROUP_NORM_HPP
#define TIGON_OPS_GROUP_NORM_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/norm/group_norm_kernel.hpp>

namespace tigon {

/// GroupNorm of a batch of images, sounds or anything else that has channels: a row is one channel of one sample.
///
///   mean[g] = mean of x over the channels and positions of group g,   n of them
///   rstd[g] = 1 / sqrt(mean of (x - mean)^2 + eps)
///   xh      = (x - mean) * rstd,   y = xh * w[c] + b[c]       c the channel; absent: w = 1, b = 0
///   h       = dy * w[c],   c1[g] = mean of xh h,   c2[g] = mean of h
///   dx      = rstd * (h - c2 - xh * c1)
///   dw[c]   = sum over samples and positions of dy * xh,   db[c] = sum over them of dy
///
/// Formula    docs/formulas/group_norm.md; Wu and He, "Group Normalization", 2018.
/// Shapes     x, y, dy, dx [batch * channels, positions]: of x[batch, channels, d1, d2, ...] what follows the channel
///            is one row, and where nothing follows it a row is one number; w, b, dw, db [channels] or `absent`; a
///            gradient may be absent beside its parameter, which is then frozen; mean, rstd [batch * groups].
///            positions, channels and groups >= 1, batch may be 0.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; parameters of one type, any of them (f64 only with f64).
/// Precision  as layer_norm.
/// Options    backward uses mean and rstd, and eps has no effect, except where dx of groups of a few values nearly
///            cancels: there eps adds the digits that rstd lacks in f32, if the two agree. groups and channels are
///            those of forward.
/// Writes     as layer_norm.
/// Aliasing   as layer_norm.
/// Throws     as layer_norm.
/// Range      as layer_norm, a group in the place of a row.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square, forward at least of 1; gradients 2e-6, 4e-3
///            (tests/ops/group_norm_test.cpp), for any number of samples and positions (tests/rows/many_rows_test.cpp).
///
/// ```cpp
/// std::vector<float> x(2 * 8 * 49, 0.5f), w(8, 2), b(8, 1), y(x.size()), mean(2 * 4), rstd(2 * 4);
/// std::vector<float> dx(x.size()), dw(8), db(8);
/// const tigon::matrix_view in(x.data(), 2 * 8, 49), out(y.data(), 2 * 8, 49), gradient(dx.data(), 2 * 8, 49);
/// const tigon::group_norm_options opt{.groups = 4, .channels = 8};
/// tigon::group_norm_forward(in, w, b, out, mean, rstd, opt);
/// tigon::group_norm_backward(out, in, w, mean, rstd, tigon::norm_gradients{gradient, dw, db}, opt);  // dy = y
/// ```
struct group_norm_options;

/// Bytes of workspace that group_norm_backward takes, with dw or db, or without both; `rows` is batch * channels.
template <class B = default_backend, class T>
std::size_t group_norm_workspace(std::size_t rows, std::size_t channels, parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  const std::size_t numbers = kernel_for<op::group_norm, B>::template numbers_workspace<A>(rows, of);
  if (of == parameters::frozen) return numbers;
  return numbers + simd::partials_workspace<B, A>(rows / std::max<std::size_t>(channels, 1), channels, 2);
}

namespace detail {
inline namespace TIGON_ABI {
/// The options with the number of channels in place: that of the parameter that is there.
inline group_norm_options expect_groups(const expects& expect, std::size_t rows, std::size_t w, std::size_t b,
                                        group_norm_options opt) {
  if (opt.channels == 0) opt.channels = w != 0 ? w : b;
  expect.at_least_one("channels", opt.channels);
  expect.at_least_one("groups", opt.groups);
  expect.that(opt.channels % opt.groups == 0, error_code::shape, "groups", "no divisor of the channels", "one");
  expect.that(rows % opt.channels == 0, error_code::shape, "x", "of rows that are no multiple of the channels",
              "a row for every channel of every sample");
  return opt;
}
}  // namespace TIGON_ABI
}  // namespace detail

/// y, mean and rstd from x, w and b. See group_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter Bias>
void group_norm_forward(in_matrix<T> x, const W& w, const Bias& b, matrix_view<T> y,
                        std::type_identity_t<saved_t<op::group_norm, B, accumulator_t<T>>> mean,
                        std::type_identity_t<saved_t<op::group_norm, B, accumulator_t<T>>> rstd,
                        group_norm_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<parameter_element_t<T, W, Bias>>(w);
  const auto bias = as_in_vector<parameter_element_t<T, W, Bias>>(b);
  static_assert(admits_parameter<T, decltype(weight), decltype(bias)>());
  arguments args("group_norm_forward");
  args.at_least_one("positions", x.cols);
  args.in("x", x);
  args.out("y", y, x.rows, x.cols);
  opt = detail::expect_groups(args, x.rows, weight.size, bias.size, opt);
  const std::size_t groups = x.rows / opt.channels * opt.groups;
  args.optional_in("w", weight, opt.channels);
  args.optional_in("b", bias, opt.channels);
  args.out("rstd", rstd, groups);
  args.out("mean", mean, groups);
  args.eps<accumulator_t<T>>(opt.eps);
  args.check();
  kernel_for<op::group_norm, B>::template forward<B, T>(x, weight, bias, y, mean, rstd, opt, ctx);
}

/// dx, dw and db from dy and what forward left. See group_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter DW, parameter DB>
void group_norm_backward(in_matrix<T> dy, in_matrix<T> x, const W& w,
                         std::type_identity_t<saved_t<op::group_norm, B, const accumulator_t<T>>> mean,
                         std::type_identity_t<saved_t<op::group_norm, B, const accumulator_t<T>>> rstd,
                         const norm_gradients<T, DW, DB>& gradients, group_norm_options opt = {},
                         context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto [weight, to] = detail::views_of_norm<T>(w, gradients);
  arguments args("group_norm_backward");
  args.at_least_one("positions", x.cols);
  args.in("x", x);
  args.in("dy", dy, x.rows, x.cols);
  if (opt.channels == 0) opt.channels = weight.size;
  opt = detail::expect_groups(args, x.rows, to.dw.size, to.db.size, opt);
  const std::size_t groups = x.rows / opt.channels * opt.groups;
  args.optional_in("w", weight, opt.channels);
  args.in("mean", mean, groups);
  args.in("rstd", rstd, groups);
  args.out("dx", to.dx, x.rows, x.cols).may_be("dy", "x");
  args.optional_out("db", to.db, opt.channels);
  args.optional_out("dw", to.dw, opt.channels);
  args.eps<accumulator_t<T>>(opt.eps);
  args.check();
  ctx.workspace().expect("group_norm_backward", group_norm_workspace<B, T>(x.rows, opt.channels, detail::trained(to)));
  kernel_for<op::group_norm, B>::template backward<B, T>(dy, x, weight, mean, rstd, to, opt, ctx);
}

TIGON_EXPLAINS(group_norm_forward)
TIGON_EXPLAINS(group_norm_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_GROUP_NORM_HPP
