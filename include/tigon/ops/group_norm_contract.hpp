// The contract of group_norm and its checks.
#ifndef TIGON_OPS_GROUP_NORM_CONTRACT_HPP
#define TIGON_OPS_GROUP_NORM_CONTRACT_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

namespace op {
struct group_norm {
  static constexpr std::string_view name = "group_norm";
};
}  // namespace op

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
///            is one row, and where nothing follows it a row is one number; w, b, dw, db [channels] or `absent`; mean,
///            rstd [batch * groups]. positions, channels and groups >= 1, batch may be 0.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; parameters of one type, any of them (f64 only with f64).
/// Precision  the variance from sums about 0 or, where that is not within a deviation of it, the mean; sums, mean and
///            rstd in f32 (f64 for f64); backward makes up for the rounding of mean; y, dx, dw, db rounded once.
/// Writes     y, mean, rstd, dx; dw and db are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: dx may be dy or x. forward: y may not be x, which backward needs. Otherwise any layout in which
///            no element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative or NaN), workspace; before the first write.
/// Range      any mean that x can hold beside the deviation, and a deviation of any size, where rstd is a number of its
///            type: with eps = 0, from the smallest normal number on. NaN or an infinity makes its group of y and dx
///            NaN, and dw.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square, forward at least of 1; gradients 2e-6, 4e-3
///            (tests/ops/group_norm_test.cpp), for any number of samples and positions (tests/rows/many_rows_test.cpp).
struct group_norm_options {
  std::size_t groups = 1;    ///< into which the channels of a sample are cut, in succession; divides channels
  std::size_t channels = 0;  ///< of a sample; 0: as many as w or b (dw or db) has
  double eps = 1e-6;         ///< inside the square root
  gradient dparams = gradient::overwrite;
};

namespace detail {
inline namespace TIGON_ABI {
/// The options with the number of channels in place; every parameter has that many.
template <class P, class Q>
group_norm_options expect_groups(const expects& expect, std::size_t rows, std::string_view w_name, vector_view<P> w,
                                 std::string_view b_name, vector_view<Q> b, group_norm_options opt) {
  if (opt.channels == 0) opt.channels = w ? w.size : b.size;
  expect.at_least_one("channels", opt.channels);
  expect.at_least_one("groups", opt.groups);
  if (w) expect.size(w_name, w.size, opt.channels);
  if (b) expect.size(b_name, b.size, opt.channels);
  expect.that(opt.channels % opt.groups == 0, error_code::shape, "groups", "no divisor of the channels", "one");
  expect.that(rows % opt.channels == 0, error_code::shape, "x", "of rows that are no multiple of the channels",
              "a row for every channel of every sample");
  return opt;
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_GROUP_NORM_CONTRACT_HPP
