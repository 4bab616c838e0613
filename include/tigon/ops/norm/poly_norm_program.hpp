// PolyNorm of a row, forward and backward, as structs of reduce, finish and map (rows/reduce_map.hpp).
#ifndef TIGON_OPS_NORM_POLY_NORM_PROGRAM_HPP
#define TIGON_OPS_NORM_POLY_NORM_PROGRAM_HPP

#include <tigon/ops/norm/row_scale.hpp>

#include <array>
#include <type_traits>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Three numbers of a row: of the cube, the square and the row itself.
template <class A>
using of_powers = std::array<A, 3>;

/// Of a row that was multiplied by p, a power of two, from its sums of sixth, fourth and second powers.
template <class A>
TIGON_INLINE of_powers<A> rstd_of_powers(of_powers<A> sums, A n, A eps, A p = A(1)) {
  const A of_linear = eps * p * p, of_square = of_linear * p * p, of_cube = of_square * p * p;
  return {math::rsqrt(sums[0] / n + of_cube), math::rsqrt(sums[1] / n + of_square),
          math::rsqrt(sums[2] / n + of_linear)};
}
/// The same, of what forward saved for the row itself. What A does not hold is made again: there eps is nothing beside
/// the sixth power.
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

template <class V>
TIGON_INLINE pack<V, 3> sixth_fourth_and_second_power(V x) {
  const V t = x * x;
  return {{t * t * t, t * t, t}};
}

/// The scale p of a row: found of its first sums in f64, and 1 in A. Only numbers of f64 have to be scaled.
template <class A, bool InF64>
struct scale_of_powers {};
template <class A>
struct scale_of_powers<A, true> {
  struct state {
    double p = 1;
    bool measured = sizeof(A) < 8;
  };

 protected:
  /// p of a row with this mean square; not so large that eps leaves the range. True if the row has to be reduced again.
  static TIGON_INLINE bool rescale(state& s, double square, double eps) {
    using range = square_range<double>;
    const bool in_range = square >= range::least && square <= range::most;
    if (s.measured || (s.p != 1 && !(square <= range::most))) return false;
    s.measured = in_range || s.p != 1;
    const double size = math::max(math::sqrt(eps) * s.p, math::sqrt(square));
    s.p *= !s.measured ? (square < range::least ? range::up : range::down) : size == 0 ? 1 : scale_in_f64(1 / size);
    return true;
  }
};

/// rstd_p = rsqrt(mean x^2p + eps),   y = sum_p w_p x^p rstd_p + b            p = 3, 2, 1
/// Rows that A does not hold are computed in f64, of p x for x, a power of two.
template <class A, bool InF64 = false>
struct poly_norm_program : scale_of_powers<A, InF64> {
  of_powers<A> w;
  A bias, cols, eps;

  using number = std::conditional_t<InF64, double, A>;
  struct row {
    of_powers<number> rstd;
    polynomial<number> y;
    number p;
  };
  TIGON_INLINE poly_norm_program(of_powers<A> weights, A b, A n, A e) : w(weights), bias(b), cols(n), eps(e) {}

  template <class V>
  TIGON_INLINE pack<V, 3> reduce(V x) const {
    return sixth_fourth_and_second_power(x);
  }
  template <class State, class V>
  TIGON_INLINE pack<V, 3> reduce(State s, V x) const {
    return reduce(x * s.p);
  }
  template <class State>
  TIGON_INLINE bool again(State& s, of_powers<number> sums) const {
    return this->rescale(s, sums[2] / cols, eps);
  }
  TIGON_INLINE row finish(of_powers<number> sums) const
    requires(!InF64)
  {
    return of_scaled(sums, 1);
  }
  template <class State>
  TIGON_INLINE row finish(State s, of_powers<number> sums) const {
    return of_scaled(sums, s.p);
  }
  TIGON_INLINE of_powers<A> save(row of) const {
    if constexpr (InF64)
      return unscaled<A>(of.rstd, of.p);
    else
      return of.rstd;
  }
  TIGON_INLINE auto in_f64(const row& of) const
    requires(!InF64)
  {
    return in_f64_if(!holds_sixth_powers(of.rstd[0]), poly_norm_program<A, true>(w, bias, cols, eps));
  }
  template <class V>
  TIGON_INLINE V map(row of, V x) const {
    if constexpr (InF64)
      return of.y(x * of.p);
    else
      return of.y(x);
  }

 private:
  TIGON_INLINE row of_scaled(of_powers<number> sums, number p) const {
    const of_powers<number> rstd = rstd_of_powers<number>(sums, cols, eps, p);
    return {rstd, polynomial<number>(w, rstd, bias), p};
  }
};

/// S_p = sum_j dy x^p,   dx = sum_p w_p p x^(p-1) rstd_p (dy - rstd_p^2 S_p / cols x^p)
/// Saves the row's terms of dw_p, rstd_p S_p, and of db, sum_j dy. Rows that A does not hold, or all, are computed in
/// f64, of p x for x, a power of two.
template <class A, bool InF64 = false>
struct poly_norm_gradient {
  of_powers<A> w;
  A cols, eps;
  bool all;  ///< all rows in f64

  using number = std::conditional_t<InF64, double, A>;
  struct row {
    of_powers<number> rstd;
    std::array<number, 4> sums;
    polynomial_slope<number> dx;
    number p;
    bool held;
  };
  template <class V>
  TIGON_INLINE auto reduce(of_powers<A> saved, V dy, V x) const {
    if constexpr (InF64) {
      const V v = x * scale_in_f64(saved[2]);
      return simd::joined(simd::joined(products(dy, v), sixth_fourth_and_second_power(v)), pack<V, 1>{{dy * dy}});
    } else {
      return products(dy, x);
    }
  }
  template <std::size_t N>
  TIGON_INLINE row finish(std::array<number, N> s, of_powers<A> saved) const {
    const bool held = !all && holds_sixth_powers(saved[0]);
    of_powers<number> rstd, shares{s[0], s[1], s[2]};
    number p = 1;
    if constexpr (InF64) {
      p = scale_in_f64(saved[2]);
      const number n = cols, square = p * p, of_row = eps * square;
      const of_powers<number> of_power{of_row * square * square, of_row * square, of_row};
      rstd = saved_of_scaled_powers(saved, {s[4], s[5], s[6]}, n, p);
      for (std::size_t k = 0; k < 3; ++k)
        shares[k] *= correction_along_row<A>({s[7], s[k], s[4 + k]}, n, rstd[k], of_power[k]);
    } else {
      rstd = saved;
    }
    return {rstd, {s[0], s[1], s[2], s[3]}, polynomial_slope<number>(w, rstd, shares, number(cols)), p, held};
  }
  TIGON_INLINE auto save(const row& of) const { return terms_of_parameters(of.rstd, of.sums); }
  TIGON_INLINE auto in_f64(const row& of) const
    requires(!InF64)
  {
    return in_f64_if(!of.held, poly_norm_gradient<A, true>{w, cols, eps, all});
  }
  template <class V>
  TIGON_INLINE V map(row of, V dy, V x) const {
    if constexpr (InF64)
      return of.dx(dy, x * of.p) * of.p;
    else
      return of.dx(dy, x);
  }

 private:
  template <class V>
  static TIGON_INLINE pack<V, 4> products(V dy, V x) {
    const V t = dy * x;
    return {{t * x * x, t * x, t, dy}};
  }
};

// These programs, of parameters in memory.

template <class A, class W>
TIGON_INLINE of_powers<A> powers_at(const W* w) {
  return {static_cast<A>(w[0]), static_cast<A>(w[1]), static_cast<A>(w[2])};
}
template <class A, class W, class P>
struct poly_norm_at {
  const W* w;
  const P* b;
  A cols, eps;

  TIGON_INLINE poly_norm_program<A> program() const { return {powers_at<A>(w), static_cast<A>(*b), cols, eps}; }
};
template <class A, class W>
struct poly_norm_gradient_at {
  const W* w;
  A cols, eps;
  bool all_in_f64;

  TIGON_INLINE poly_norm_gradient<A> program() const { return {powers_at<A>(w), cols, eps, all_in_f64}; }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_NORM_POLY_NORM_PROGRAM_HPP
