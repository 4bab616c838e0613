// Hyper-connections: the streams after a layer, which are mixed and get its output added, forward and backward.
#ifndef TIGON_OPS_MHC_POST_RES_HPP
#define TIGON_OPS_MHC_POST_RES_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/depth/mhc_post_res_kernel.hpp>

namespace tigon {

/// The n streams of a token after a layer: each a sum of all streams before it and of the layer's output f.
///
///   y[t,o,c]    = sum_i h_res[t,o,i] * x[t,i,c] + h_post[t,o] * f[t,c]
///   dx[t,i,c]   = sum_o h_res[t,o,i] * dy[t,o,c],      df[t,c]     = sum_o h_post[t,o] * dy[t,o,c]
///   dh_res[t,o,i] = sum_c dy[t,o,c] * x[t,i,c],        dh_post[t,o] = sum_c dy[t,o,c] * f[t,c]
///
/// Formula    docs/formulas/hyper_connections.md; Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2025.
/// Shapes     x, y, dy, dx [tokens, n * channels], the streams of a token one after the other; f, df
///            [tokens, channels]; h_post, dh_post [tokens, n]; h_res, dh_res [tokens, n * n], row o before row o + 1.
///            n and channels at least 1, tokens may be 0. Row strides everywhere.
/// Types      x, f, y, dy, dx, df one of f32, bf16, f16, f64; coefficients and their gradients f32 (f64 for f64).
/// Precision  sums in f32 (f64 for f64); one rounding at each output.
/// Writes     y; dx, or adds to it with gradient::accumulate; df, dh_post, dh_res. Each gradient may be null.
/// Aliasing   no output shares an element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, workspace; before the first write.
/// Range      where products and their sums are finite. NaN or an infinity in a token makes that token's results NaN or
///            infinite, and no other's.
/// Max error  f32 2e-6, f64 4e-15 of |reference| + its root mean square; half a unit more where y, dx or df has 16 bits
///            (tests/ops/mhc_post_res_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 2 * 64, 0.5f), f(4 * 64, 1), post(4 * 2, 1), res(4 * 4, 0.5f), y(x), dx(x);
/// std::vector<float> df(f), dpost(post), dres(res);  // of two streams
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), 4, v.size() / 4); };
/// tigon::mhc_post_res_forward(rows(x), rows(f), rows(post), rows(res), rows(y));
/// tigon::mhc_post_res_backward(rows(y), rows(x), rows(f), rows(post), rows(res),
///                              tigon::mhc_post_res_gradients<float>{rows(dx), rows(df), rows(dpost), rows(dres)});
/// ```
struct mhc_post_res_options;

/// y from x, f and the coefficients. See mhc_post_res_options for the contract.
template <class B = default_backend, class T>
void mhc_post_res_forward(in_matrix<T> x, in_matrix<T> f, in_matrix<accumulator_t<T>> h_post,
                          in_matrix<accumulator_t<T>> h_res, matrix_view<T> y, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const std::size_t n = h_post.cols, cols = workspace::product(n, f.cols);
  arguments args("mhc_post_res_forward");
  args.at_least_one("streams", n);
  args.at_least_one("channels", f.cols);
  args.in("f", f);
  args.in("x", x, f.rows, cols);
  args.in("h_post", h_post, f.rows, n);
  args.in("h_res", h_res, f.rows, workspace::product(n, n));
  args.out("y", y, f.rows, cols);
  args.check();
  ctx.workspace().expect("mhc_post_res_forward", mhc_post_res_workspace<B, T>(f.cols, n, ctx));
  kernel_for<op::mhc_post_res, B>::template forward<B, T>(x, f, h_post, h_res, y, ctx);
}

/// dx, df, dh_post and dh_res from dy. See mhc_post_res_options for the contract.
template <class B = default_backend, class T>
void mhc_post_res_backward(in_matrix<T> dy, in_matrix<T> x, in_matrix<T> f, in_matrix<accumulator_t<T>> h_post,
                           in_matrix<accumulator_t<T>> h_res, const mhc_post_res_gradients<T>& gradients,
                           mhc_post_res_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const std::size_t n = h_post.cols, tokens = f.rows, cols = workspace::product(n, f.cols);
  arguments args("mhc_post_res_backward");
  args.at_least_one("streams", n);
  args.at_least_one("channels", f.cols);
  args.in("f", f);
  args.in("x", x, tokens, cols);
  args.in("dy", dy, tokens, cols);
  args.in("h_post", h_post, tokens, n);
  args.in("h_res", h_res, tokens, workspace::product(n, n));
  args.optional_out("dx", gradients.dx, tokens, cols);
  args.optional_out("df", gradients.df, tokens, f.cols);
  args.optional_out("dh_post", gradients.dh_post, tokens, n);
  args.optional_out("dh_res", gradients.dh_res, tokens, workspace::product(n, n));
  args.check();
  ctx.workspace().expect("mhc_post_res_backward", mhc_post_res_backward_workspace<B, T>(f.cols, n, ctx));
  kernel_for<op::mhc_post_res, B>::template backward<B, T>(dy, x, f, h_post, h_res, gradients, opt, ctx);
}

TIGON_EXPLAINS(mhc_post_res_forward)
TIGON_EXPLAINS(mhc_post_res_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MHC_POST_RES_HPP
