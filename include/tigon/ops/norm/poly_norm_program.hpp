// PolyNorm of a row, forward and backward, as structs of reduce, finish and map (rows/reduce_map.hpp).
#ifndef TIGON_OPS_NORM_POLY_NORM_PROGRAM_HPP
#define TIGON_OPS_NORM_POLY_NORM_PROGRAM_HPP

#include <tigon/ops/norm/row_scale.hpp>

#include <array>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Three numbers of a row: of the cube, the square and the row itself.
template <class A>
using of_powers = std::array<A, 3>;

template <class A>
TIGON_INLINE of_powers<A> rstd_of_powers(A cube, A square, A linear, A n, A eps) {
  return {math::rsqrt(cube / n + eps), math::rsqrt(square / n + eps), math::rsqrt(linear / n + eps)};
}
/// What the gradient in f64 needs beside matrices.
template <class A>
struct poly_norm_in_f64 {
  of_powers<A> w;
  const of_powers<A>* rstd;   ///< as forward saved them
  matrix_view<double> terms;  ///< of dw_3, dw_2, dw_1 and db: [4, rows]
  bool all;                   ///< all rows, and their terms of db, which in f32 have the same bits whatever x is
  double eps;
};

/// The same of a row that was multiplied by p.
TIGON_INLINE of_powers<double> rstd_of_scaled_powers(double cube, double square, double linear, double n, double eps,
                                                     double p) {
  const double of_linear = eps * p * p, of_square = of_linear * p * p, of_cube = of_square * p * p;
  return {math::rsqrt(cube / n + of_cube), math::rsqrt(square / n + of_square), math::rsqrt(linear / n + of_linear)};
}
/// The same, of what forward saved for the row itself. What A does not hold is made again: there eps is nothing beside the
/// sixth power.
template <class A>
TIGON_INLINE of_powers<double> saved_of_scaled_powers(of_powers<A> rstd, of_powers<double> sums, double n, double p) {
  const auto of = [=](std::size_t k, double scale) {
    const bool held = std::isnormal(rstd[k]) || std::isnan(rstd[k]);
    return held ? static_cast<double>(rstd[k]) / scale : math::rsqrt(sums[k] / n);
  };
  return {of(0, p * p * p), of(1, p * p), of(2, p)};
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

  polynomial() = default;
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

  polynomial_slope() = default;
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

/// What a row adds to dw_3, dw_2, dw_1 and db, given S_3, S_2, S_1, sum_j dy, ...
template <class A, std::size_t N>
TIGON_INLINE auto terms_of_parameters(of_powers<A> rstd, const std::array<A, N>& sums) {
  const auto term = [&](std::size_t p)
                        TIGON_LAMBDA { return static_cast<double>(rstd[p]) * static_cast<double>(sums[p]); };
  return std::array{term(0), term(1), term(2), static_cast<double>(sums[3])};
}

/// Whether sums in A are in range for sixth powers of a row with this rstd_3, and for the inverses in backward.
template <class A>
TIGON_INLINE bool holds_sixth_powers(A rstd_3) {
  constexpr A extreme = sizeof(A) == 8 ? A(0x1p400) : A(0x1p60);
  return rstd_3 >= A(1) / extreme && rstd_3 <= extreme;
}

/// rstd_p = rsqrt(mean x^2p + eps),   y = sum_p w_p x^p rstd_p + b            p = 3, 2, 1
/// Rows that A does not hold are skipped, but for their rstd_p.
template <class A>
struct poly_norm_program {
  of_powers<A> w;
  A bias, cols, eps;

  struct row {
    of_powers<A> rstd;
    polynomial<A> y;
  };
  template <class V>
  TIGON_INLINE pack<V, 3> reduce(V x) const {
    const V t = x * x;
    return {{t * t * t, t * t, t}};
  }
  TIGON_INLINE row finish(of_powers<A> sums) const {
    const auto rstd = rstd_of_powers(sums[0], sums[1], sums[2], cols, eps);
    return {rstd, polynomial<A>(w, rstd, bias)};
  }
  TIGON_INLINE of_powers<A> save(row of) const { return of.rstd; }
  TIGON_INLINE bool skips(row of) const { return !holds_sixth_powers(of.rstd[0]); }
  template <class V>
  TIGON_INLINE V map(row of, V x) const {
    return of.y(x);
  }
};

/// S_p = sum_j dy x^p,   dx = sum_p w_p p x^(p-1) rstd_p (dy - rstd_p^2 S_p / cols x^p)
/// Saves the row's terms of dw_p, rstd_p S_p, and of db, sum_j dy. Rows that A does not hold are skipped, but for these.
template <class A>
struct poly_norm_gradient {
  of_powers<A> w;
  A cols;

  struct row {
    of_powers<A> rstd;
    std::array<A, 4> sums;
    polynomial_slope<A> dx;
  };
  template <class V>
  TIGON_INLINE pack<V, 4> reduce(V dy, V x) const {
    const V t = dy * x;
    return {{t * x * x, t * x, t, dy}};
  }
  TIGON_INLINE row finish(std::array<A, 4> s, of_powers<A> rstd) const {
    return {rstd, s, polynomial_slope<A>(w, rstd, {s[0], s[1], s[2]}, cols)};
  }
  TIGON_INLINE auto save(row of) const { return terms_of_parameters(of.rstd, of.sums); }
  TIGON_INLINE bool skips(row of) const { return !holds_sixth_powers(of.rstd[0]); }
  template <class V>
  TIGON_INLINE V map(row of, V dy, V x) const {
    return of.dx(dy, x);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_NORM_POLY_NORM_PROGRAM_HPP
