// Coefficients of hyper-connections: RMS and product of every token's streams, gates and Sinkhorn's iteration, forward
// and backward.
#ifndef TIGON_OPS_MHC_COEFFS_HPP
#define TIGON_OPS_MHC_COEFFS_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/depth/mhc_coeffs_kernel.hpp>

namespace tigon {

/// Coefficients of manifold-constrained hyper-connections for every token, predicted from its n streams.
///
///   rstd[t]  = 1 / sqrt(mean_k x[t,k]^2 + rms_eps),   mix = rstd * (x phi),   k over n * channels
///   mix      = (l_pre [n], l_post [n], l_res [n * n]),   b likewise
///   h_pre    = sigmoid(alpha[0] l_pre + b_pre) + pre_eps,   h_post = post_mult * sigmoid(alpha[1] l_post + b_post)
///   p        = softmax of each row of alpha[2] l_res + b_res;   m = p + sinkhorn_eps
///   h_res    = m after tmax column steps with a row step between any two. A step divides every number by the sum of
///              its column, or row, plus sinkhorn_eps: columns of h_res add up to 1, rows nearly.
///   backward, with g the gradient of alpha mix + b:   gz = alpha * g * rstd,   q[t] = sum_m alpha g mix
///   dx = gz phi^T - q rstd^2 / (n channels) * x,   dphi = x^T gz,   db = sum_t g,   dalpha = sum_t,m g mix of its part
///
/// Formula    docs/formulas/hyper_connections.md; Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2025.
/// Shapes     x, dx [tokens, n * channels], the streams of a token one after the other; phi, dphi [n * channels,
///            2n + n * n]; b, db [2n + n * n]; alpha, dalpha [3]: pre, post, res; h_pre, h_post and their gradients
///            [tokens, n]; h_res [tokens, n * n], row o is the output stream; mix [tokens, 2n + n * n]; rstd [tokens];
///            history [mhc_coeffs_history()]. n, which is h_pre.cols, and channels at least 1, tokens may be 0. Row
///            strides everywhere.
/// Types      x, dx one of f32, bf16, f16, f64; phi, and dphi, each any of them; b, alpha, db, dalpha of one type, any
///            of them (f64 only with f64). Coefficients, their gradients and what is saved f32 (f64 for f64).
/// Precision  f32 (f64 for f64), products as gemm makes them; one rounding at each output. 16-bit x and phi are
///            widened, and nothing between is rounded to 16 bits.
/// Options    backward uses mix and rstd; rms_eps and pre_eps have no effect, and the others are those of forward.
/// Writes     h_pre, h_post, h_res; mix, rstd and history for backward. Each gradient of a coefficient may be null,
///            which is a gradient of zeros. Each of dx, dphi, db and dalpha may be absent; what only it needs is not
///            computed then. They are overwritten or, with gradient::accumulate, added to; without tokens dphi, db and
///            dalpha become zeros, or keep their values.
/// Memory     mix and rstd. With B::hyper_connections.keep_history also the steps of the iteration, 4 tmax n^2 bytes a
///            token (8 in f64; tokens rounded up to whole vectors): mhc_coeffs_history(). Otherwise backward computes
///            them again, in tmax n^2 numbers of workspace for each lane of each worker.
/// Aliasing   no output shares an element with another argument; any layout.
/// Threads    the same bits for any number of them, with the history kept or made again.
/// Throws     tigon::error: shape, stride, alias, argument (rms_eps or sinkhorn_eps negative, a number outside
///            option_range, tmax 0), workspace; before the first write.
/// Range      where x phi is finite, and the squares of x may not be; backward also where rstd^2 is a normal number.
///            NaN or an infinity in a token makes its coefficients and dx NaN, and of the parameters' gradients what it
///            adds to; other tokens stay. With sinkhorn_eps = 0 a column of p that underflows to 0 makes h_res NaN.
/// Max error  rstd and mix f32 2e-6, f64 4e-15; coefficients and gradients f32 3e-6, f64 6e-15, of |reference| + its
///            root mean square (of gradients + the largest term of their sums), where alpha mix + b is about 1; half a
///            unit more where dx or dphi has 16 bits (tests/ops/mhc_coeffs_test.cpp). An error of alpha mix is one of
///            at most a quarter of it in h_pre, of post_mult / 4 in h_post.
///
/// ```cpp
/// std::vector<float> x(4 * 2 * 64, 0.5f), phi(128 * 8, 0.1f), b(8), alpha(3, 1), pre(4 * 2), post(4 * 2), res(4 * 4);
/// std::vector<float> mix(4 * 8), rstd(4), history(tigon::mhc_coeffs_history<tigon::default_backend, float>(4, 2));
/// std::vector<float> dx(x), dphi(phi), db(8), dalpha(3);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), 4, v.size() / 4); };
/// const tigon::matrix_view weights(phi.data(), 128, 8), gradient(dphi.data(), 128, 8);
/// const tigon::mhc_weights w{weights, b, alpha};
/// const tigon::mhc_coefficients<float> h{rows(pre), rows(post), rows(res)};  // of two streams
/// const tigon::mhc_coeffs_saved<float> saved{rows(mix), rstd, history};
/// tigon::mhc_coeffs_forward(rows(x), w, h, saved);
/// tigon::mhc_coeffs_backward({rows(pre), rows(post), rows(res)}, rows(x), w, saved,
///                            tigon::mhc_coeffs_gradients{rows(dx), gradient, db, dalpha});
/// ```
struct mhc_coeffs_options;

/// The coefficients, and what backward wants, from x and the weights. See mhc_coeffs_options for the contract.
template <class B = default_backend, class X, class P, class Bias, class Alpha>
void mhc_coeffs_forward(matrix_view<X> x, const mhc_weights<P, Bias, Alpha>& w,
                        std::type_identity_t<mhc_coefficients<accumulator_t<gemm_detail::bare<X>>>> h,
                        std::type_identity_t<saved_t<op::mhc_coeffs, B, accumulator_t<gemm_detail::bare<X>>>> saved,
                        mhc_coeffs_options opt = {}, context& ctx = default_context<B>()) {
  using T = gemm_detail::bare<X>;
  static_assert(admits<B, T>());
  const std::size_t n = h.h_pre.cols, tokens = x.rows;
  arguments args("mhc_coeffs_forward");
  const auto weights = detail::declare_mhc<T>(args, n, x, w, opt);
  args.out("h_pre", h.h_pre, tokens, n);
  args.out("h_post", h.h_post, tokens, n);
  args.out("h_res", h.h_res, tokens, workspace::product(n, n));
  args.out("mix", saved.mix, tokens, detail::mhc_columns(n));
  args.out("rstd", saved.rstd, tokens);
  args.out("history", saved.history, mhc_coeffs_history<B, T>(tokens, n, opt.tmax));
  args.check();
  ctx.workspace().expect("mhc_coeffs_forward",
                         mhc_coeffs_workspace<B, T, gemm_detail::bare<P>>(tokens, x.cols / n, n, ctx));
  kernel_for<op::mhc_coeffs, B>::template forward<B, T>(x, weights, h, saved, opt, ctx);
}

/// dx, dphi, db and dalpha from the gradients of the coefficients. See mhc_coeffs_options for the contract.
template <class B = default_backend, class X, class P, class Bias, class Alpha, class T, class DP, class DB, class DA>
void mhc_coeffs_backward(std::type_identity_t<mhc_coefficients<const accumulator_t<T>>> dh, matrix_view<X> x,
                         const mhc_weights<P, Bias, Alpha>& w,
                         std::type_identity_t<saved_t<op::mhc_coeffs, B, const accumulator_t<T>>> saved,
                         const mhc_coeffs_gradients<T, DP, DB, DA>& gradients, mhc_coeffs_options opt = {},
                         context& ctx = default_context<B>()) {
  static_assert(admits<B, T>() && std::same_as<gemm_detail::bare<X>, T>, "tigon: x and dx have one element type");
  static_assert(mixes_with<T, DP>, "tigon: a gradient of double matrices is one of doubles");
  const std::size_t n = saved.mix.cols == 0 ? 0 : detail::mhc_streams(saved.mix.cols), tokens = x.rows;
  arguments args("mhc_coeffs_backward");
  const auto weights = detail::declare_mhc<T>(args, n, x, w, opt);
  using W = detail::view_element_t<decltype(weights.b)>;
  const detail::mhc_gradient_views<T, DP, W> to{gradients.dx, gradients.dphi, as_out_vector<W>(gradients.db),
                                                as_out_vector<W>(gradients.dalpha)};
  const mhc_coeffs_wanted wanted{to.dx.data != nullptr, to.dphi.data != nullptr, to.db || to.dalpha};
  args.in("mix", saved.mix, tokens, detail::mhc_columns(n));
  args.in("rstd", saved.rstd, tokens);
  args.in("history", saved.history, mhc_coeffs_history<B, T>(tokens, n, opt.tmax));
  args.optional_in("dh_pre", dh.h_pre, tokens, n);
  args.optional_in("dh_post", dh.h_post, tokens, n);
  args.optional_in("dh_res", dh.h_res, tokens, workspace::product(n, n));
  args.optional_out("dx", to.dx, tokens, x.cols);
  args.optional_out("dphi", to.dphi, x.cols, detail::mhc_columns(n));
  args.optional_out("db", to.db, detail::mhc_columns(n));
  args.optional_out("dalpha", to.dalpha, 3);
  args.check();
  ctx.workspace().expect("mhc_coeffs_backward", mhc_coeffs_backward_workspace<B, T, gemm_detail::bare<P>, DP>(
                                                    tokens, x.cols / n, n, opt.tmax, wanted, ctx));
  kernel_for<op::mhc_coeffs, B>::template backward<B, T>(dh, x, weights, saved, to, opt, detail::mhc_more<T>{}, ctx);
}

TIGON_EXPLAINS(mhc_coeffs_forward)
TIGON_EXPLAINS(mhc_coeffs_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MHC_COEFFS_HPP
