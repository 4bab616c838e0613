// Coefficients of hyper-connections: the contract, the options and the doors.
#ifndef TIGON_OPS_DEPTH_MHC_COEFFS_OPTIONS_HPP
#define TIGON_OPS_DEPTH_MHC_COEFFS_OPTIONS_HPP

#include <tigon/gemm/contract.hpp>
#include <tigon/ops/depth/stream_sums.hpp>

#include <algorithm>
#include <span>

namespace tigon {

namespace op {
struct mhc_coeffs {
  static constexpr std::string_view name = "mhc_coeffs";
};
}  // namespace op

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
/// Options    backward: mix and rstd decide, rms_eps and pre_eps do not count; the others as in forward.
/// Writes     h_pre, h_post, h_res; mix, rstd and history for backward. Each gradient of a coefficient may be null,
///            which is a gradient of zeros. Each of dx, dphi, db and dalpha may be absent; what only it needs is not
///            computed then. They are overwritten or, with gradient::accumulate, added to; without tokens dphi, db and
///            dalpha become zeros, or keep their values.
/// Memory     mix and rstd. With B::hyper_connections.keep_history also the steps of the iteration, 4 tmax n^2 bytes a
///            token (8 in f64; tokens rounded up to whole vectors): mhc_coeffs_history(). Otherwise backward computes
///            them again, in tmax n^2 numbers of workspace for each lane of each worker.
/// Aliasing   none. Any layout in which no written element is shared.
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
struct mhc_coeffs_options {
  double rms_eps = 1e-6;  ///< inside the square root
  double pre_eps = 0;     ///< added to h_pre
  double sinkhorn_eps = 1e-6;
  double post_mult = 2;
  std::size_t tmax = 20;  ///< column steps
  gradient dx = gradient::overwrite;
  gradient dparams = gradient::overwrite;  ///< dphi, db, dalpha
};

/// mhc_weights{phi, b, alpha}, or with the names of the fields. b and alpha are ranges of elements.
template <class P, class Bias, class Alpha>
struct mhc_weights {
  matrix_view<P> phi;
  Bias b;
  Alpha alpha;
};
template <class P, class Bias, class Alpha>
mhc_weights(matrix_view<P>, Bias&&, Alpha&&) -> mhc_weights<P, Bias, Alpha>;

/// mhc_coeffs_gradients{dx, dphi, db, dalpha}, or with the names of the fields. dx and dphi may be empty views, db and
/// dalpha `absent`.
template <class T, class DP, class DB, class DA>
struct mhc_coeffs_gradients {
  matrix_view<T> dx;
  matrix_view<DP> dphi;
  DB db;
  DA dalpha;
};
template <class T, class DP, class DB, class DA>
mhc_coeffs_gradients(matrix_view<T>, matrix_view<DP>, DB&&, DA&&) -> mhc_coeffs_gradients<T, DP, DB, DA>;

/// What mhc_coeffs_forward leaves for backward: {mix, rstd, history}.
template <class A>
struct mhc_coeffs_saved {
  matrix_view<A> mix;
  std::span<A> rstd;
  std::span<A> history = {};  ///< mhc_coeffs_history() numbers, 0 unless the backend keeps them

  constexpr TIGON_INLINE operator mhc_coeffs_saved<const A>() const
    requires(!std::is_const_v<A>)
  {
    return {mix, rstd, history};
  }
};

/// Numbers of Sinkhorn's history that forward leaves for backward: tmax n^2 for every token, tokens rounded up to whole
/// blocks of lanes; 0 where backward makes it again (B::hyper_connections.keep_history), which then takes so many for
/// one block and worker of its workspace.
template <class B = default_backend, class T>
std::size_t mhc_coeffs_history(std::size_t tokens, std::size_t streams, std::size_t tmax = 20) {
  constexpr std::size_t lanes = simd::vec<typename row_backend<B>::engine, accumulator_t<T>>::size;
  if (!B::hyper_connections.keep_history) return 0;
  return workspace::product(gemm_detail::ceil_div(tokens, lanes), lanes, tmax, streams, streams);
}

namespace detail {
inline namespace TIGON_ABI {
/// The weights as a kernel takes them.
template <class P, class W>
struct mhc_weight_views {
  matrix_view<const P> phi;
  in_vector<W> b, alpha;
};
template <class T, class DP, class W>
struct mhc_gradient_views {
  matrix_view<T> dx;
  matrix_view<DP> dphi;
  vector_view<W> db, dalpha;
};
/// Columns of phi for n streams, and the streams for so many columns: 0 for a number that none has.
constexpr std::size_t mhc_columns(std::size_t n) { return workspace::product(n, n + 2); }
constexpr std::size_t mhc_streams(std::size_t mixes) {
  std::size_t n = 1;
  while (n < std::size_t{1} << 28 && mhc_columns(n) < mixes) ++n;
  return mhc_columns(n) == mixes ? n : 0;
}
/// What else adds to dx, of streams that also went through mhc_pre and mhc_post_res; nothing where dy is null.
template <class T>
struct mhc_more {
  matrix_view<const T> dy, d_in;  ///< of mhc_post_res, and of mhc_pre
  matrix_view<const accumulator_t<T>> h_pre, h_res;
};

/// Declares what both directions read; returns the views of b and alpha with phi.
template <class T, class X, class P, class Bias, class Alpha>
auto declare_mhc(arguments& args, std::size_t n, matrix_view<X> x, const mhc_weights<P, Bias, Alpha>& w,
                 const mhc_coeffs_options& opt) {
  const auto b = as_in_vector<accumulator_t<T>>(w.b);
  const auto alpha = as_in_vector<accumulator_t<T>>(w.alpha);
  static_assert(admits_parameter<T, decltype(b), decltype(alpha)>());
  static_assert(mixes_with<T, gemm_detail::bare<P>>,
                "tigon: double matrices multiply only double matrices; convert phi");
  args.at_least_one("streams", n);
  args.at_least_one("columns of x", x.cols);
  args.at_least_one("tmax", opt.tmax);
  args.that(x.cols % n == 0, error_code::shape, "x", "of columns that n does not divide", "n * channels columns");
  args.eps<accumulator_t<T>>(opt.rms_eps, "rms_eps");
  args.number<accumulator_t<T>>(opt.sinkhorn_eps >= 0, "sinkhorn_eps", opt.sinkhorn_eps, "a number of at least 0");
  args.made<accumulator_t<T>>("sinkhorn_eps times the streams and 2", opt.sinkhorn_eps * static_cast<double>(n + 2));
  args.finite<accumulator_t<T>>("pre_eps", opt.pre_eps);
  args.finite<accumulator_t<T>>("post_mult", opt.post_mult);
  args.in("x", x);
  args.in("phi", w.phi, x.cols, mhc_columns(n));
  args.in("b", b, mhc_columns(n));
  args.in("alpha", alpha, 3);
  return mhc_weight_views<gemm_detail::bare<P>, view_element_t<decltype(b)>>{w.phi, b, alpha};
}
}  // namespace TIGON_ABI
}  // namespace detail

/// What of the gradients is wanted: a part of the workspace each.
struct mhc_coeffs_wanted {
  bool dx = true, dphi = true, dparams = true;  ///< dparams: db or dalpha
};

/// Bytes of workspace that mhc_coeffs_forward takes, for x of T and phi of P.
template <class B = default_backend, class T, class P = T>
std::size_t mhc_coeffs_workspace(std::size_t tokens, std::size_t channels, std::size_t streams,
                                 const context& ctx = default_context()) {
  return kernel_for<op::mhc_coeffs, B>::template forward_bytes<B, T, P>(tokens, channels, streams, ctx);
}
/// Bytes of workspace that mhc_coeffs_backward takes, for dphi of DP.
template <class B = default_backend, class T, class P = T, class DP = P>
std::size_t mhc_coeffs_backward_workspace(std::size_t tokens, std::size_t channels, std::size_t streams,
                                          std::size_t tmax = 20, mhc_coeffs_wanted wanted = {},
                                          const context& ctx = default_context()) {
  return kernel_for<op::mhc_coeffs, B>::template backward_bytes<B, T, P, DP>(tokens, channels, streams, tmax, wanted,
                                                                             ctx);
}

/// The coefficients, and what backward wants, from x and the weights. See mhc_coeffs_options for the contract.
template <class B = default_backend, class X, class P, class Bias, class Alpha>
void mhc_coeffs_forward(matrix_view<X> x, const mhc_weights<P, Bias, Alpha>& w,
                        std::type_identity_t<mhc_coefficients<accumulator_t<gemm_detail::bare<X>>>> h,
                        std::type_identity_t<saved_t<op::mhc_coeffs, B, accumulator_t<gemm_detail::bare<X>>>> saved,
                        mhc_coeffs_options opt = {}, context& ctx = default_context()) {
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
                         context& ctx = default_context()) {
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

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_MHC_COEFFS_OPTIONS_HPP
