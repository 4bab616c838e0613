// Divergences of two distributions, one element at a time, from log Q (student) and log P (teacher).
//
//   // jensen_shannon, its form for 1/2, or a plain KL at 0 and 1
//   simd::with_divergence<A>(beta, [&](auto divergence) {
//     row.sum(reads(x, y), [=](auto log_q, auto log_p) { return divergence(log_q, log_p).value; });
//   });
//
// Each gives divergence_terms for vectors of any engine, also of one lane (math::lane). The textbook forms subtract
// numbers that are nearly equal where Q is near P. Here every value is made of
//   Phi(w, t) = w (e^t - 1 - t) >= 0,
// which a polynomial in t gives where t is small. Each states its largest error relative to the exact number, element
// by element; f32, f64.
#ifndef TIGON_SIMD_MATH_DIVERGENCE_HPP
#define TIGON_SIMD_MATH_DIVERGENCE_HPP

#include <tigon/simd/math/exp_log.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// What one element contributes. For two rows that are log-softmaxes, x of z / T and y,
///   divergence     r = sum_j value,   K = -sum_j qc
///   dr / dz_j      = -weight / T * (qc_j + q_j K)          weight: a member of the divergence
/// K is a divergence itself, sum_j Phi(Q, c_j), and 0 for forward_kl, where both rows sum to 1. With the sum of qc the
/// gradient sums to 0 however the logarithms were rounded: most of the error of a log-sum cancels in it.
/// Where one column has most of Q, K nearly cancels its c. There a row is computed with that c as `shift`, for which
///   qc = q (c - shift),   K = -sum_j qc
/// give the same gradient without the cancellation.
template <class V>
struct divergence_terms {
  V value;  ///< at least 0
  V q;      ///< e^(log q), 0 below the smallest normal number; error 2e-7, 4e-16 (5e-16 of even_jensen_shannon)
  V qc;     ///< q * c, 0 where q is: c = log M - log q; log p - log q for reverse_kl; p / q - 1 for forward_kl
  V c;      ///< what a shift is taken from; 0 for forward_kl, whose K is 0
};

template <class A>
struct divergence_constants;
template <>
struct divergence_constants<float> {
  // e^t = 1 + t + t^2 p(t) for |t| <= 1, interpolated at Chebyshev's nodes; 1.7e-8 of t^2 p(t).
  static constexpr auto phi() {
    return std::array{0x1p-1f,         0x1.555556p-3f, 0x1.55557ap-5f,  0x1.11111ep-7f,
                      0x1.6bff52p-10f, 0x1.a009p-13f,  0x1.a971fcp-16f, 0x1.78a70ep-19f};
  }
  // log(1 + v) = 2 s + s z l(z), s = v / (2 + v), z = s^2 <= 1/9; 1.3e-8.
  static constexpr auto log_l() { return std::array{0x1.55554cp-1f, 0x1.99ad88p-2f, 0x1.212158p-2f, 0x1.130d2ep-2f}; }
  // Of even_jensen_shannon, value / (M d^2) as a polynomial in d^2 for d^2 <= 1; 3.8e-9.
  static constexpr auto even() {
    return std::array{0x1p-3f, -0x1.fffff4p-7f, 0x1.c7183ep-10f, -0x1.824672p-13f, 0x1.396feep-16f, -0x1.8bb064p-20f};
  }
};
template <>
struct divergence_constants<double> {
  // 3.1e-17.
  static constexpr auto phi() {
    return std::array{0x1p-1,
                      0x1.5555555555555p-3,
                      0x1.5555555555502p-5,
                      0x1.11111111110fdp-7,
                      0x1.6c16c16c212c0p-10,
                      0x1.a01a01a01ee70p-13,
                      0x1.a01a01907b7eep-16,
                      0x1.71de3a4e14f40p-19,
                      0x1.27e5069de9344p-22,
                      0x1.ae6460fae3728p-26,
                      0x1.1ee5640e638a2p-29,
                      0x1.611cb330c1fe8p-33,
                      0x1.99848a67700e4p-37,
                      0x1.b41232cf9950fp-41};
  }
  // 7.2e-18.
  static constexpr auto log_l() {
    return std::array{0x1.5555555555555p-1, 0x1.999999999a408p-2, 0x1.24924923d1849p-2, 0x1.c71c7273754d1p-3,
                      0x1.745cf0428754dp-3, 0x1.3b18beac0f172p-3, 0x1.10abafb7ca841p-3, 0x1.eb9f157c92001p-4,
                      0x1.682f50de31b35p-4, 0x1.4b59bebabf454p-3};
  }
  // 7.8e-18.
  static constexpr auto even() {
    return std::array{0x1p-3,
                      -0x1.ffffffffffffdp-7,
                      0x1.c71c71c71c35ep-10,
                      -0x1.82d82d82b51ebp-13,
                      0x1.427a8e04a90e9p-16,
                      -0x1.0a3a59afbc229p-19,
                      0x1.b531f7aa9d77fp-23,
                      -0x1.65c0d5697e1d3p-26,
                      0x1.23bc88b29aae8p-29,
                      -0x1.d51c6dea64683p-33,
                      0x1.5af7187fd2b0fp-36,
                      -0x1.5ec2ba62590b1p-40};
  }
};

/// e^x for x <= 88; 0 where that is below the smallest normal number, because products with subnormal numbers are slow.
template <class V>
TIGON_INLINE V probability(V x) {
  using A = typename V::value_type;
  if constexpr (requires { V::lanes::exp_nonpositive(x.r); })
    return V::from(V::lanes::exp_nonpositive(x.r));
  else
    return select(x < V(detail::constants<A>::log_smallest), V(A(0)), exp(x));
}

/// -infinity becomes the lowest finite number, so that a difference of two logarithms is one.
template <class V>
TIGON_INLINE V finite_log(V x) {
  using A = typename V::value_type;
  return max(V(std::numeric_limits<A>::lowest()), x);
}

/// p (log p - log q), 0 where p is 0: one term of KL(P || Q) in this form, for rows that need not sum to 1. A fused
/// product, so that no compiler fuses it with a sum in one loop and not in another. Error: 3e-7, 6e-16.
template <class V>
TIGON_INLINE V plain_kl(V p, V log_p, V log_q) {
  const V zero(typename V::value_type(0));
  return fma(p, finite_log(log_p) - select(p == zero, finite_log(log_q), log_q), zero);
}

/// log(of) - y, of = 2^e (1 + f): log(of) is e ln 2 + log(1 + f), and y is subtracted from its large part, which is
/// exact: at log(of) near y nothing is lost.
template <class V>
TIGON_INLINE V log_minus(V of, V y) {
  using A = typename V::value_type;
  using c = detail::constants<A>;
  const auto [e, f] = detail::split(of);
  const V low_part = detail::log_of_parts(V(A(0)), f) + e * V(c::ln2_lo);
  return fma(e, V(c::ln2_hi), -y) + low_part;
}

/// w (e^t - 1 - t) for |t| <= 1.
template <class V>
TIGON_INLINE V bregman_near(V w, V t) {
  return w * (t * t) * detail::polynomial(t, divergence_constants<typename V::value_type>::phi());
}

/// The same for any t, where m = w e^t is known. Nothing cancels beyond |t| = 1.
template <class V>
TIGON_INLINE V bregman(V w, V m, V t) {
  return select(abs(t) <= V(typename V::value_type(1)), bregman_near(w, t), (m - w) - w * t);
}

/// log(1 + v), and v - log(1 + v) without cancellation, for -1/2 <= v <= 1.
template <class V>
struct log1p_pair {
  V log, rest;
};
template <class V>
TIGON_INLINE log1p_pair<V> log1p_near(V v) {
  using A = typename V::value_type;
  const V s = quotient(v, V(A(2)) + v), z = s * s;
  const V l = z * detail::polynomial(z, divergence_constants<A>::log_l());
  return {fma(s, l, s + s), s * (v - l)};  // v - 2 s = v s
}

/// beta KL(P || M) + (1 - beta) KL(Q || M), M = beta P + (1 - beta) Q, 0 < beta < 1:
///   value = beta Phi(P, a) + (1 - beta) Phi(Q, c) = -beta P a - (1 - beta) Q c,   a = log M - log p, c = log M - log q
/// the first form where |log p - log q| <= 1, the other, which cancels there, elsewhere. With the lighter weight w on
/// L and 1 - w on H, t = log L - log H:
///   log M - log H = log1p(w expm1(t)),   log M - log L = that - t          while w expm1(t) <= 1
///   log M - log L = log w + log1p(e^-t (1 - w) / w),   log M - log H = that + t         beyond
/// so that one exponential and one logarithm give both to their last bits, and Phi of H with them. A weight below 1e-30
/// counts as that. Error: value 2e-6, 4e-15; qc 1.5e-6, 3e-15 (tests/losses/divergence_test.cpp).
template <class A>
struct jensen_shannon {
  A weight;                  ///< 1 - beta
  A light, heavy;            ///< w = the smaller of beta and 1 - beta, and the other
  A log_light, odds, limit;  ///< log w, log((1 - w) / w); log(1 + 1 / w), where w expm1(t) is 1
  bool swapped;              ///< Q has the lighter weight

  explicit jensen_shannon(double beta) : swapped(beta > 0.5) {
    const double w = std::max(swapped ? 1 - beta : beta, 1e-30);
    weight = static_cast<A>(1 - beta), light = static_cast<A>(w), heavy = static_cast<A>(1 - w);
    log_light = static_cast<A>(std::log(w)), odds = static_cast<A>(std::log1p(-w) - std::log(w));
    limit = static_cast<A>(std::log1p(1 / w));
  }

  template <class V>
  TIGON_INLINE divergence_terms<V> operator()(V log_q, V log_p, A shift = 0) const {
    const V one(A(1)), w(light), log_w(log_light);
    const auto swap = V(A(swapped ? 1 : 0)) > V(A(0));
    const V log_l = finite_log(select(swap, log_q, log_p)), log_h = finite_log(select(swap, log_p, log_q));
    const V l = probability(log_l), h = probability(log_h), t = log_l - log_h;
    const auto close = t <= V(limit);
    const V e = exp_below(select(close, t, V(odds) - t)).less_one;
    const auto [g, rest] = log1p_near(select(close, w * e, one + e));
    const V of_l = select(close, g - t, log_w + g), of_h = select(close, g, (log_w + t) + g);
    const V phi_l = bregman_near(l, of_l), phi_h = h * rest, l_of_l = l * of_l, h_of_h = h * of_h;
    const V value = select(abs(t) <= one, w * phi_l + V(heavy) * phi_h, -(w * l_of_l) - V(heavy) * h_of_h);
    const V q = select(swap, l, h), c = select(swap, of_l, of_h);
    return {value, q, q * (c - V(shift)), c};
  }
};

/// The value of even_jensen_shannon from M and z = d^2, for z <= 1: M times a polynomial in z.
template <class V>
TIGON_INLINE V even_value_near(V m, V z) {
  return m * z * detail::polynomial(z, divergence_constants<typename V::value_type>::even());
}

/// jensen_shannon at beta = 1/2, which is the same with P and Q exchanged: with H the larger of the two, L the smaller,
/// d = log H - log L,
///   L = H e^-d,   M = H (1 + (e^-d - 1) / 2),   log M - log H = log1p((e^-d - 1) / 2),   log M - log L = that + d
///   value = M (u atanh(u) + log1p(-u^2) / 2), u = tanh(d / 2)    a polynomial in d^2 where d <= 1
///         = -M (log M - log H) - L d / 2                         elsewhere
/// by two exponentials and a logarithm of small numbers. Error: value 1e-6, 2e-15; qc 5e-7, 1e-15.
template <class A>
struct even_jensen_shannon {
  static constexpr A weight = A(0.5);

  template <class V>
  TIGON_INLINE divergence_terms<V> operator()(V log_q, V log_p, A shift = 0) const {
    const V one(A(1)), half(A(0.5)), a = finite_log(log_q), b = finite_log(log_p);
    const V d = abs(a - b), log_h = max(a, b), log_l = min(a, b);
    const auto [fall, less_one] = exp_below(-d);
    const V h = probability(log_h), v = half * less_one, z = d * d, near_l = h * fall;
    // What d was rounded by shows in e^-d where d is large.
    const V by = (d + log_l) - log_h;
    const V l = select(log_l < V(detail::constants<A>::log_smallest), V(A(0)), fma(near_l, by, near_l));
    const V to_h = log1p_near(v).log, to_l = to_h + d, m = fma(h, v, h);
    const V value = select(d <= one, even_value_near(m, z), -(fma(m, to_h, half * l * d)));
    const auto q_is_l = a < b;
    const V q = select(q_is_l, l, h), c = select(q_is_l, to_l, to_h);
    return {value, q, q * (c - V(shift)), c};
  }
};

/// KL(P || Q): value = Phi(P, log q - log p), which adds up to it where both rows sum to 1. Infinite where q alone is
/// 0. Error: value 1e-6, 2e-15; qc 5e-7, 1e-15.
template <class A>
struct forward_kl {
  static constexpr A weight = 1;

  template <class V>
  TIGON_INLINE divergence_terms<V> operator()(V log_q, V log_p, A = 0) const {
    using limits = std::numeric_limits<A>;
    const V q = probability(log_q), p = probability(log_p);
    const V t = finite_log(log_q) - finite_log(log_p);
    const V value = bregman(p, q, t);
    const auto lost = log_q < V(limits::lowest()) && p > V(A(0));
    // q - p = p t + Phi(p, t).
    return {select(lost, V(limits::infinity()), value), q, select(abs(t) <= V(A(1)), -(p * t + value), p - q), V(A(0))};
  }
};

/// KL(Q || P): value = Phi(Q, log p - log q), which adds up to it where both rows sum to 1. Infinite where p
/// alone is 0. Error: value 1e-6, 2e-15; qc 5e-7, 1e-15.
template <class A>
struct reverse_kl {
  static constexpr A weight = 1;

  template <class V>
  TIGON_INLINE divergence_terms<V> operator()(V log_q, V log_p, A shift = 0) const {
    using limits = std::numeric_limits<A>;
    const V q = probability(log_q), p = probability(log_p);
    const V t = finite_log(log_p) - finite_log(log_q);
    const auto lost = log_p < V(limits::lowest()) && q > V(A(0));
    const V infinity(limits::infinity()), value = select(lost, infinity, bregman(q, p, t));
    return {value, q, select(lost, -infinity, q * (t - V(shift))), t};
  }
};

/// f(divergence) for 0 < beta < 1.
template <class A, class F>
void with_jensen_shannon(double beta, F f) {
  if (beta == 0.5)
    f(even_jensen_shannon<A>{});
  else
    f(jensen_shannon<A>(beta));
}

/// f(divergence) with the one for beta: forward_kl at 0, reverse_kl at 1, which are not limits of what lies between.
template <class A, class F>
void with_divergence(double beta, F f) {
  if (beta == 0)
    f(forward_kl<A>{});
  else if (beta == 1)
    f(reverse_kl<A>{});
  else
    with_jensen_shannon<A>(beta, f);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_MATH_DIVERGENCE_HPP
