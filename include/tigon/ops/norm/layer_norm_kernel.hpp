// The generic kernel of layer_norm.
#ifndef TIGON_OPS_NORM_LAYER_NORM_KERNEL_HPP
#define TIGON_OPS_NORM_LAYER_NORM_KERNEL_HPP

#include <tigon/ops/norm/layer_norm_options.hpp>
#include <tigon/ops/norm/layer_norm_program.hpp>
#include <tigon/ops/norm/norm_gradients.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

template <>
struct kernel<op::layer_norm, backends::generic> {
  template <class A>
  using saved = std::span<A>;  // mean and rstd, a row of numbers each

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> w, in_vector<W> b, matrix_view<T> y,
                      std::span<accumulator_t<T>> mean, std::span<accumulator_t<T>> rstd, layer_norm_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    const detail::layer_norm_program<A> program{static_cast<A>(x.cols), static_cast<A>(opt.eps)};
    reduce_map<B>(ctx, program, reads(x), map_reads(or_ones(w), or_zeros(b)), writes(y),
                  saves(mean.data(), rstd.data()));
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> mean,
                       std::span<const accumulator_t<T>> rstd,
                       norm_gradients<T, vector_view<W>, vector_view<W>> gradients, layer_norm_options opt,
                       context& ctx) {
    if (!detail::holds_products(rstd.data(), x.rows))
      return backward_in_f64<B, T, W>(dy, x, w, mean.data(), rstd.data(), gradients, opt, ctx);
    if (mean_shows<T>(mean, rstd, x.cols))
      backward_rows<B, true, T, W>(dy, x, w, mean, rstd, gradients, opt, ctx);
    else
      backward_rows<B, false, T, W>(dy, x, w, mean, rstd, gradients, opt, ctx);
  }

  /// Whether the rounding errors of the means, up to 2^-24 of them (f32), show beside the deviations: where a mean is
  /// larger than four deviations, and in rows of a few columns, whose dx nearly cancels. Not in bf16, whose numbers lie
  /// too far apart.
  template <element T, class A>
  static bool mean_shows(std::span<const A> mean, std::span<const A> rstd, std::size_t cols) {
    bool distant = cols <= 16;
    for (std::size_t i = 0; i < mean.size(); ++i) distant |= math::abs(mean[i]) * rstd[i] > A(4);
    return distant && !std::same_as<T, bfloat16>;
  }

  template <backend B, bool Exact, element T, element W, class A>
  static void backward_rows(matrix_view<const T> dy, matrix_view<const T> x, in_vector<W> w, std::span<const A> mean,
                            std::span<const A> rstd, norm_gradients<T, vector_view<W>, vector_view<W>> to,
                            layer_norm_options opt, context& ctx) {
    reduce_map<B>(ctx, detail::layer_norm_gradient<Exact, A>{static_cast<A>(x.cols)}, reads(dy, x, or_ones(w)),
                  of_rows(mean.data(), rstd.data()), writes(to.dx),
                  adds_to(parameter_gradient<W>{to.dw, opt.dparams}, parameter_gradient<W>{to.db, opt.dparams}));
  }

  /// Rows of any size.
  template <backend B, element T, element W, class A>
  static void backward_in_f64(matrix_view<const T> dy, matrix_view<const T> x, in_vector<W> w, const A* mean,
                              const A* rstd, norm_gradients<T, vector_view<W>, vector_view<W>> to,
                              layer_norm_options opt, context& ctx) {
    const matrix_view<T> dx = to.dx;
    for_rows<B, A>(ctx, x.rows, x.cols,
                   adds_to(parameter_gradient<W>{to.dw, opt.dparams}, parameter_gradient<W>{to.db, opt.dparams}),
                   [=] TIGON_FN(auto row) TIGON_LAMBDA {
                     if (!row.first()) return;
                     const double n = static_cast<double>(row.cols), p = detail::scale_of_row(rstd[row.i]),
                                  m = mean[row.i] * p, r = rstd[row.i] / p;
                     const auto centred = [=](std::size_t j) { return static_cast<double>(row.at(x, j)) * p - m; };
                     const auto h = [=](std::size_t j) {
                       return row.at(dy, j) * (w ? static_cast<double>(row.at(w, j)) : 1.0);
                     };
                     double e = 0, c1 = 0, c2 = 0;
                     for (std::size_t j = 0; j < row.cols; ++j) e += centred(j) / n;
                     for (std::size_t j = 0; j < row.cols; ++j) c1 += (centred(j) - e) * r * h(j) / n, c2 += h(j) / n;
                     const auto dw_row = row.partial(0), db_row = row.partial(1);
                     for (std::size_t j = 0; j < row.cols; ++j) {
                       const double xh = (centred(j) - e) * r, d = row.at(dy, j);
                       if (dw_row) dw_row.data[j] += static_cast<A>(d * xh), db_row.data[j] += static_cast<A>(d);
                       row.put(dx, j, static_cast<A>((h(j) - c2 - xh * c1) * r * p));
                     }
                   });
  }
};

/// Bytes of workspace that layer_norm_backward takes, with dw or db, or without both.
template <class B = default_backend, class T>
std::size_t layer_norm_workspace(std::size_t rows, std::size_t cols, parameters of = parameters::trained) {
  return of == parameters::frozen ? 0 : simd::partials_workspace<B, accumulator_t<T>>(rows, cols, 2);
}

}  // namespace tigon

#endif  // TIGON_OPS_NORM_LAYER_NORM_KERNEL_HPP
