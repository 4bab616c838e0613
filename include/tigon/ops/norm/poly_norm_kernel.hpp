// The generic kernel of poly_norm.
#ifndef TIGON_OPS_NORM_POLY_NORM_KERNEL_HPP
#define TIGON_OPS_NORM_POLY_NORM_KERNEL_HPP

#include <tigon/backend/made_late.hpp>
#include <tigon/ops/norm/poly_norm_options.hpp>
#include <tigon/ops/norm/poly_norm_program.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

template <>
struct kernel<op::poly_norm, backends::generic> {
  template <class A>
  using saved = std::span<A>;  // rstd_3, rstd_2, rstd_1 of the first row, of the second, ...

  template <backend B, element T, element W, element P>
  static void forward(in_matrix<T> x, in_vector<W> w, in_vector<P> b, matrix_view<T> y,
                      std::span<accumulator_t<T>> rstd, poly_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const detail::poly_norm_at<A, W, P> parameters{w.data, b.data, static_cast<A>(x.cols), static_cast<A>(opt.eps)};
    auto* const saved = reinterpret_cast<detail::of_powers<A>*>(rstd.data());
    reduce_map<B>(ctx, detail::made_of<B>(parameters), reads(x), writes(y), saves(saved));
  }

  template <backend B, element T, element W, element P>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> rstd,
                       norm_gradients<T, vector_view<W>, vector_view<P>> gradients, poly_norm_options opt,
                       context& ctx) {
    const matrix_view<T> dx = gradients.dx;
    const vector_view<W> dw = gradients.dw;
    const vector_view<P> db = gradients.db;
    using A = accumulator_t<T>;
    const auto* const saved = reinterpret_cast<const detail::of_powers<A>*>(rstd.data());
    const bool all_in_f64 = x.cols <= narrow || x.rows * x.cols <= few;
    workspace::frame frame(ctx.workspace());
    const bool sums = dw || db;
    const matrix_view<double> by_row{sums ? frame.template take<double>(4 * x.rows) : nullptr, 4,
                                     x.rows};  // their terms
    const auto program = detail::made_of<B>(
        detail::poly_norm_gradient_at<A, W>{w.data, static_cast<A>(x.cols), static_cast<A>(opt.eps), all_in_f64});
    if (sums)
      reduce_map<B>(ctx, program, reads(dy, x), of_rows(saved), writes(dx),
                    saves(by_row.row(0), by_row.row(1), by_row.row(2), by_row.row(3)));
    else
      reduce_map<B>(ctx, program, reads(dy, x), of_rows(saved), writes(dx));
    if (!sums) return;
    const bool accumulate = opt.dparams == gradient::accumulate;
    for_rows<B, double>(ctx, 4, x.rows, [=] TIGON_FN(auto row) {
      const double sum = row.sum(reads(by_row), [](auto v) { return v; });
      if (row.first()) row.i < 3 ? put(dw, row.i, sum, accumulate) : put(db, 0, sum, accumulate);
    });
  }

  /// The terms of dx nearly cancel in a row of a few columns, those of dw and db anywhere. Where it costs little,
  /// f64 takes care of it.
  static constexpr std::size_t narrow = 8, few = std::size_t{1} << 15;

  template <class P>
  static TIGON_INLINE void put(vector_view<P> gradient, std::size_t k, double sum, bool accumulate) {
    using A = accumulator_t<P>;
    if (!gradient) return;
    gradient.data[k] = static_cast<P>(static_cast<A>(accumulate ? static_cast<A>(gradient.data[k]) + sum : sum));
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_NORM_POLY_NORM_KERNEL_HPP
