// The generic kernel of dyt.
#ifndef TIGON_OPS_NORM_DYT_KERNEL_HPP
#define TIGON_OPS_NORM_DYT_KERNEL_HPP

#include <tigon/ops/norm/dyt_options.hpp>
#include <tigon/ops/norm/dyt_program.hpp>

namespace tigon {

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
    using parts = simd::tanh_parts<detail::dyt_bits<B, T, W>, A>;
    map_rows<B>(ctx, detail::dyt_gradient<parts>{parts(factor)}, reads(x, dy, scaled), writes(dx),
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

}  // namespace tigon

#endif  // TIGON_OPS_NORM_DYT_KERNEL_HPP
