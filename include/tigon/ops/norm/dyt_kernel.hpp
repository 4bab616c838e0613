// Dynamic tanh, forward and backward.
#ifndef TIGON_OPS_DYT_HPP
#define TIGON_OPS_DYT_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/norm/dyt_program.hpp>

namespace tigon {

namespace op {
struct dyt {
  static constexpr std::string_view name = "dyt";
};
}  // namespace op

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
/// Aliasing   backward: dx may be dy or x. forward: y may not be x, which backward needs. Otherwise any layout in which
///            no written element is shared.
/// Throws     tigon::error: shape, stride, alias, workspace; before the first write.
/// Edges      at x = +inf and -inf t is 1 and -1 and dx is 0; dalpha, a sum with inf * 0 then, is NaN. NaN stays NaN.
///            An alpha below 1e-37 loses digits, and so does y with it.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square, where beta cancels gamma t of the magnitudes
///            of both; gradients 2e-6, 4e-3, those of parameters of |reference| + the root sum of squares of what it is
///            the sum of (tests/ops/dyt_test.cpp), for any number of rows (tests/rows/many_rows_test.cpp).
struct dyt_options {
  gradient dparams = gradient::overwrite;
};

/// dyt_gradients{dx, dalpha, dgamma, dbeta}, or with the names of the fields; all but dx a range of elements or `absent`.
template <class T, class DAlpha, class DGamma, class DBeta>
struct dyt_gradients {
  matrix_view<T> dx;
  DAlpha dalpha;
  DGamma dgamma;
  DBeta dbeta;
};
template <class T, class DAlpha, class DGamma, class DBeta>
dyt_gradients(matrix_view<T>, DAlpha&&, DGamma&&, DBeta&&) -> dyt_gradients<T, DAlpha, DGamma, DBeta>;

namespace detail {
inline namespace TIGON_ABI {
/// Bits of results of these types, for functions that need not be more exact; all, but where every type is bf16.
template <class B, class... T>
inline constexpr std::size_t dyt_bits = (std::same_as<T, bfloat16> && ...) && B::relaxed_16bit ? 8 : 53;

/// run(f), where f(v) is tanh(alpha v) as exact as results of type T show.
template <class B, class T, class A, class Run>
void with_tanh(A alpha, Run run) {
  if constexpr (dyt_bits<B, T> == 8) {
    using relaxed = simd::relaxed_tanh<simd::vec<typename B::engine, A>>;
    if (relaxed::serves(alpha)) return run(relaxed(static_cast<double>(alpha)));
  }
  run(simd::scaled_tanh<A>(alpha));
}
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::dyt, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> alpha, in_vector<W> gamma, in_vector<W> beta, matrix_view<T> y,
                      context& ctx) {
    using A = accumulator_t<T>;
    detail::with_tanh<B, T>(static_cast<A>(alpha.data[0]), [&]<class Tanh>(Tanh tanh_of) {
      map_rows<B>(ctx, detail::dyt_program<Tanh>{tanh_of}, reads(x, gamma, or_zeros(beta)), writes(y));
    });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> alpha, in_vector<W> gamma,
                       dyt_gradients<T, vector_view<W>, vector_view<W>, vector_view<W>> gradients, dyt_options opt,
                       context& ctx) {
    const matrix_view<T> dx = gradients.dx;
    const vector_view<W> dalpha = gradients.dalpha, dgamma = gradients.dgamma, dbeta = gradients.dbeta;
    using A = accumulator_t<T>;
    const A factor = static_cast<A>(alpha.data[0]);
    const bool alpha_sums = static_cast<bool>(dalpha), in_f64 = alpha_sums && is_small(x.rows, x.cols);
    workspace::frame frame(ctx.workspace());
    const vector_view<A> scaled{frame.template take<A>(x.cols), x.cols};  // 4 alpha gamma
    vector_view<double> weight, by_row;                                   // 4 gamma, so that lanes are of f64
    vector_view<A> by_column;
    if (alpha_sums) {
      weight = {frame.template take<double>(x.cols), x.cols};
      by_row = {frame.template take<double>(in_f64 ? x.rows : 0), x.rows};
      by_column = {frame.template take<A>(x.cols), x.cols};
    }
    for (std::size_t j = 0; j < x.cols; ++j) {
      const A g = static_cast<A>(gamma.data[j]);
      scaled.data[j] = 4 * (g * factor);
      if (alpha_sums) weight.data[j] = 4 * static_cast<double>(g);
    }
    if (in_f64) {
      const detail::dyt_alpha_gradient of_alpha{simd::tanh_parts<53, double>(static_cast<double>(factor))};
      reduce_map<B>(ctx, of_alpha, reads(weight, dy, x), saves(by_row.data));
    }
    constexpr std::size_t bits = detail::dyt_bits<B, T, W>;
    map_rows<B>(ctx, detail::dyt_gradient<bits, A>{simd::tanh_parts<bits, A>(factor)}, reads(x, dy, scaled), writes(dx),
                adds_to(parameter_gradient<A>{by_column}, parameter_gradient<W>{dgamma, opt.dparams},
                        parameter_gradient<W>{dbeta, opt.dparams}));
    if (!dalpha) return;
    const bool accumulate = opt.dparams == gradient::accumulate;
    for_rows<B, double>(ctx, 1, in_f64 ? x.rows : x.cols, [=] TIGON_FN(auto row) {
      const double sum = in_f64 ? row.sum(reads(by_row), [](auto s) { return s; })
                                : row.sum(reads(weight, by_column), [](auto g, auto s) { return g * s; });
      if (row.first()) dalpha.data[0] = static_cast<W>(static_cast<A>(accumulate ? row.at(dalpha, 0) + sum : sum));
    });
  }

  /// The terms of dalpha cancel. Where there are few, so that it costs little, they are summed again in f64.
  static constexpr bool is_small(std::size_t rows, std::size_t cols) { return rows * cols <= std::size_t{1} << 15; }
};

/// Bytes of workspace that dyt_backward takes, with gradients of parameters or without any.
template <class B = default_backend, class T>
std::size_t dyt_workspace(std::size_t rows, std::size_t cols, parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  if (of == parameters::frozen) return workspace::bytes_for<A>(cols);
  const std::size_t by_row = kernel<op::dyt, backends::generic>::is_small(rows, cols) ? rows : 0;
  return workspace::bytes_for<double>(cols) + workspace::bytes_for<double>(by_row) + 2 * workspace::bytes_for<A>(cols) +
         simd::partials_workspace<B, A>(rows, cols, 3);
}

/// y from x, alpha, gamma and beta. See dyt_options for the contract.
template <class B = default_backend, class T, parameter Alpha, parameter Gamma, parameter Beta>
void dyt_forward(in_matrix<T> x, const Alpha& alpha, const Gamma& gamma, const Beta& beta, matrix_view<T> y,
                 dyt_options = {}, context& ctx = default_context()) {
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
                  context& ctx = default_context()) {
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

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_DYT_HPP
