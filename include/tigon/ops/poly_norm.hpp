// PolyNorm over the last axis, forward and backward.
#ifndef TIGON_OPS_POLY_NORM_HPP
#define TIGON_OPS_POLY_NORM_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/poly_norm_program.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

namespace op {
struct poly_norm {
  static constexpr std::string_view name = "poly_norm";
};
}  // namespace op

/// The normalised powers of a row, mixed. Numbers with a p exist for p = 3, 2, 1, in this order.
///
///   rstd_p[i] = 1 / sqrt(mean_j x[i,j]^(2p) + eps)
///   y         = sum_p w_p x^p rstd_p + b
///   S_p[i]    = sum_j dy x^p,   h_p = rstd_p S_p / cols
///   dx        = sum_p w_p p x^(p-1) rstd_p (dy - h_p rstd_p x^p)
///   dw_p      = sum_i rstd_p S_p,   db = sum_ij dy
///
/// Formula    docs/formulas/poly_norm.md; Zhuo et al., "Polynomial Composition Activations", 2024.
/// Shapes     x, y, dy, dx [rows, cols]; w, dw [3], the weight of the cube first; b, db [1]; rstd [3 rows], three
///            numbers a row. Gradients of parameters may be `absent`. cols >= 1, rows may be 0.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; w and dw any of them, b and db any of them (f64 only with f64).
/// Precision  f32 (f64 for f64), y, dx, dw and db are rounded once; f64 for rows that f32 does not hold, and in
///            backward for narrow rows and small problems.
/// Writes     y, rstd, dx; dw and db are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: dx may be dy or x. forward: y may not be x, which backward needs. Otherwise any layout in which
///            no element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative or NaN), workspace; before the first write.
/// Range      x of any size that its type holds.
/// Edges      NaN makes its row of y and dx NaN. An infinity turns into NaN in y, where the rest of its row is b, and
///            makes its row of dx NaN. Either makes dw NaN.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square; gradients 2e-6, 4e-3, those of parameters
///            of |reference| + the root sum of squares of what it is the sum of (tests/ops/poly_norm_test.cpp).
struct poly_norm_options {
  double eps = 1e-6;  ///< inside the square roots
  gradient dparams = gradient::overwrite;
};

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
                       matrix_view<T> dx, vector_view<W> dw, vector_view<P> db, poly_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const auto weight = numbers<A>(w.data);
    const auto* const saved = reinterpret_cast<const detail::of_powers<A>*>(rstd.data());
    const double eps = opt.eps;
    const bool all_in_f64 = x.cols <= narrow || x.rows * x.cols <= small;
    workspace::frame frame(ctx.workspace());
    const matrix_view<double> by_row{frame.template take<double>(4 * x.rows), 4, x.rows};  // terms of dw and db
    if (!all_in_f64)
      reduce_map<B>(ctx, detail::poly_norm_gradient<A>{weight, static_cast<A>(x.cols)}, reads(dy, x), of_rows(saved),
                    writes(dx), saves(by_row.row(0), by_row.row(1), by_row.row(2), by_row.row(3)));
    if (all_in_f64 || any_in_f64(saved, x.rows))
      kernel_for<op::poly_norm, B>::template backward_in_f64<B>(dy, x, weight, saved, dx, by_row, all_in_f64, eps, ctx);
    const bool accumulate = opt.dparams == gradient::accumulate;
    for_rows<B, double>(ctx, 4, x.rows, [=] TIGON_FN(auto row) {
      const double sum = row.sum(reads(by_row), [](auto v) { return v; });
      if (row.first()) row.i < 3 ? put(dw, row.i, sum, accumulate) : put(db, 0, sum, accumulate);
    });
  }

  /// The terms of dx nearly cancel in a row of a few columns, those of dw and db anywhere. Where it costs little,
  /// f64 takes care of it.
  static constexpr std::size_t narrow = 8, small = std::size_t{1} << 15;

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
    bool all_held = true;
    for (std::size_t i = 0; i < rows; ++i) all_held &= holds(rstd[i][0]);
    return !all_held;
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
  static void backward_in_f64(matrix_view<const T> dy, matrix_view<const T> x, detail::of_powers<A> w,
                              const detail::of_powers<A>* rstd, matrix_view<T> dx, matrix_view<double> by_row, bool all,
                              double eps, context& ctx) {
    for_rows_with_scratch<B, double>(ctx, x.rows, x.cols, 2, [=] TIGON_FN(auto row) {
      if (all || !holds(rstd[row.i][0]))
        backward_row_in_f64(row, dy, x, w, dx, row.scratch(0), row.scratch(1), by_row, row.i, all, eps);
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
    for (std::size_t j = 0; j < row.cols && row.first(); ++j)
      row.put(y, j, static_cast<A>(f(math::lane<double>(row.at(x, j) * p)).r));
    return detail::unscaled<A>(r, p);
  }

  /// The row's term of db is made here only `with_db`: in f32 it has the same bits whatever x is.
  template <class Row, class X, class A, class DX>
  static TIGON_INLINE void backward_row_in_f64(const Row& row, X dy, X x, detail::of_powers<A> w, DX dx,
                                               vector_view<double> wide_dy, vector_view<double> wide_x,
                                               matrix_view<double> by_row, std::size_t i, bool with_db, double eps) {
    const double p = scale_of(largest(row, x), eps);
    for (std::size_t j = 0; j < row.cols; ++j) wide_dy.data[j] = row.at(dy, j), wide_x.data[j] = row.at(x, j) * p;
    const auto sums = [](auto d, auto v) {
      const auto t = v * v, dv = d * v;
      return pack{dv * t, d * t, dv, d, t * t * t, t * t, t};
    };
    const auto s = row.sum(reads(wide_dy, wide_x), sums);
    const double n = static_cast<double>(row.cols);
    const auto r = detail::rstd_of_scaled_powers(s[4], s[5], s[6], n, eps, p);
    const auto terms = detail::terms_of_parameters(r, s);
    for (std::size_t k = 0; k < (with_db ? 4 : 3) && row.first(); ++k) by_row.row(k)[i] = terms[k];
    row.map(reads(wide_dy, wide_x), writes(wide_dy), detail::polynomial_slope<double>(w, r, {s[0], s[1], s[2]}, n));
    for (std::size_t j = 0; j < row.cols; ++j) row.put(dx, j, static_cast<A>(wide_dy.data[j] * p));
  }
};

/// Bytes of workspace that poly_norm_backward takes.
template <class B = default_backend, class T>
std::size_t poly_norm_workspace(std::size_t rows, std::size_t cols, const context& ctx = default_context()) {
  return workspace::bytes_for<double>(4, rows) + simd::scratch_workspace<B, double>(cols, 2, ctx);
}

/// y and rstd from x, w and b. See poly_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter Bias>
void poly_norm_forward(in_matrix<T> x, const W& w, const Bias& b, matrix_view<T> y,
                       std::type_identity_t<saved_t<op::poly_norm, B, accumulator_t<T>>> rstd,
                       poly_norm_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(w);
  const auto bias = as_in_vector<T>(b);
  static_assert(admits_parameter<T, decltype(weight)>() && admits_parameter<T, decltype(bias)>());
  arguments args("poly_norm_forward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.in("w", weight, 3);
  args.in("b", bias, 1);
  args.out("y", y, x.rows, x.cols);
  args.out("rstd", rstd, 3 * x.rows);
  args.eps(opt.eps);
  args.check();
  kernel_for<op::poly_norm, B>::template forward<B, T>(x, weight, bias, y, rstd, opt, ctx);
}

/// dx, dw and db from dy and what forward left. See poly_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter DW, parameter DB>
void poly_norm_backward(in_matrix<T> dy, in_matrix<T> x, const W& w,
                        std::type_identity_t<saved_t<op::poly_norm, B, const accumulator_t<T>>> rstd, matrix_view<T> dx,
                        DW&& dw, DB&& db, poly_norm_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, W, DW>;
  const auto weight = as_in_vector<P>(w);
  const auto dweight = as_out_vector<P>(dw);
  const auto dbias = as_out_vector<T>(db);
  static_assert(admits_parameter<T, decltype(weight), decltype(dweight)>() && admits_parameter<T, decltype(dbias)>());
  arguments args("poly_norm_backward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.in("dy", dy, x.rows, x.cols);
  args.in("w", weight, 3);
  args.in("rstd", rstd, 3 * x.rows);
  args.out("dx", dx, x.rows, x.cols).may_be("dy", "x");
  args.optional_out("db", dbias, 1);
  args.optional_out("dw", dweight, 3);
  args.eps(opt.eps);
  args.check();
  ctx.workspace().expect("poly_norm_backward", poly_norm_workspace<B, T>(x.rows, x.cols, ctx));
  kernel_for<op::poly_norm, B>::template backward<B, T>(dy, x, weight, rstd, dx, dweight, dbias, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_POLY_NORM_HPP
