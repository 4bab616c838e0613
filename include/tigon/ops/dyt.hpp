// Dynamic tanh, forward and backward.
#ifndef TIGON_OPS_DYT_HPP
#define TIGON_OPS_DYT_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/norm/dyt_kernel.hpp>

namespace tigon {

/// Dynamic tanh, which takes the place of a norm.
///
///   t  = tanh(alpha * x),   y = gamma[j] * t + beta[j]             beta absent: 0
///   q  = (1 - t^2) * dy * gamma,   dx = alpha * q
///   dalpha = sum_ij x * q,   dgamma[j] = sum_i dy * t,   dbeta[j] = sum_i dy
///
/// Formula    docs/formulas/dyt.md; Zhu et al., "Transformers without Normalization", 2025.
/// Shapes     x, y, dy, dx [rows, cols]; alpha, dalpha [1]; gamma, beta, dgamma, dbeta [cols]; beta and gradients of
///            parameters may be `absent`: those are frozen. rows and cols may be 0.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; parameters of one type, any of them (f64 only with f64).
/// Precision  f32 (f64 for f64), dalpha of small problems f64; 1 - t^2 without cancellation; one rounding at y, dx and
///            gradients of parameters. In bf16 backward's t has an error of 1.5e-8 beside its relative one.
/// Writes     y, dx; dalpha, dgamma and dbeta are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: dx may be dy or x. forward: y may not be x, which backward needs. Otherwise no output shares an
///            element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, workspace; before the first write.
/// Edges      at x = +inf and -inf t is 1 and -1 and dx is 0; dalpha, a sum with inf * 0 then, is NaN. NaN stays NaN.
///            An alpha below 1e-37 loses digits, and so does y with it.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square, or where beta and gamma t cancel, of the
///            magnitudes of both; gradients 2e-6, 4e-3, those of parameters of |reference| + the root of the sum of the
///            squares of their terms (tests/ops/dyt_test.cpp), for any number of rows (tests/rows/many_rows_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 64, 0.5f), alpha(1, 0.5f), gamma(64, 1), beta(64), y(4 * 64), dx(4 * 64), dalpha(1);
/// std::vector<float> dgamma(64), dbeta(64);
/// const tigon::matrix_view in(x.data(), 4, 64), out(y.data(), 4, 64), gradient(dx.data(), 4, 64);
/// tigon::dyt_forward(in, alpha, gamma, beta, out);
/// tigon::dyt_backward(out, in, alpha, gamma, tigon::dyt_gradients{gradient, dalpha, dgamma, dbeta});  // dy = y
/// ```
struct dyt_options;

/// Bytes of workspace that dyt_backward takes, with gradients of parameters or without any.
template <class B = default_backend, class T>
std::size_t dyt_workspace(std::size_t rows, std::size_t cols, parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  if (of == parameters::frozen) return workspace::bytes_for<A>(cols);
  const bool few = kernel<op::dyt, backends::generic>::is_small(rows, cols);
  return workspace::bytes_for<double>(few ? rows : 0) + workspace::bytes_for<double>(few ? cols : 0) +
         2 * workspace::bytes_for<A>(cols) + simd::partials_workspace<B, A>(rows, cols, 3);
}

/// y from x, alpha, gamma and beta. See dyt_options for the contract.
template <class B = default_backend, class T, parameter Alpha, parameter Gamma, parameter Beta>
void dyt_forward(in_matrix<T> x, const Alpha& alpha, const Gamma& gamma, const Beta& beta, matrix_view<T> y,
                 dyt_options = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, Alpha, Gamma, Beta>;
  const auto factor = as_in_vector<P>(alpha);
  const auto weight = as_in_vector<P>(gamma);
  const auto bias = as_in_vector<P>(beta);
  static_assert(admits_parameter<T, decltype(factor), decltype(weight), decltype(bias)>());
  arguments args("dyt_forward");
  args.in("x", x);
  args.in("alpha", factor, 1);
  args.in("gamma", weight, x.cols);
  args.optional_in("beta", bias, x.cols);
  args.out("y", y, x.rows, x.cols);
  args.check();
  kernel_for<op::dyt, B>::template forward<B, T>(x, factor, weight, bias, y, ctx);
}

/// dx, dalpha, dgamma and dbeta from dy and what forward was given. See dyt_options for the contract.
template <class B = default_backend, class T, parameter Alpha, parameter Gamma, parameter DAlpha, parameter DGamma,
          parameter DBeta>
void dyt_backward(in_matrix<T> dy, in_matrix<T> x, const Alpha& alpha, const Gamma& gamma,
                  const dyt_gradients<T, DAlpha, DGamma, DBeta>& gradients, dyt_options opt = {},
                  context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, Alpha, Gamma, DAlpha, DGamma, DBeta>;
  const auto factor = as_in_vector<P>(alpha);
  const auto weight = as_in_vector<P>(gamma);
  const dyt_gradients to{gradients.dx, as_out_vector<P>(gradients.dalpha), as_out_vector<P>(gradients.dgamma),
                         as_out_vector<P>(gradients.dbeta)};
  static_assert(admits_parameter<T, decltype(factor), decltype(weight), decltype(to.dalpha), decltype(to.dgamma),
                                 decltype(to.dbeta)>());
  arguments args("dyt_backward");
  args.in("x", x);
  args.in("dy", dy, x.rows, x.cols);
  args.in("alpha", factor, 1);
  args.in("gamma", weight, x.cols);
  args.out("dx", to.dx, x.rows, x.cols).may_be("dy", "x");
  args.optional_out("dbeta", to.dbeta, x.cols);
  args.optional_out("dgamma", to.dgamma, x.cols);
  args.optional_out("dalpha", to.dalpha, 1);
  args.check();
  const bool trained = to.dalpha.data != nullptr || to.dgamma.data != nullptr || to.dbeta.data != nullptr;
  ctx.workspace().expect("dyt_backward", dyt_workspace<B, T>(x.rows, x.cols, trained_if(trained)));
  kernel_for<op::dyt, B>::template backward<B, T>(dy, x, factor, weight, to, opt, ctx);
}

TIGON_EXPLAINS(dyt_forward)
TIGON_EXPLAINS(dyt_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_DYT_HPP
