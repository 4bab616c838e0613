// The generic kernel of poly_norm.
#ifndef TIGON_OPS_NORM_POLY_NORM_KERNEL_HPP
#define TIGON_OPS_NORM_POLY_NORM_KERNEL_HPP

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
    const auto weight = numbers<A>(w.data);
    const A bias = static_cast<A>(b.data[0]);
    const detail::poly_norm_program<A> program{weight, bias, static_cast<A>(x.cols), static_cast<A>(opt.eps)};
    auto* const saved = reinterpret_cast<detail::of_powers<A>*>(rstd.data());
    reduce_map<B>(ctx, program, reads(x), writes(y), saves(saved));
    if (any_in_f64(saved, x.rows))
      kernel_for<op::poly_norm, B>::template forward_in_f64<B>(x, weight, bias, y, saved, opt.eps, ctx);
  }

  template <backend B, element T, element W, element P>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> rstd,
                       norm_gradients<T, vector_view<W>, vector_view<P>> gradients, poly_norm_options opt,
                       context& ctx) {
    const matrix_view<T> dx = gradients.dx;
    const vector_view<W> dw = gradients.dw;
    const vector_view<P> db = gradients.db;
    using A = accumulator_t<T>;
    const auto weight = numbers<A>(w.data);
    const auto* const saved = reinterpret_cast<const detail::of_powers<A>*>(rstd.data());
    const double eps = opt.eps;
    const bool all_in_f64 = x.cols <= narrow || x.rows * x.cols <= few;
    workspace::frame frame(ctx.workspace());
    const bool sums = dw || db;
    const matrix_view<double> by_row{sums ? frame.template take<double>(4 * x.rows) : nullptr, 4,
                                     x.rows};  // their terms
    const detail::poly_norm_gradient<A> program{weight, static_cast<A>(x.cols)};
    if (!all_in_f64 && sums)
      reduce_map<B>(ctx, program, reads(dy, x), of_rows(saved), writes(dx),
                    saves(by_row.row(0), by_row.row(1), by_row.row(2), by_row.row(3)));
    else if (!all_in_f64)
      reduce_map<B>(ctx, program, reads(dy, x), of_rows(saved), writes(dx));
    if (all_in_f64 || any_in_f64(saved, x.rows))
      kernel_for<op::poly_norm, B>::template backward_in_f64<B>(
          dy, x, dx, detail::poly_norm_in_f64<A>{weight, saved, by_row, all_in_f64, eps}, ctx);
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

  template <class A>
  static TIGON_INLINE bool holds(A rstd_3) {
    return detail::holds_sixth_powers(rstd_3);
  }
  template <class A, class W>
  static TIGON_INLINE detail::of_powers<A> numbers(const W* w) {
    return {static_cast<A>(w[0]), static_cast<A>(w[1]), static_cast<A>(w[2])};
  }
  template <class P>
  static TIGON_INLINE void put(vector_view<P> gradient, std::size_t k, double sum, bool accumulate) {
    using A = accumulator_t<P>;
    if (!gradient) return;
    gradient.data[k] = static_cast<P>(static_cast<A>(accumulate ? static_cast<A>(gradient.data[k]) + sum : sum));
  }

  template <class Row, class X>
  static TIGON_INLINE double largest(Row row, X x) {
    double most = 0;
    for (std::size_t j = 0; j < row.cols; ++j) most = math::max(math::abs(static_cast<double>(row.at(x, j))), most);
    return most;
  }
  /// A power of two, by which no row is multiplied so far that eps leaves the range.
  static TIGON_INLINE double scale_of(double most, double eps) {
    return detail::scale_to_one(math::max(math::sqrt(eps), most));
  }
  /// Whether there are rows of which A does not hold the sixth powers.
  template <class A>
  static bool any_in_f64(const detail::of_powers<A>* rstd, std::size_t rows) {
    bool all_in_range = true;
    for (std::size_t i = 0; i < rows; ++i) all_in_range &= holds(rstd[i][0]);
    return !all_in_range;
  }

  /// These rows, and their rstd.
  template <backend B, element T, class A>
  static void forward_in_f64(matrix_view<const T> x, detail::of_powers<A> w, A bias, matrix_view<T> y,
                             detail::of_powers<A>* rstd, double eps, context& ctx) {
    for_rows<B, A>(ctx, x.rows, x.cols, [=] TIGON_FN(auto row) {
      if (holds(rstd[row.i][0])) return;
      const auto r = forward_row_in_f64(row, x, w, bias, y, eps);
      if (row.first()) rstd[row.i] = r;
    });
  }
  /// dx of these rows, or of all, and the terms of dw and db.
  template <backend B, element T, class A>
  static void backward_in_f64(matrix_view<const T> dy, matrix_view<const T> x, matrix_view<T> dx,
                              detail::poly_norm_in_f64<A> of, context& ctx) {
    for_rows<B, double>(ctx, x.rows, x.cols, {.scratch = 2}, [=] TIGON_FN(auto row) {
      if (of.all || !holds(of.rstd[row.i][0]))
        backward_row_in_f64(row, row.i, dy, x, dx, row.scratch(0), row.scratch(1), of);
    });
  }

  // One row. Operands are matrices or what a backend has copied of their row.
  template <class Row, class X, class A, class Y>
  static TIGON_INLINE detail::of_powers<A> forward_row_in_f64(const Row& row, X x, detail::of_powers<A> w, A bias, Y y,
                                                              double eps) {
    const double p = scale_of(largest(row, x), eps);
    double s[3] = {};
    for (std::size_t j = 0; j < row.cols; ++j) {
      const double v = row.at(x, j) * p, t = v * v;
      s[0] += t * t * t, s[1] += t * t, s[2] += t;
    }
    const auto r = detail::rstd_of_scaled_powers(s[0], s[1], s[2], static_cast<double>(row.cols), eps, p);
    const detail::polynomial<double> f(w, r, bias);
    row.sync();  // y may be x, which all workers have read
    for (std::size_t j = 0; j < row.cols && row.first(); ++j)
      row.put(y, j, static_cast<A>(f(math::lane<double>(row.at(x, j) * p)).r));
    return detail::unscaled<A>(r, p);
  }

  /// i: number of the row, for its rstd and terms. It is multiplied by a power of two, by which rstd does not leave the
  /// range.
  template <class Row, class X, class A, class DX>
  static TIGON_INLINE void backward_row_in_f64(const Row& row, std::size_t i, X dy, X x, DX dx,
                                               vector_view<double> wide_dy, vector_view<double> wide_x,
                                               const detail::poly_norm_in_f64<A>& of) {
    const detail::of_powers<A> rstd = of.rstd[i];
    const double root = std::isnormal(rstd[2]) ? 1 / static_cast<double>(rstd[2]) : 0;
    const double p = detail::scale_to_one(math::max(root, largest(row, x)));
    for (std::size_t j = 0; j < row.cols && row.first(); ++j)
      wide_dy.data[j] = row.at(dy, j), wide_x.data[j] = row.at(x, j) * p;
    row.sync();  // all workers read what was copied, and write dx behind it
    const auto sums = [](auto d, auto v) {
      const auto t = v * v, dv = d * v;
      return pack{dv * t, d * t, dv, d, t * t * t, t * t, t, d * d};
    };
    const auto s = row.sum(reads(wide_dy, wide_x), sums);
    const double n = static_cast<double>(row.cols);
    const auto r = detail::saved_of_scaled_powers(rstd, {s[4], s[5], s[6]}, n, p);
    const auto share = [&](std::size_t k, double eps) {
      return s[k] * detail::correction_along_row<A>({s[7], s[k], s[4 + k]}, n, r[k], eps);
    };
    const double square = p * p, eps = of.eps * square;
    const detail::of_powers<double> shares{share(0, eps * square * square), share(1, eps * square), share(2, eps)};
    const auto terms = detail::terms_of_parameters(r, s);
    const std::size_t wanted = of.terms.data == nullptr ? 0 : of.all ? 4 : 3;
    for (std::size_t k = 0; k < wanted && row.first(); ++k) of.terms.row(k)[i] = terms[k];
    row.map(reads(cached{wide_dy}, wide_x), writes(wide_dy), detail::polynomial_slope<double>(of.w, r, shares, n));
    for (std::size_t j = 0; j < row.cols && row.first(); ++j) row.put(dx, j, static_cast<A>(wide_dy.data[j] * p));
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_NORM_POLY_NORM_KERNEL_HPP
