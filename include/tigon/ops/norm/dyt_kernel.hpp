// The generic kernel of dyt.
#ifndef TIGON_OPS_NORM_DYT_KERNEL_HPP
#define TIGON_OPS_NORM_DYT_KERNEL_HPP

#include <tigon/backend/made_late.hpp>
#include <tigon/ops/norm/dyt_options.hpp>
#include <tigon/ops/norm/dyt_program.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// Bits of results of these types, for functions that need not be more exact; all, but where every type is bf16.
template <class B, class... T>
inline constexpr std::size_t dyt_bits = (std::same_as<T, bfloat16> && ...) && B::relaxed_16bit ? 8 : 53;

/// run(program), whose tanh(alpha x) is as exact as results of type T show. What makes a relaxed one is not made in
/// every row.
template <class B, class T, class A, class W, class Run>
void with_dyt_program(const W* alpha, Run run) {
  if constexpr (dyt_bits<B, T> == 8 && host_memory<B>) {
    using relaxed = simd::relaxed_tanh<simd::vec<typename B::engine, A>>;
    const A factor = static_cast<A>(*alpha);
    if (relaxed::serves(factor)) return run(dyt_program<relaxed>{relaxed(static_cast<double>(factor))});
  }
  using tanh = simd::scaled_tanh<A>;
  run(made_of<B>(dyt_at<dyt_program<tanh>, tanh, A, W>{alpha}));
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
    detail::with_dyt_program<B, T, A>(
        alpha.data, [&](auto program) { map_rows<B>(ctx, program, reads(x, gamma, or_zeros(beta)), writes(y)); });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> alpha, in_vector<W> gamma,
                       dyt_gradients<T, vector_view<W>, vector_view<W>, vector_view<W>> gradients, dyt_options opt,
                       context& ctx) {
    const matrix_view<T> dx = gradients.dx;
    const vector_view<W> dalpha = gradients.dalpha, dgamma = gradients.dgamma, dbeta = gradients.dbeta;
    using A = accumulator_t<T>;
    const bool alpha_sums = static_cast<bool>(dalpha), few = alpha_sums && is_small(x.rows, x.cols);
    workspace::frame frame(ctx.workspace());
    const vector_view<A> weights{frame.template take<A>(x.cols), x.cols};
    vector_view<double> by_row;
    vector_view<A> by_column;
    if (alpha_sums) {
      by_row = {frame.template take<double>(few ? x.rows : 0), x.rows};
      by_column = {frame.template take<A>(x.cols), x.cols};
    }
    if (few) {
      const vector_view<double> gamma_in_f64{frame.template take<double>(x.cols), x.cols};
      for_rows<B, double>(ctx, 1, x.cols, [=] TIGON_FN(auto row) {
        row.map(reads(in_f64(gamma)), writes(gamma_in_f64), [](auto g) { return g; });
      });
      using parts = simd::tanh_parts<53, double>;
      const detail::dyt_at<detail::dyt_alpha_gradient, parts, double, W> of_alpha{alpha.data};
      reduce_map<B>(ctx, detail::made_of<B>(of_alpha), reads(gamma_in_f64, dy, x), saves(by_row.data));
    }
    map_rows<B>(ctx, detail::made_of<B>(detail::dyt_at<detail::dyt_weights<A>, A, A, W>{alpha.data}),
                reads(as_row(gamma)), writes(as_row(weights)));
    using parts = simd::tanh_parts<detail::dyt_bits<B, T, W>, A>;
    map_rows<B>(ctx, detail::made_of<B>(detail::dyt_at<detail::dyt_gradient<parts>, parts, A, W>{alpha.data}),
                reads(x, dy, weights), writes(dx),
                adds_to(parameter_gradient<A>{by_column}, parameter_gradient<W>{dgamma, opt.dparams},
                        parameter_gradient<W>{dbeta, opt.dparams}));
    if (!dalpha) return;
    const bool accumulate = opt.dparams == gradient::accumulate;
    for_rows<B, double>(ctx, 1, few ? x.rows : x.cols, [=] TIGON_FN(auto row) {
      const double sum = few ? row.sum(reads(by_row), [](auto s) { return s; })
                             : row.sum(reads(in_f64(gamma), by_column), [](auto g, auto s) { return 4.0 * g * s; });
      if (row.first()) dalpha.data[0] = static_cast<W>(static_cast<A>(accumulate ? row.at(dalpha, 0) + sum : sum));
    });
  }

  /// The terms of dalpha cancel. Where there are few, so that it costs little, they are summed again in f64.
  static constexpr bool is_small(std::size_t rows, std::size_t cols) { return rows * cols <= std::size_t{1} << 15; }
};

}  // namespace tigon

#endif  // TIGON_OPS_NORM_DYT_KERNEL_HPP
