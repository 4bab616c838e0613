// A layer between hyper-connections: coefficients, the layer's input, the user's layer, and the streams after it,
// forward and backward.
#ifndef TIGON_OPS_MHC_HPP
#define TIGON_OPS_MHC_HPP

#include <tigon/core/function_ref.hpp>
#include <tigon/ops/mhc_coeffs.hpp>
#include <tigon/ops/mhc_post_res.hpp>
#include <tigon/ops/mhc_pre.hpp>

namespace tigon {

/// A layer of the user's own, layer(in, out): from [tokens, channels] to as many. In mhc_forward `in` is the layer's
/// input and `out` its output; in mhc_backward `in` is the gradient of the output and `out` that of the input. It may
/// use the context of the call; what it throws goes to the caller.
template <class T>
using mhc_layer = detail::function_ref<void(matrix_view<const T>, matrix_view<T>)>;

/// What mhc_forward leaves for mhc_backward, in memory of the caller's.
template <class T>
struct mhc_saved {
  mhc_coefficients<accumulator_t<T>> h;       ///< as mhc_coeffs_forward writes them
  mhc_coeffs_saved<accumulator_t<T>> coeffs;  ///< what that leaves
  matrix_view<T> in, f;                       ///< input and output of the layer, [tokens, channels]
};

/// mhc_gradients{dx, dphi, db, dalpha, df, d_in}, or with the names of the fields. dx and dphi may be empty views, db
/// and dalpha `absent`. df and d_in are the gradients of the layer's output and input.
template <class T, class DP, class DB, class DA>
struct mhc_gradients {
  matrix_view<T> dx;
  matrix_view<DP> dphi;
  DB db;
  DA dalpha;
  matrix_view<T> df, d_in;
};
template <class T, class DP, class DB, class DA>
mhc_gradients(matrix_view<T>, matrix_view<DP>, DB&&, DA&&, matrix_view<T>, matrix_view<T>)
    -> mhc_gradients<T, DP, DB, DA>;

/// Bytes of workspace that mhc_forward takes beside the layer, and not while it runs.
template <class B = default_backend, class T, class P = T>
std::size_t mhc_workspace(std::size_t tokens, std::size_t channels, std::size_t streams,
                          const context& ctx = default_context<B>()) {
  return std::max({mhc_coeffs_workspace<B, T, P>(tokens, channels, streams, ctx),
                   mhc_pre_workspace<B, T>(channels, streams, ctx),
                   mhc_post_res_workspace<B, T>(channels, streams, ctx)});
}
/// Bytes of workspace that mhc_backward takes beside the layer, and not while it runs: gradients of the coefficients,
/// then that of mhc_coeffs_backward.
template <class B = default_backend, class T, class P = T, class DP = P>
std::size_t mhc_backward_workspace(std::size_t tokens, std::size_t channels, std::size_t streams, std::size_t tmax = 20,
                                   mhc_coeffs_wanted wanted = {}, const context& ctx = default_context<B>()) {
  using A = accumulator_t<T>;
  return 2 * workspace::bytes_for<A>(tokens, streams) + workspace::bytes_for<A>(tokens, streams, streams) +
         std::max(mhc_coeffs_backward_workspace<B, T, P, DP>(tokens, channels, streams, tmax, wanted, ctx),
                  mhc_post_res_backward_workspace<B, T>(channels, streams, ctx));
}

namespace detail {
inline namespace TIGON_ABI {
/// Declares what both directions have of what forward leaves: written there, read in backward.
template <class B, class T>
void declare_mhc_saved(arguments& args, const mhc_saved<T>& s, std::size_t tokens, std::size_t channels, std::size_t n,
                       std::size_t tmax, bool written) {
  const auto declare = [&](std::string_view name, auto view, auto... extents) {
    if (written)
      args.out(name, view, extents...);
    else
      args.in(name, view, extents...);
  };
  declare("h_pre", s.h.h_pre, tokens, n);
  declare("h_post", s.h.h_post, tokens, n);
  declare("h_res", s.h.h_res, tokens, workspace::product(n, n));
  declare("mix", s.coeffs.mix, tokens, mhc_columns(n));
  declare("rstd", s.coeffs.rstd, tokens);
  declare("history", s.coeffs.history, mhc_coeffs_history<B, T>(tokens, n, tmax));
  declare("in", s.in, tokens, channels);
  declare("f", s.f, tokens, channels);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// A layer between manifold-constrained hyper-connections:
///
///   h = coefficients of x (mhc_coeffs),   in = sum_h h_pre x_h (mhc_pre),   f = layer(in),
///   y_o = sum_i h_res x_i + h_post f (mhc_post_res)
///
/// Formula    docs/formulas/hyper_connections.md.
/// Shapes     x, y [tokens, n * channels]; in, f [tokens, channels]; weights and what is saved as in
///            mhc_coeffs_options.
/// Types      x, y, in, f of one type; otherwise as in mhc_coeffs_options.
/// Precision  as the three operators; that of f is up to the layer.
/// Writes     y and what is saved. The layer is called once, also without tokens.
/// Aliasing   no output shares an element with another argument.
/// Memory     what is saved; see mhc_workspace and mhc_backward_workspace.
/// Throws     as mhc_coeffs_forward, before the first write; and what the layer throws.
/// Max error  that of the three operators (tests/ops/mhc_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 2 * 64, 0.5f), phi(128 * 8, 0.1f), b(8), alpha(3, 1), pre(4 * 2), post(4 * 2), res(4 * 4);
/// std::vector<float> mix(4 * 8), rstd(4), history(tigon::mhc_coeffs_history<tigon::default_backend, float>(4, 2));
/// std::vector<float> dx(x), dphi(phi), db(8), dalpha(3);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), 4, v.size() / 4); };
/// const tigon::matrix_view weights(phi.data(), 128, 8), gradient(dphi.data(), 128, 8);
/// const tigon::mhc_weights w{weights, b, alpha};
/// const tigon::mhc_coefficients<float> h{rows(pre), rows(post), rows(res)};  // of two streams
/// const tigon::mhc_coeffs_saved<float> coeffs{rows(mix), rstd, history};
/// std::vector<float> in(4 * 64), f(in), df(in), d_in(in), y(x);
/// const tigon::mhc_saved<float> saved{h, coeffs, rows(in), rows(f)};
/// const auto layer = [](auto from, auto to) { std::copy_n(from.data, from.rows * from.cols, to.data); };
/// tigon::mhc_forward(rows(x), w, layer, rows(y), saved);
/// tigon::mhc_backward(rows(y), rows(x), w, layer, saved,
///                     tigon::mhc_gradients{rows(dx), gradient, db, dalpha, rows(df), rows(d_in)});  // dy = y
/// ```
template <class B = default_backend, class T, class P, class Bias, class Alpha>
void mhc_forward(in_matrix<T> x, const mhc_weights<P, Bias, Alpha>& w, std::type_identity_t<mhc_layer<T>> layer,
                 matrix_view<T> y, const std::type_identity_t<mhc_saved<T>>& saved, mhc_coeffs_options opt = {},
                 context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using R = row_backend<B>;
  using Phi = gemm_detail::bare<P>;
  const std::size_t n = saved.h.h_pre.cols, tokens = x.rows;
  arguments args("mhc_forward");
  const auto weights = detail::declare_mhc<T>(args, n, x, w, opt);
  const std::size_t channels = x.cols / n;
  detail::declare_mhc_saved<B>(args, saved, tokens, channels, n, opt.tmax, true);
  args.out("y", y, tokens, x.cols);
  args.check();
  ctx.workspace().expect("mhc_forward", mhc_workspace<B, T, Phi>(tokens, channels, n, ctx));
  kernel_for<op::mhc_coeffs, B>::template forward<B, T>(x, weights, saved.h, saved.coeffs, opt, ctx);
  kernel_for<op::mhc_pre, R>::template forward<R, T>(x, saved.h.h_pre, saved.in, ctx);
  layer(saved.in, saved.f);
  ctx.workspace().expect("mhc_forward", mhc_post_res_workspace<B, T>(channels, n, ctx));
  kernel_for<op::mhc_post_res, R>::template forward<R, T>(x, saved.f, saved.h.h_post, saved.h.h_res, y, ctx);
}

/// dx, dphi, db and dalpha from dy and what forward left. `layer` takes df to d_in, and makes the gradients of its own
/// parameters.
///
///   dx = what mhc_post_res, mhc_pre and mhc_coeffs add to it, summed in f32 (f64 for f64) and rounded once
///
/// opt.dx and opt.dparams say what is added to; otherwise as mhc_forward.
template <class B = default_backend, class T, class P, class Bias, class Alpha, class DP, class DB, class DA>
void mhc_backward(in_matrix<T> dy, in_matrix<T> x, const mhc_weights<P, Bias, Alpha>& w,
                  std::type_identity_t<mhc_layer<T>> layer, const std::type_identity_t<mhc_saved<T>>& saved,
                  const mhc_gradients<T, DP, DB, DA>& gradients, mhc_coeffs_options opt = {},
                  context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  static_assert(mixes_with<T, DP>, "tigon: a gradient of double matrices is one of doubles");
  using A = accumulator_t<T>;
  using R = row_backend<B>;
  using Phi = gemm_detail::bare<P>;
  const std::size_t n = saved.h.h_pre.cols, tokens = x.rows;
  arguments args("mhc_backward");
  const auto weights = detail::declare_mhc<T>(args, n, x, w, opt);
  const std::size_t channels = x.cols / n;
  detail::declare_mhc_saved<B>(args, saved, tokens, channels, n, opt.tmax, false);
  using W = detail::view_element_t<decltype(weights.b)>;
  const detail::mhc_gradient_views<T, DP, W> to{gradients.dx, gradients.dphi, as_out_vector<W>(gradients.db),
                                                as_out_vector<W>(gradients.dalpha)};
  const mhc_coeffs_wanted wanted{to.dx.data != nullptr, to.dphi.data != nullptr, to.db || to.dalpha};
  args.in("dy", dy, tokens, x.cols);
  args.optional_out("dx", to.dx, tokens, x.cols);
  args.optional_out("dphi", to.dphi, x.cols, detail::mhc_columns(n));
  args.optional_out("db", to.db, detail::mhc_columns(n));
  args.optional_out("dalpha", to.dalpha, 3);
  args.out("df", gradients.df, tokens, channels);
  args.out("d_in", gradients.d_in, tokens, channels);
  args.check();
  const std::size_t bytes = mhc_backward_workspace<B, T, Phi, DP>(tokens, channels, n, opt.tmax, wanted, ctx);
  ctx.workspace().expect("mhc_backward", bytes);
  kernel_for<op::mhc_post_res, R>::template backward<R, T>(dy, x, saved.f, saved.h.h_post, saved.h.h_res,
                                                           mhc_post_res_gradients<T>{{}, gradients.df, {}, {}},
                                                           mhc_post_res_options{}, ctx);
  layer(gradients.df, gradients.d_in);
  ctx.workspace().expect("mhc_backward", bytes);
  workspace::frame frame(ctx.workspace());
  const matrix_view<A> dh_pre(frame.template take<A>(tokens * n), tokens, n);
  const matrix_view<A> dh_post(frame.template take<A>(tokens * n), tokens, n);
  const matrix_view<A> dh_res(frame.template take<A>(tokens * n * n), tokens, n * n);
  kernel_for<op::mhc_post_res, R>::template backward<R, T>(dy, x, saved.f, saved.h.h_post, saved.h.h_res,
                                                           mhc_post_res_gradients<T>{{}, {}, dh_post, dh_res},
                                                           mhc_post_res_options{}, ctx);
  kernel_for<op::mhc_pre, R>::template backward<R, T>(gradients.d_in, x, saved.h.h_pre,
                                                      mhc_pre_gradients<T>{{}, dh_pre}, mhc_pre_options{}, ctx);
  kernel_for<op::mhc_coeffs, B>::template backward<B, T>(
      mhc_coefficients<const A>{dh_pre, dh_post, dh_res}, x, weights, saved.coeffs, to, opt,
      detail::mhc_more<T>{dy, gradients.d_in, saved.h.h_pre, saved.h.h_res}, ctx);
}

TIGON_EXPLAINS(mhc_forward)
TIGON_EXPLAINS(mhc_backward)

}  // namespace tigon

#endif  // TIGON_OPS_MHC_HPP
