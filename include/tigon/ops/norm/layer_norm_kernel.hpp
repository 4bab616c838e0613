// LayerNorm over the last axis, forward and backward.
#ifndef TIGON_OPS_LAYER_NORM_HPP
#define TIGON_OPS_LAYER_NORM_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/norm/layer_norm_program.hpp>
#include <tigon/ops/norm/norm_gradients.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

namespace op {
struct layer_norm {
  static constexpr std::string_view name = "layer_norm";
};
}  // namespace op

/// LayerNorm over the last axis.
///
///   mean[i] = mean_j x[i,j],   rstd[i] = 1 / sqrt(mean_j (x[i,j] - mean[i])^2 + eps)
///   xh      = (x - mean) * rstd,   y = xh * w + b             absent: w = 1, b = 0
///   h       = dy * w,   c1[i] = mean_j xh[i,j] h[i,j],   c2[i] = mean_j h[i,j]
///   dx      = rstd * (h - c2 - xh * c1),   dw[j] = sum_i dy * xh,   db[j] = sum_i dy
///
/// Formula    docs/formulas/layer_norm.md; Ba, Kiros and Hinton, "Layer Normalization", 2016.
/// Shapes     x, y, dy, dx [rows, cols]; w, b, dw, db [cols] or `absent`, gradients also where the parameter is given:
///            it is frozen; mean, rstd [rows]. cols >= 1, rows may be 0.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; parameters of one type, any of them (f64 only with f64).
/// Precision  the variance from sums about 0 or, where that is not within a deviation of it, the mean; sums, mean and
///            rstd in f32 (f64 for f64); backward makes up for the rounding of mean; y, dx, dw, db rounded once.
/// Options    backward: mean and rstd decide, and eps does not count.
/// Writes     y, mean, rstd, dx; dw and db are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: dx may be dy or x. forward: y may not be x, which backward needs. Otherwise any layout in which
///            no written element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative, or outside option_range), workspace; before
///            the first write.
/// Range      any mean that x can hold beside the deviation, and a deviation of any size, where rstd is a number of its
///            type: with eps = 0, from the smallest normal number on. NaN or an infinity makes its row of y and dx
///            NaN, and dw.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square, forward at least of 1; gradients 2e-6, 4e-3
///            (tests/ops/layer_norm_test.cpp), for any number of rows (tests/rows/many_rows_test.cpp).
struct layer_norm_options {
  double eps = 1e-6;  ///< inside the square root
  gradient dparams = gradient::overwrite;
};

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
    for_rows_with_partials<B, A>(
        ctx, x.rows, x.cols,
        [=] TIGON_FN(auto row) TIGON_LAMBDA {
          if (!row.first()) return;
          const double n = static_cast<double>(row.cols), p = detail::scale_of_row(rstd[row.i]), m = mean[row.i] * p,
                       r = rstd[row.i] / p;
          const auto centred = [=](std::size_t j) { return static_cast<double>(row.at(x, j)) * p - m; };
          const auto h = [=](std::size_t j) { return row.at(dy, j) * (w ? static_cast<double>(row.at(w, j)) : 1.0); };
          double e = 0, c1 = 0, c2 = 0;
          for (std::size_t j = 0; j < row.cols; ++j) e += centred(j) / n;
          for (std::size_t j = 0; j < row.cols; ++j) c1 += (centred(j) - e) * r * h(j) / n, c2 += h(j) / n;
          const auto dw_row = row.partial(0), db_row = row.partial(1);
          for (std::size_t j = 0; j < row.cols; ++j) {
            const double xh = (centred(j) - e) * r, d = row.at(dy, j);
            if (dw_row) dw_row.data[j] += static_cast<A>(d * xh), db_row.data[j] += static_cast<A>(d);
            row.put(dx, j, static_cast<A>((h(j) - c2 - xh * c1) * r * p));
          }
        },
        parameter_gradient<W>{to.dw, opt.dparams}, parameter_gradient<W>{to.db, opt.dparams});
  }
};

/// Bytes of workspace that layer_norm_backward takes, with dw or db, or without both.
template <class B = default_backend, class T>
std::size_t layer_norm_workspace(std::size_t rows, std::size_t cols, parameters of = parameters::trained) {
  return of == parameters::frozen ? 0 : simd::partials_workspace<B, accumulator_t<T>>(rows, cols, 2);
}

/// y, mean and rstd from x, w and b. See layer_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter Bias>
void layer_norm_forward(in_matrix<T> x, const W& w, const Bias& b, matrix_view<T> y,
                        std::type_identity_t<saved_t<op::layer_norm, B, accumulator_t<T>>> mean,
                        std::type_identity_t<saved_t<op::layer_norm, B, accumulator_t<T>>> rstd,
                        layer_norm_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<parameter_element_t<T, W, Bias>>(w);
  const auto bias = as_in_vector<parameter_element_t<T, W, Bias>>(b);
  static_assert(admits_parameter<T, decltype(weight), decltype(bias)>());
  arguments args("layer_norm_forward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.optional_in("w", weight, x.cols);
  args.optional_in("b", bias, x.cols);
  args.out("y", y, x.rows, x.cols);
  args.out("rstd", rstd, x.rows);
  args.out("mean", mean, x.rows);
  args.eps<accumulator_t<T>>(opt.eps);
  args.check();
  kernel_for<op::layer_norm, B>::template forward<B, T>(x, weight, bias, y, mean, rstd, opt, ctx);
}

/// dx, dw and db from dy and what forward left. See layer_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter DW, parameter DB>
void layer_norm_backward(in_matrix<T> dy, in_matrix<T> x, const W& w,
                         std::type_identity_t<saved_t<op::layer_norm, B, const accumulator_t<T>>> mean,
                         std::type_identity_t<saved_t<op::layer_norm, B, const accumulator_t<T>>> rstd,
                         const norm_gradients<T, DW, DB>& gradients, layer_norm_options opt = {},
                         context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, W, DW, DB>;
  const auto weight = as_in_vector<P>(w);
  const norm_gradients to{gradients.dx, as_out_vector<P>(gradients.dw), as_out_vector<P>(gradients.db)};
  static_assert(admits_parameter<T, decltype(weight), decltype(to.dw), decltype(to.db)>());
  arguments args("layer_norm_backward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.in("dy", dy, x.rows, x.cols);
  args.optional_in("w", weight, x.cols);
  args.in("mean", mean, x.rows);
  args.in("rstd", rstd, x.rows);
  args.out("dx", to.dx, x.rows, x.cols).may_be("dy", "x");
  args.optional_out("db", to.db, x.cols);
  args.optional_out("dw", to.dw, x.cols);
  args.check();
  ctx.workspace().expect("layer_norm_backward", layer_norm_workspace<B, T>(x.rows, x.cols, detail::trained(to)));
  kernel_for<op::layer_norm, B>::template backward<B, T>(dy, x, weight, mean, rstd, to, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_LAYER_NORM_HPP
