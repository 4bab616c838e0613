// exp and log.
//
// Every function states its largest error in units in the last place (ULP) of the result, as
//   f32 with FMA / f32 without; f64 with FMA / f64 without.
#ifndef TIGON_SIMD_MATH_EXP_LOG_HPP
#define TIGON_SIMD_MATH_EXP_LOG_HPP

#include <tigon/simd/math/arithmetic.hpp>
#include <tigon/simd/math/polynomial.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// The fractions of 2^(k / 32) for k = 0 to 31, each less the bits of k in the uppermost five places: what is added to
// an exponent that is followed by k.
alignas(64) inline constexpr auto roots_less_index = [] {
  std::array<std::uint32_t, 32> bits{0x000000u, 0x02cd87u, 0x05aac3u, 0x08980fu, 0x0b95c2u, 0x0ea43au, 0x11c3d3u,
                                     0x14f4f0u, 0x1837f0u, 0x1b8d3au, 0x1ef532u, 0x227043u, 0x25fed7u, 0x29a15bu,
                                     0x2d583fu, 0x3123f6u, 0x3504f3u, 0x38fbafu, 0x3d08a4u, 0x412c4du, 0x45672au,
                                     0x49b9beu, 0x4e248cu, 0x52a81eu, 0x5744fdu, 0x5bfbb8u, 0x60ccdfu, 0x65b907u,
                                     0x6ac0c7u, 0x6fe4bau, 0x75257du, 0x7a83b3u};
  for (std::uint32_t k = 0; k < 32; ++k) bits[k] -= k << 18;
  return std::bit_cast<std::array<float, 32>>(bits);
}();

// An engine with exponentials of its own.
template <class L>
concept has_exp = requires(typename L::reg x) {
  L::exp(x);
  L::exp_rough(x);
};

// Parts into which exp2_field divides a power of two: where roots of two come from a table, a short polynomial is left.
template <class V, int Roots = 32>
inline constexpr int exp2_parts = looks_up<V> ? Roots : 1;

// The number of roots_less_index that is selected by the last bits of t, in Parts parts.
template <int Parts, class V>
  requires looks_up<V>
TIGON_INLINE V fraction_less_index(V t) {
  static_assert(Parts == 16 || Parts == 32);
  if constexpr (Parts == 16) {
    alignas(64) static constexpr auto roots = []<std::size_t... I>(std::index_sequence<I...>) {
      return std::array<float, 16>{roots_less_index[2 * I]...};
    }(std::make_index_sequence<16>());
    return looked_up(roots, t);
  } else {
    using L = typename V::lanes;
    const auto lower = L::raw(L::load(roots_less_index.data())), upper = L::raw(L::load(roots_less_index.data() + 16));
    return V::from(L::from_raw(x86::lookup(lower, upper, L::raw(t.r))));
  }
}

// 2^(n / Parts) for t = n + Parts bias + whole, -bias < n / Parts < bias + 1: the last bits of t are shifted into the
// exponent. 0 for n = -Parts bias; between the two not accurate, but less than the smallest normal number.
template <int Parts = 1, class V>
TIGON_INLINE V exp2_field(V t) {
  using c = constants<typename V::value_type>;
  if constexpr (Parts == 1) {
    return t.template shl<c::fraction>();
  } else {
    using L = typename V::lanes;
    const V exponent_and_index = t.template shl<c::fraction - std::bit_width(Parts - 1u)>();
    return V::from(L::from_raw(x86::add_bits(L::raw(exponent_and_index.r), L::raw(fraction_less_index<Parts>(t).r))));
  }
}

// x = n ln(2) + r, |r| <= ln(2) / 2; t = n + offset + whole.
template <class V>
struct reduced {
  V t, n, r;
};
template <class V, class A = typename V::value_type>
TIGON_INLINE reduced<V> reduce(V x, A offset) {
  using c = constants<A>;
  const V magic(c::whole + offset);
  const V t = fma(x, V(c::log2e), magic);
  const V n = t - magic;
  const V r = fma(n, V(-c::ln2_lo), fma(n, V(-c::ln2_hi), x));
  return {t, n, r};
}

// e^r for a reduced argument.
template <class V>
TIGON_INLINE V exp_reduced(V r) {
  const V one(1);
  return fma(fma(polynomial(r, constants<typename V::value_type>::exp_q()), r, one), r, one);
}

}  // namespace detail

/// v * 2^n, rounded once, for whole n with |n| <= 250 (f32), 2000 (f64) and |v| in [2^-60, 2^60], 0, infinite or NaN.
template <class E, class A>
TIGON_INLINE vec<E, A> scale(vec<E, A> v, vec<E, A> n) {
  using V = vec<E, A>;
#if defined(TIGON_X86)
  using L = typename V::lanes;
  if constexpr (detail::raw_scale<L>)
    return V::from(L::from_raw(x86::scale(L::raw(v.r), L::raw(n.r))));
  else
#endif
  {
    // Two factors, because one exponent field reaches neither the subnormals nor beyond the largest number. The first
    // product is exact.
    using c = detail::constants<A>;
    const V magic(c::whole + c::bias);
    const V half = fma(n, V(A(0.5)), magic);
    const V rest = (n - (half - magic)) + magic;
    return v * detail::exp2_field(half) * detail::exp2_field(rest);
  }
}

/// e^x. Error: 0.93 / 1.2; 0.95 / 1.25.
template <class E, class A>
TIGON_INLINE vec<E, A> exp(vec<E, A> x) {
  using V = vec<E, A>;
  using c = detail::constants<A>;
  if constexpr (detail::has_exp<typename V::lanes>) return V::from(V::lanes::exp(x.r));
#if defined(TIGON_X86)
  using L = typename V::lanes;
  if constexpr (detail::raw_parts<L>) {
    // Where x is far outside, n is far outside, infinite or NaN, and scalef does the right thing with any positive e^r.
    auto [t, n, r] = detail::reduce(x, A(0));
    r = V::from(L::from_raw(x86::clamp_magnitude(L::raw(r.r), L::raw(V(A(1)).r))));
    return scale(detail::exp_reduced(r), n);
  } else
#endif
  {
    x = min(V(c::exp_highest), max(V(c::exp_lowest), x));
    const auto [t, n, r] = detail::reduce(x, A(0));
    return scale(detail::exp_reduced(r), n);
  }
}

/// e^x for x <= 64, such as x - max: without AVX-512 a quarter faster than exp. Error: 0.93 / 1.2; 0.95 / 1.25. With
/// Bits = 11 or 8, for f32 results that are rounded to so many bits, 5e-6 and 8e-5 of the result for x >= -40.
template <std::size_t Bits = 53, class E, class A>
TIGON_INLINE vec<E, A> exp_nonpositive(vec<E, A> x) {
  using V = vec<E, A>;
  using c = detail::constants<A>;
#if defined(TIGON_X86)
  constexpr bool scales = detail::raw_scale<typename V::lanes>;
#else
  constexpr bool scales = false;
#endif
  constexpr bool full = sizeof(A) == 8 || Bits >= 24;
  if constexpr (!full && detail::has_exp<typename V::lanes>) {
    return V::from(V::lanes::exp_rough(x.r));
  } else if constexpr (full && (scales || detail::has_exp<typename V::lanes>)) {
    return exp(x);
  } else {
    // n + subnormal fits the exponent field for all n that can occur; the last product rounds.
    const V y = max(V(c::exp_lowest), x);
    const auto [t, n, r] = detail::reduce(y, scales ? A(0) : c::bias + c::subnormal);
    V m;
    if constexpr (full)
      m = detail::exp_reduced(r);
    else if constexpr (Bits > 8)
      m = detail::polynomial_of_minus(fnma(y, V(c::log2e), n), c::exp2_q11());
    else
      m = detail::polynomial_of_minus(fnma(y, V(c::log2e), n), c::exp2_q8());
    if constexpr (scales)
      return scale(m, n);
    else
      return m * detail::exp2_field(t) * V(c::down);
  }
}

/// e^s, of s <= 0 if Safe, by fewer operations where lanes fuse products and scale by powers of two: error 3e-7 of the
/// result for |s| <= 40, 4e-7 beyond. Unless Safe, it is infinite or NaN where s is below -1e14, finite or not: a sum
/// tells.
template <bool Safe, class V>
TIGON_INLINE V exp_of_distance(V s) {
  using A = typename V::value_type;
  if constexpr (sizeof(A) == 4 && detail::raw_scale<typename V::lanes>) {
    using c = detail::constants<A>;
    if constexpr (Safe) s = max(V(-c::gate_shift - c::bias), s);  // e^s rounds to 0 there
    const V magic(c::whole), one(A(1));
    const V n = fma(s, V(c::log2e), magic) - magic;
    const V r = fma(n, V(-(c::ln2_hi + c::ln2_lo)), s);
    return scale(fma(fma(detail::polynomial(r, c::gate_q24()), r, one), r, one), n);
  } else if constexpr (Safe) {
    return exp_nonpositive(s);
  } else {
    return exp(s);
  }
}

/// e^x - 1. Error: 1.32 / 1.35; 1.8 / 1.8.
template <class E, class A>
TIGON_INLINE vec<E, A> expm1(vec<E, A> x) {
  using V = vec<E, A>;
  using c = detail::constants<A>;
  const V half(A(0.5));
  // s = 2^(n - 1), because 2^n would overflow before the result does.
  const auto [t, n, r] = detail::reduce(min(V(c::exp_highest), max(V(c::expm1_lowest), x)), c::bias - A(1));
  const V s = detail::exp2_field(t);
  // The large terms first: s r + (s - 1/2) is exact for n = 1, where they cancel, and nearly so elsewhere.
  const V y = fma(s, r * r * detail::polynomial(r, c::exp_q()), fma(s, r, s - half));
  return select(abs(x) < V(c::tiny), x, y + y);
}

namespace detail {

// x = 2^e (1 + f), f in [-1/4, 1/2).
template <class V>
struct parts {
  V e, f;
};
template <class V>
TIGON_INLINE parts<V> split(V x) {
  using A = typename V::value_type;
  using c = constants<A>;
#if defined(TIGON_X86)
  using L = typename V::lanes;
  if constexpr (raw_parts<L>) {
    // 0 and infinity have f = 0 and e infinite, negative numbers and NaN have f NaN: their logarithms come out right.
    const V m = V::from(L::from_raw(x86::mantissa(L::raw(x.r))));
    const V e = V::from(L::from_raw(x86::exponent(L::raw(x.r)))) - V::from(L::from_raw(x86::exponent(L::raw(m.r))));
    return {e, m - V(A(1))};
  } else
#endif
      if constexpr (requires { V::lanes::split(x.r); }) {
    const auto [e, f] = V::lanes::split(x.r);
    return {V::from(e), V::from(f)};
  } else {
    const auto subnormal_x = x < V(std::numeric_limits<A>::min());
    x = select(subnormal_x, x * V(c::up), x);
    // The exponent field, read as the last bits of 2^23 or 2^52.
    const V field = bit_or(x.template shr<c::fraction>(), V(c::implicit));
    const V e = field - select(subnormal_x, V(c::implicit + c::bias + c::subnormal), V(c::implicit + c::bias));
    const V m = bit_or(bit_and(x, V(c::fraction_mask)), V(A(1)));
    const auto large = m >= V(A(1.5));
    return {select(large, e + V(A(1)), e), select(large, m * V(A(0.5)), m) - V(A(1))};
  }
}

// e ln(2) + log(1 + f).
template <class V>
TIGON_INLINE V log_of_parts(V e, V f) {
  using A = typename V::value_type;
  using c = constants<A>;
  if constexpr (sizeof(A) == 4) {
    const V tail = fma(f * f, polynomial(f, c::log_l()), e * V(c::ln2_lo));
    return fma(e, V(c::ln2_hi), f + tail);
  } else {
    const V s = f / (V(A(2)) + f);
    const V z = s * s;
    const V half_square = V(A(0.5)) * f * f;
    const V tail = fma(s, fma(polynomial(z, c::log_l()), z, half_square), e * V(c::ln2_lo));
    return fma(e, V(c::ln2_hi), f - (half_square - tail));
  }
}

// The logarithm y of u where u is 0, infinite, negative or NaN, unless the parts took care of it.
template <class V>
TIGON_INLINE V log_at_edges(V y, V u) {
#if defined(TIGON_X86)
  if constexpr (raw_parts<typename V::lanes>) return y;
#endif
  using limits = std::numeric_limits<typename V::value_type>;
  const V zero(0), infinity(limits::infinity());
  const V at_edge = select(u < zero, V(limits::quiet_NaN()), select(u == zero, V(-limits::infinity()), u));
  return select(u > zero && u < infinity, y, at_edge);
}

}  // namespace detail

/// log(x). Error: 0.93 / 0.95; 0.85 / 0.85.
template <class E, class A>
TIGON_INLINE vec<E, A> log(vec<E, A> x) {
  const auto [e, f] = detail::split(x);
  return detail::log_at_edges(detail::log_of_parts(e, f), x);
}

/// log(1 + x). Error: 0.93 / 1; 0.9 / 0.9.
template <class E, class A>
TIGON_INLINE vec<E, A> log1p(vec<E, A> x) {
  using V = vec<E, A>;
  using c = detail::constants<A>;
  const V one(A(1));
  const V u = one + x;
  const V lost = min(one, x) - (u - max(one, x));  // what u lost: exact, because the larger addend comes first
  const auto [e, f] = detail::split(u);
  // Beyond 2^60 nothing of it is left; at u = 0 e is -infinity or arbitrary, and lost is 0.
  const V down = min(V(A(60)), max(V(A(-60)), e));
  const V back = detail::exp2_field(V(c::whole + c::bias) - down);
  const V y = detail::log_at_edges(detail::log_of_parts(e, fma(lost, back, f)), u);
  return select(abs(x) >= V(c::tiny) && x < V(std::numeric_limits<A>::infinity()), y, x);
}

namespace detail {

// 1 + x q(x), for x = -y, by the constants of e^-y for results of so many bits.
template <std::size_t Bits, class V, class A = typename V::value_type>
TIGON_INLINE V exp_of_minus(V y) {
  const auto horner = [y]<std::size_t N>(const std::array<A, N>& c) TIGON_LAMBDA {
    const V one(A(1));
    return fnma(fnma(polynomial_of_minus(y, c), y, one), y, one);
  };
  if constexpr (sizeof(A) == 8)
    return horner(constants<A>::exp_q());
  else if constexpr (Bits == 24)
    return horner(constants<A>::gate_q24());
  else if constexpr (Bits == 11)
    return horner(constants<A>::gate_q11());
  else
    return horner(constants<A>::gate_q8());
}

// 2^((n + f) / 32), |f| <= 1/2, for results of so many bits; power = n + 32 bias + whole.
template <std::size_t Bits, class V>
  requires looks_up<V>
TIGON_INLINE V exp2_by_roots(V power, V f) {
  using c = constants<typename V::value_type>;
  const V s = exp2_field<32>(power), sf = s * f;
  if constexpr (Bits == 8)
    return fma(sf, V(c::root_q8), s);
  else
    return fma(sf, fma(f, V(c::root_q24()[1]), V(c::root_q24()[0])), s);
}

// 2^((n + f) / exp2_parts), |f| <= 1/2; power = n + exp2_parts bias + whole. Error: 2e-7.
template <class V>
TIGON_INLINE V exp2_of_parts(V power, V f) {
  if constexpr (looks_up<V>) {
    return exp2_by_roots<24>(power, f);
  } else {
    const V s = exp2_field(power);
    return fma(polynomial(f, constants<typename V::value_type>::exp2_q24()), s * f, s);
  }
}

}  // namespace detail

/// factor * log2(e) in two parts, for exponents of base two.
template <class A>
struct times_log2e {
  A high, low;

  explicit TIGON_INLINE times_log2e(double factor) {
    constexpr double log2e = std::numbers::log2e, rest = 0x1.777d0ffda0d24p-56;
    high = static_cast<A>(factor * log2e);
    low = static_cast<A>(std::fma(factor, log2e, -static_cast<double>(high)) + factor * rest);
  }
};

namespace detail {

// e^y - 1 for y <= 0. Nothing cancels: where s is not 1, s - 1 is more than twice as large as the rest.
template <class V>
TIGON_INLINE V expm1_nonpositive(V y) {
  using A = typename V::value_type;
  using c = constants<A>;
  const auto [t, n, r] = reduce(max(V(c::expm1_lowest), y), c::bias);
  const V s = exp2_field(t);
  return fma(s, fma(r * r, polynomial(r, c::exp_q()), r), s - V(1));
}

}  // namespace detail

/// e^t and e^t - 1 for t below 69; e^t is nowhere below the smallest normal number.
template <class V>
struct exp_pair {
  V exp, less_one;
};
template <class V>
TIGON_INLINE exp_pair<V> exp_below(V t) {
  using A = typename V::value_type;
  using c = detail::constants<A>;
  const auto [power, n, r] = detail::reduce(max(V(c::log_smallest), t), c::bias);
  const V s = detail::exp2_field(power), q = fma(r * r, detail::polynomial(r, c::exp_q()), r);
  return {fma(s, q, s), fma(s, q, s - V(A(1)))};
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_MATH_EXP_LOG_HPP
