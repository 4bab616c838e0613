// PolyNorm over the last axis, forward and backward.
#ifndef TIGON_OPS_POLY_NORM_HPP
#define TIGON_OPS_POLY_NORM_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/row_scale.hpp>
#include <tigon/rows/gradients.hpp>

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

namespace detail {
inline namespace TIGON_ABI {

/// Three numbers of a row: of the cube, the square and the row itself.
template <class A>
using of_powers = std::array<A, 3>;

template <class A>
TIGON_INLINE of_powers<A> rstd_of_powers(A cube, A square, A linear, A n, A eps) {
  return {math::rsqrt(cube / n + eps), math::rsqrt(square / n + eps), math::rsqrt(linear / n + eps)};
}
/// The same of a row that was multiplied by p.
TIGON_INLINE of_powers<double> rstd_of_scaled_powers(double cube, double square, double linear, double n, double eps,
                                                     double p) {
  const double of_linear = eps * p * p, of_square = of_linear * p * p, of_cube = of_square * p * p;
  return {math::rsqrt(cube / n + of_cube), math::rsqrt(square / n + of_square), math::rsqrt(linear / n + of_linear)};
}
/// And as the row itself has them.
template <class A>
TIGON_INLINE of_powers<A> unscaled(of_powers<double> r, double p) {
  return {static_cast<A>(r[0] * p * p * p), static_cast<A>(r[1] * p * p), static_cast<A>(r[2] * p)};
}

/// y of one element.
template <class A>
struct polynomial {
  A a3, a2, a1, b;

  template <class W>
  TIGON_INLINE polynomial(of_powers<W> w, of_powers<A> r, W bias)
      : a3(w[0] * r[0]), a2(w[1] * r[1]), a1(w[2] * r[2]), b(bias) {}
  template <class V>
  TIGON_INLINE V operator()(V v) const {
    return fma(v * v, fma(v, V(a3), V(a2)), fma(v, V(a1), V(b)));
  }
};

/// dx of one element, from the sums S_p of its row: dy (c3 x^2 + c2 x + c1) - x (g3 x^4 + g2 x^2 + g1).
template <class A>
struct polynomial_slope {
  A c3, c2, c1, g3, g2, g1;

  template <class W>
  TIGON_INLINE polynomial_slope(of_powers<W> w, of_powers<A> r, of_powers<A> s, A n)
      : c3(A(3) * w[0] * r[0]),
        c2(A(2) * w[1] * r[1]),
        c1(w[2] * r[2]),
        g3(c3 * (r[0] * s[0] / n) * r[0]),
        g2(c2 * (r[1] * s[1] / n) * r[1]),
        g1(c1 * (r[2] * s[2] / n) * r[2]) {}
  template <class V>
  TIGON_INLINE V operator()(V d, V v) const {
    const V t = v * v;
    return fnma(v, fma(t, fma(t, V(g3), V(g2)), V(g1)), d * fma(t, V(c3), fma(v, V(c2), V(c1))));
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::poly_norm, backends::generic> {
  template <class A>
  using saved = std::span<A>;  // rstd_3, rstd_2, rstd_1 of the first row, of the second, ...

  template <backend B, element T, element W, element P>
  static void forward(in_matrix<T> x, in_vector<W> w, in_vector<P> b, matrix_view<T> y,
                      std::span<accumulator_t<T>> rstd, poly_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const auto weight = numbers<A>(w.data);
    const A bias = static_cast<A>(b.data[0]), eps = static_cast<A>(opt.eps);
    const double wide_eps = opt.eps;
    A* saved = rstd.data();
    for_rows<B, A>(ctx, x.rows, x.cols, [=] TIGON_FN(auto row) {
      const auto powers = [](auto v) {
        const auto t = v * v;
        return pack{t * t * t, t * t, t};
      };
      const auto s = row.sum(reads(read_again(x)), powers);
      auto r = detail::rstd_of_powers(s[0], s[1], s[2], static_cast<A>(row.cols), eps);
      const bool held = holds(r[0]);
      if (!held) r = forward_in_f64(row, x, weight, bias, y, wide_eps);
      if (row.first()) saved[3 * row.i] = r[0], saved[3 * row.i + 1] = r[1], saved[3 * row.i + 2] = r[2];
      if (held) row.map(reads(x), writes(y), detail::polynomial<A>(weight, r, bias));
    });
  }

  template <backend B, element T, element W, element P>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> rstd,
                       matrix_view<T> dx, vector_view<W> dw, vector_view<P> db, poly_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const auto weight = numbers<A>(w.data);
    const A* saved = rstd.data();
    const A n = static_cast<A>(x.cols);
    const double eps = opt.eps;
    const bool all_in_f64 = x.cols <= narrow || x.rows * x.cols <= small;
    workspace::frame frame(ctx.workspace());
    const matrix_view<double> by_row{frame.template take<double>(4 * x.rows), 4, x.rows};  // terms of dw and db
    for_rows_with_scratch<B, double>(ctx, x.rows, x.cols, 2, [=] TIGON_FN(auto row) {
      if (all_in_f64 || !holds(saved[3 * row.i])) backward_in_f64(row, dy, x, weight, dx, by_row, eps);
    });
    const auto sums = [](auto d, auto v) {
      const auto dv = d * v;
      return pack{dv * v * v, dv * v, dv, d};
    };
    const auto program = [=] TIGON_FN(auto row, std::array<A, 4> s) {
      const auto r = numbers<A>(saved + 3 * row.i);
      if (!holds(r[0])) {                              // dx is there; this map is for the sums of the rows that follow
        if (row.first()) by_row.row(3)[row.i] = s[3];  // as in every row, whatever x is
        return row.map(reads(dx), writes(dx), [](auto v) { return v; });
      }
      put_terms(row, by_row, r, s);
      row.map(reads(dy, x), writes(dx), detail::polynomial_slope<A>(weight, r, {s[0], s[1], s[2]}, n));
    };
    if (!all_in_f64)
      for_rows_with_partials<B, A>(ctx, x.rows, x.cols, row_sum([=](std::size_t) { return sums; }, dy, x), program);
    const bool accumulate = opt.dparams == gradient::accumulate;
    for_rows<B, double>(ctx, 4, x.rows, [=] TIGON_FN(auto row) {
      const double sum = row.sum(reads(by_row), [](auto v) { return v; });
      if (row.first()) row.i < 3 ? put(dw, row.i, sum, accumulate) : put(db, 0, sum, accumulate);
    });
  }

  /// The terms of dx nearly cancel in a row of a few columns, those of dw and db anywhere. Where it costs little,
  /// f64 takes care of it.
  static constexpr std::size_t narrow = 8, small = std::size_t{1} << 15;

  /// Whether sums hold sixth powers of the size of this row, and what backward makes of their inverses.
  static TIGON_INLINE bool holds(float r3) { return r3 >= 0x1p-60f && r3 <= 0x1p60f; }
  static TIGON_INLINE bool holds(double r3) { return r3 >= 0x1p-400 && r3 <= 0x1p400; }

  template <class A, class W>
  static TIGON_INLINE detail::of_powers<A> numbers(const W* w) {
    return {static_cast<A>(w[0]), static_cast<A>(w[1]), static_cast<A>(w[2])};
  }
  template <class Row, class A, std::size_t N>
  static TIGON_INLINE void put_terms(Row row, matrix_view<double> by_row, detail::of_powers<A> r, std::array<A, N> s) {
    if (!row.first()) return;
    for (std::size_t k = 0; k < 3; ++k) by_row.row(k)[row.i] = static_cast<double>(r[k]) * static_cast<double>(s[k]);
    by_row.row(3)[row.i] = s[3];
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
  template <class Row, element T, class A>
  static TIGON_INLINE detail::of_powers<A> forward_in_f64(Row row, matrix_view<const T> x, detail::of_powers<A> w,
                                                          A bias, matrix_view<T> y, double eps) {
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

  template <class Row, element T, class A>
  static TIGON_INLINE void backward_in_f64(Row row, matrix_view<const T> dy, matrix_view<const T> x,
                                           detail::of_powers<A> w, matrix_view<T> dx, matrix_view<double> by_row,
                                           double eps) {
    const auto wide_dy = row.scratch(0), wide_x = row.scratch(1);
    const double p = scale_of(largest(row, x), eps);
    for (std::size_t j = 0; j < row.cols; ++j) wide_dy.data[j] = row.at(dy, j), wide_x.data[j] = row.at(x, j) * p;
    const auto sums = [](auto d, auto v) {
      const auto t = v * v, dv = d * v;
      return pack{dv * t, d * t, dv, d, t * t * t, t * t, t};
    };
    const auto s = row.sum(reads(wide_dy, wide_x), sums);
    const double n = static_cast<double>(row.cols);
    const auto r = detail::rstd_of_scaled_powers(s[4], s[5], s[6], n, eps, p);
    put_terms(row, by_row, r, s);
    row.map(reads(wide_dy, wide_x), writes(wide_dy), detail::polynomial_slope<double>(w, r, {s[0], s[1], s[2]}, n));
    for (std::size_t j = 0; j < row.cols; ++j) row.put(dx, j, static_cast<A>(wide_dy.data[j] * p));
  }
};

/// Bytes of workspace that poly_norm_backward takes.
template <class B = default_backend, class T>
std::size_t poly_norm_workspace(std::size_t rows, std::size_t cols, const context& ctx = default_context()) {
  return workspace::bytes_for<double>(4, rows) + std::max(simd::scratch_workspace<B, double>(cols, 2, ctx),
                                                          simd::partials_workspace<B, accumulator_t<T>>(rows, cols, 0));
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
