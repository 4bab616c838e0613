// The tag, options, operands and checks of mhc_coeffs.
#ifndef TIGON_OPS_DEPTH_MHC_COEFFS_OPTIONS_HPP
#define TIGON_OPS_DEPTH_MHC_COEFFS_OPTIONS_HPP

#include <tigon/gemm/contract.hpp>
#include <tigon/ops/depth/stream_sums.hpp>

#include <span>

namespace tigon {

namespace op {
struct mhc_coeffs {
  static constexpr std::string_view name = "mhc_coeffs";
};
}  // namespace op

/// The contract is in ops/mhc_coeffs.hpp.
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
                                 const context& ctx = default_context<B>()) {
  return kernel_for<op::mhc_coeffs, B>::template forward_bytes<B, T, P>(tokens, channels, streams, ctx);
}
/// Bytes of workspace that mhc_coeffs_backward takes, for dphi of DP.
template <class B = default_backend, class T, class P = T, class DP = P>
std::size_t mhc_coeffs_backward_workspace(std::size_t tokens, std::size_t channels, std::size_t streams,
                                          std::size_t tmax = 20, mhc_coeffs_wanted wanted = {},
                                          const context& ctx = default_context<B>()) {
  return kernel_for<op::mhc_coeffs, B>::template backward_bytes<B, T, P, DP>(tokens, channels, streams, tmax, wanted,
                                                                             ctx);
}

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_MHC_COEFFS_OPTIONS_HPP
