// Hyper-connections: the input of a layer, a weighted sum of the streams of every token, forward and backward.
#ifndef TIGON_OPS_MHC_PRE_HPP
#define TIGON_OPS_MHC_PRE_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/depth/mhc_pre_kernel.hpp>

namespace tigon {

/// The input of a layer between hyper-connections: the weighted sum of the n streams of a token.
///
///   y[t,c]    = sum_h h_pre[t,h] * x[t,h,c]
///   dx[t,h,c] = h_pre[t,h] * dy[t,c],   dh_pre[t,h] = sum_c dy[t,c] * x[t,h,c]
///
/// Formula    docs/formulas/hyper_connections.md; Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2025.
/// Shapes     x, dx [tokens, n * channels], the streams of a token one after the other; y, dy [tokens, channels];
///            h_pre, dh_pre [tokens, n]. n and channels at least 1, tokens may be 0. Row strides everywhere.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; h_pre and dh_pre f32 (f64 for f64).
/// Precision  sums in f32 (f64 for f64); y, dx and dh_pre are rounded once.
/// Writes     y; dx, or adds to it with gradient::accumulate; dh_pre. dx and dh_pre may be null, each by itself.
/// Aliasing   no output shares an element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, workspace; before the first write.
/// Range      where products and their sums are finite. NaN or an infinity in a token makes that token's results NaN or
///            infinite, and no other's.
/// Max error  f32 2e-6, f64 4e-15 of |reference| + its root mean square; half a unit more where y or dx has 16 bits
///            (tests/ops/mhc_pre_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 2 * 64, 0.5f), h(4 * 2, 1), in(4 * 64), dx(x.size()), dh(h.size());  // two streams
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), 4, v.size() / 4); };
/// tigon::mhc_pre_forward(rows(x), rows(h), rows(in));
/// tigon::mhc_pre_backward(rows(in), rows(x), rows(h), tigon::mhc_pre_gradients<float>{rows(dx), rows(dh)});
/// ```
struct mhc_pre_options;

/// y from x and h_pre. See mhc_pre_options for the contract.
template <class B = default_backend, class T>
void mhc_pre_forward(in_matrix<T> x, in_matrix<accumulator_t<T>> h_pre, matrix_view<T> y,
                     context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("mhc_pre_forward");
  args.at_least_one("streams", h_pre.cols);
  args.at_least_one("channels", y.cols);
  args.in("x", x, y.rows, workspace::product(h_pre.cols, y.cols));
  args.in("h_pre", h_pre, y.rows, h_pre.cols);
  args.out("y", y);
  args.check();
  ctx.workspace().expect("mhc_pre_forward", mhc_pre_workspace<B, T>(y.cols, h_pre.cols, ctx));
  kernel_for<op::mhc_pre, B>::template forward<B, T>(x, h_pre, y, ctx);
}

/// dx and dh_pre from dy. See mhc_pre_options for the contract.
template <class B = default_backend, class T>
void mhc_pre_backward(in_matrix<T> dy, in_matrix<T> x, in_matrix<accumulator_t<T>> h_pre,
                      const mhc_pre_gradients<T>& gradients, mhc_pre_options opt = {},
                      context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const std::size_t tokens = dy.rows, cols = workspace::product(h_pre.cols, dy.cols);
  arguments args("mhc_pre_backward");
  args.at_least_one("streams", h_pre.cols);
  args.at_least_one("channels", dy.cols);
  args.in("dy", dy);
  args.in("x", x, tokens, cols);
  args.in("h_pre", h_pre, tokens, h_pre.cols);
  args.optional_out("dx", gradients.dx, tokens, cols);
  args.optional_out("dh_pre", gradients.dh_pre, tokens, h_pre.cols);
  args.check();
  kernel_for<op::mhc_pre, B>::template backward<B, T>(dy, x, h_pre, gradients, opt, ctx);
}

TIGON_EXPLAINS(mhc_pre_forward)
TIGON_EXPLAINS(mhc_pre_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MHC_PRE_HPP
