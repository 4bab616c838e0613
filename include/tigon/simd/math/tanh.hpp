// tanh, also of scaled arguments, and its slope.
//
// Every function states its largest error in units in the last place (ULP) of the result, as
//   f32 with FMA / f32 without; f64 with FMA / f64 without. Where it says so, relative to the result.
#ifndef TIGON_SIMD_MATH_TANH_HPP
#define TIGON_SIMD_MATH_TANH_HPP

#include <tigon/simd/math/exp_log.hpp>

#include <array>
#include <cmath>
#include <limits>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// tanh(x). Error: 2 / 2.1; 2.1 / 2.2.
template <class E, class A>
TIGON_INLINE vec<E, A> tanh(vec<E, A> x) {
  using V = vec<E, A>;
  // With t = e^(-2|x|) - 1: tanh|x| = -t / (2 + t), without cancellation anywhere.
  const V t = detail::expm1_nonpositive(V(A(-2)) * abs(x));
  return copysign(detail::quotient_of_sum(t, V(A(2)), t), x);
}

/// tanh(x) and 1 - |tanh(x)|, each to its last digits: the second is what tanh loses where it is near 1. It is 0 where
/// e^(-2 |x|) is below the smallest normal number. Error: 2 / 2.1; 2.1 / 2.2, of both.
template <class V>
struct tanh_pair {
  V tanh, rest;
  /// The derivative of tanh, 1 - tanh(x)^2.
  TIGON_INLINE V slope() const { return rest * (V(2) - rest); }
};
template <class E, class A>
TIGON_INLINE tanh_pair<vec<E, A>> tanh_with_rest(vec<E, A> x) {
  using V = vec<E, A>;
  const V y = V(A(-2)) * abs(x), two(A(2)), zero(A(0));
  const auto [power, t] = exp_below(y);
  const V e = select(y < V(detail::constants<A>::log_smallest), zero, power);
  return {copysign(detail::quotient_of_sum(t, two, t), x), detail::quotient_of_sum(e + e, two, t)};
}

/// tanh(alpha v) for many v, in f32 by fewer operations than tanh: u P(u^2) / Q(u^2) for u = unit alpha v, which
/// reaches 1 at alpha v = 9.01. Error: 5 ULP. The coefficients minimise the largest relative error; each is rounded and
/// the next ones make up for it. They leave 3.2e-8.
template <class A>
struct scaled_tanh {
  // With it P and Q both begin with their highest power itself: a sum is cheaper than a product.
  static constexpr double unit = sizeof(A) == 4 ? 0x1.1940f95f8b24dp-6 : 1;
  A scale;

  explicit TIGON_INLINE scaled_tanh(A alpha) : scale(static_cast<A>(unit * static_cast<double>(alpha))) {}

  template <class V>
  TIGON_INLINE V operator()(V v) const {
    const V u = v * V(scale);
    if constexpr (sizeof(A) == 8) {
      return tanh(u);
    } else {
      static constexpr A limit = static_cast<A>(9.01 * 9.01 * unit * unit);
      const std::array<A, 4> p{0x1.2f8b06p-21f, 0x1.0d31dep-12f, 0x1.74d146p-6f, 0x1.d2005ap-2f};
      const std::array<A, 4> q{0x1.4d7ca4p-27f, 0x1.022122p-16f, 0x1.7b0d76p-9f, 0x1.fe41a6p-4f};
      const V s = min(V(limit), u * u);
      const V ratio = quotient(detail::monic_polynomial(s, p), detail::monic_polynomial(s, q));
      return min(V(1), max(V(-1), u * ratio));
    }
  }
};

/// The same for results that are rounded to 8 bits and alpha of usual size: v (c + a / (v^2 + b) + d / (v^2 + e)), by
/// fewer operations than a quotient. No term is negative, so estimates of reciprocals serve. Error: 1.2e-4 of the
/// result, of which the coefficients leave 5e-5; 1 from |alpha v| = 4.96 on.
template <class V>
struct relaxed_tanh {
  using A = typename V::value_type;
  A limit, a, b, c, d, e;

  static bool serves(A alpha) { return std::abs(alpha) >= A(0x1p-20) && std::abs(alpha) <= A(0x1p20); }

  explicit relaxed_tanh(double alpha)
      : limit(static_cast<A>(4.96 / std::abs(alpha))),
        a(static_cast<A>(2.01709136 / alpha)),
        b(static_cast<A>(2.47696806 / (alpha * alpha))),
        d(static_cast<A>(4.18108052 / alpha)),
        e(static_cast<A>(31.3988564 / (alpha * alpha))) {
    // c is 0.05245 alpha, less what the estimates are off at the limit. Where no c makes 1 of it, the next number is
    // the limit; there is one well before 5.
    const auto at_limit = [&](A factor, A shift) {
      return static_cast<double>(factor) * max_lanes(inverse(V(limit), shift));
    };
    const double sign = std::copysign(1, alpha);
    do {
      c = static_cast<A>(sign / static_cast<double>(limit) - at_limit(a, b) - at_limit(d, e));
      if (max_lanes((*this)(V(limit))) == static_cast<A>(sign)) break;
      limit = std::nextafter(limit, std::numeric_limits<A>::infinity());
    } while (limit < static_cast<A>(5 / std::abs(alpha)));
  }

  static TIGON_INLINE V inverse(V clamped, A shift) {
    return detail::reciprocal_estimate(fma(clamped, clamped, V(shift)));
  }
  TIGON_INLINE V operator()(V v) const {
    const V clamped = min(V(limit), max(V(-limit), v));
    return clamped * fma(V(d), inverse(clamped, e), fma(V(a), inverse(clamped, b), V(c)));
  }
};

/// The factors of tanh(alpha v) and 1 - tanh(alpha v)^2: up * y and 4 q y^2 with q = e^(-2 |alpha v|), y = 1 / (1 + q)
/// and up = 1 - q with the sign of alpha v. q is 0 below the smallest normal number. Error of the two: 5 ULP. With Bits
/// = 8, for results that are rounded to so many bits, 1.1e-4 and 1.4e-4 of them, and 1.5e-8 of any tanh, which is
/// computed from q - 1.
template <std::size_t Bits, class A>
struct tanh_parts : times_log2e<A> {
  using c = detail::constants<A>;
  using times_log2e<A>::high, times_log2e<A>::low;  // q = 2^-((high + low) |v|)
  static constexpr bool full = Bits > 8;
  // In f64 2 alpha v is rounded first and tanh is made before its sum: kernels that have both agree to the last bits.
  static constexpr bool product_first = sizeof(A) == 8;
  A lowest, flip, twice;

  explicit TIGON_INLINE tanh_parts(A alpha)
      : times_log2e<A>(product_first ? 1 : 2 * std::abs(static_cast<double>(alpha))),
        lowest(-c::bias / high),
        flip(std::copysign(A(1), -alpha)),
        twice(2 * alpha) {}

  template <class V>
  struct result {
    V up, q, y;
  };
  template <class V>
  TIGON_INLINE result<V> operator()(V v) const {
    return rest(power(v), v);
  }

  // The long chain of operations, and what follows from its result.
  template <class V>
  TIGON_INLINE auto power(V v) const {
    if constexpr (product_first) v = v * V(twice);
    constexpr int parts = detail::exp2_parts<V, 16>;
    const V mark(A(-0.0)), magic(c::whole + parts * c::bias), minus = max(V(lowest), bit_or(v, mark));
    const V index = fma(minus, V(parts * high), magic);
    V f;
    if constexpr (full)
      f = fma(minus, V(parts * low), detail::fma_near(minus, V(parts * high), magic - index));
    else
      f = fma(minus, V(parts * high), magic - index);
    const V s = detail::exp2_field<parts>(index), sf = s * f, growth = growth_by<parts>(f), q = fma(growth, sf, s);
    if constexpr (full) {
      V base = s - V(1);
      if constexpr (parts == 16) base = base + detail::looked_up(lost, index);
      return pack{q, fma(growth, sf, base)};  // and q - 1, without cancellation
    } else {
      return pack{q};
    }
  }
  template <class V, std::size_t K>
  TIGON_INLINE result<V> rest(const pack<V, K>& p, V v) const {
    const V mark(A(-0.0)), q = p.v[0];
    if constexpr (full)
      return {bit_xor(p.v[1], bit_and(bit_xor(v, V(flip)), mark)), q, reciprocal(V(1) + q)};
    else
      return {bit_xor(fma(q, V(flip), V(-flip)), bit_and(v, mark)), q, detail::reciprocal_estimate(V(1) + q)};
  }

 private:
  // Half of what each of the sixteen roots of two lost when it was rounded: what q lost from 1/2 to 1, where it shows.
  // Below that too much is added, which is too little to show.
  alignas(64) static constexpr float lost[] = {+0x0.000000p-26f, +0x1.9f3122p-26f, -0x1.c15742p-28f, +0x1.ceac48p-26f,
                                               +0x1.4636e2p-26f, +0x1.824684p-26f, -0x1.593abcp-26f, -0x1.5bd5ecp-28f,
                                               +0x1.9fcef4p-27f, -0x1.829fd0p-26f, +0x1.15506ep-28f, +0x1.51f848p-28f,
                                               -0x1.a94b14p-27f, -0x1.3d56b2p-28f, -0x1.822dbcp-28f, +0x1.52486cp-28f};

  // (2^(f / Parts) - 1) / f for |f| <= 1/2; the error is 1.5e-8 of tanh and its slope, with 16 parts 1.1e-7 of a tanh
  // near 0 and 3e-9 of all else, in bf16 1.3e-5 and 4e-5. In pairs, because the length of the chain counts here.
  template <int Parts, class V>
  static TIGON_INLINE V growth_by(V f) {
    if constexpr (Parts == 16 && full) {
      return fma(fma(V(A(0x1.c6b29ap-17)), f, V(A(0x1.ebff92p-11))), f, V(A(0x1.62e43p-5)));
    } else if constexpr (Parts == 16) {
      return fma(V(A(0x1.ebfe56p-11)), f, V(A(0x1.62e7bep-5)));
    } else if constexpr (sizeof(A) == 8) {
      return detail::polynomial(f, c::exp2_q24());
    } else if constexpr (full) {
      const V upper = fma(fma(V(A(0x1.3de7ep-13)), f, V(A(0x1.5f09c4p-10))), f * f,
                          fma(V(A(0x1.3b3326p-7)), f, V(A(0x1.c6af74p-5))));
      return fma(upper, f * f, fma(V(A(0x1.ebfbd4p-3)), f, V(A(0x1.62e43p-1))));
    } else {
      return fma(fma(V(A(0x1.35256ap-7)), f, V(A(0x1.c9641ep-5))), f * f,
                 fma(V(A(0x1.ec1404p-3)), f, V(A(0x1.62e34cp-1))));
    }
  }
};

/// tanh(u) and 1 - tanh(u)^2 for twice u. Error: 5 ULP.
template <class V>
TIGON_INLINE std::array<V, 2> tanh_and_slope(V twice) {
  using A = typename V::value_type;
  const tanh_parts<53, A> parts(A(0.5));
  const auto [up, q, y] = parts(twice);
  const V y2 = y + y;
  return {up * y, y2 * y2 * q};
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_MATH_TANH_HPP
