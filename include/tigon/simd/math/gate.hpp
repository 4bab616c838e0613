// sigmoid, and the gates of which sigmoid is a factor.
//
// Every function states its largest error in units in the last place (ULP) of the result, as
//   f32 with FMA / f32 without; f64 with FMA / f64 without.
#ifndef TIGON_SIMD_MATH_GATE_HPP
#define TIGON_SIMD_MATH_GATE_HPP

#include <tigon/simd/math/exp_log.hpp>

#include <numbers>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// sigmoid(x) and sigmoid(-x).
template <class V>
struct sigmoids {
  V of_x, of_minus_x;
};
/// Both from one exp, small values as accurate as large ones. Error: 2 / 2.05; 1.9 / 1.95.
template <class E, class A>
TIGON_INLINE sigmoids<vec<E, A>> sigmoid_both(vec<E, A> x) {
  using V = vec<E, A>;
  const V one(A(1));
  const V q = exp_nonpositive(bit_or(x, V(A(-0.0))));
  const V greater = detail::quotient_of_sum(one, one, q);
  const V lesser = q * greater;
  const auto negative = x < V(A(0));
  return {select(negative, lesser, greater), select(negative, greater, lesser)};
}

/// 1 / (1 + e^-x). Error: 2 / 2.05; 1.9 / 1.95.
template <class E, class A>
TIGON_INLINE vec<E, A> sigmoid(vec<E, A> x) {
  return sigmoid_both(x).of_x;
}

/// Between these numbers gate_sigmoid is defined; below the lower one x sigmoid(x) rounds to 0.
template <class A>
inline constexpr A gate_lowest = detail::constants<A>::gate_lowest;
template <class A>
inline constexpr A gate_highest = detail::constants<A>::gate_highest;

/// The factors of a gate: unit * inverse is sigmoid(x), rest * inverse is sigmoid(-x), for gate_lowest <= x <=
/// gate_highest or NaN. Errors as those of gate_sigmoid.
template <class V>
struct gate_parts {
  using A = typename V::value_type;
  static constexpr A unit = detail::constants<A>::gate_one;
  V inverse, rest;
};

namespace detail {

// power for an exponent of 0 in gate_of_parts.
template <class V, class A = typename V::value_type>
inline constexpr A gate_magic = constants<A>::whole + exp2_parts<V> * (constants<A>::bias - constants<A>::gate_shift);

// log2(e) less the same in f32.
inline constexpr float log2e_low = static_cast<float>(std::numbers::log2e - constants<float>::log2e);

// For e^-x, scaled by gate_one.
template <bool Full, class V>
TIGON_INLINE gate_parts<V> gate_of_rest(V rest) {
  const V sum = rest + V(constants<typename V::value_type>::gate_one);
  if constexpr (Full)
    return {reciprocal(sum), rest};
  else
    return {reciprocal_estimate(sum), rest};
}

// For e^-x = 2^((n + f) / exp2_parts), |f| <= 1/2; power = n + gate_magic.
template <std::size_t Bits, class V, class A = typename V::value_type>
TIGON_INLINE gate_parts<V> gate_of_parts(V power, V f) {
  using c = constants<A>;
  constexpr bool full = sizeof(A) == 8 || Bits >= 24;
  if constexpr (looks_up<V>) {
    return gate_of_rest<full>(exp2_by_roots<Bits>(power, f));
  }
  V m;
  if constexpr (full)
    m = fma(f, polynomial(f, c::exp2_q24()), V(1));
  else if constexpr (Bits > 8)
    m = polynomial(f, c::exp2_q11());
  else
    m = polynomial(f, c::exp2_q8());
  const V s = exp2_field(power), sum = fma(m, s, V(c::gate_one));
  if constexpr (full)
    return {reciprocal(sum), m * s};
  else
    return {reciprocal_estimate(sum), m * s};
}

}  // namespace detail

/// The gate of x = slope z for many z.
template <std::size_t Bits, class A>
struct scaled_gate : times_log2e<A> {
  using times_log2e<A>::times_log2e, times_log2e<A>::high, times_log2e<A>::low;

  template <class E>
  TIGON_INLINE gate_parts<vec<E, A>> operator()(vec<E, A> z) const {
    using V = vec<E, A>;
    constexpr A parts = detail::exp2_parts<V>;
    const V magic(detail::gate_magic<V>), by(parts * high), power = fnma(z, by, magic);
    if constexpr (sizeof(A) == 8 || Bits >= 24) {
      const V f = fnma(z, V(parts * low), detail::fnma_near(z, by, magic - power));
      return detail::gate_of_parts<Bits>(power, f);
    } else {
      return detail::gate_of_parts<Bits>(power, fnma(z, by, magic - power));
    }
  }
};

/// Parts into which gate_of_log2 divides a power of two.
using detail::exp2_parts;

/// The gate of x = ln(2) z by / exp2_parts.
template <std::size_t Bits, class V>
TIGON_INLINE gate_parts<V> gate_of_log2(V z, V by) {
  const V magic(detail::gate_magic<V>), power = fnma(z, by, magic);
  if constexpr (sizeof(typename V::value_type) == 8 || Bits >= 24)
    return detail::gate_of_parts<Bits>(power, detail::fnma_near(z, by, magic - power));
  else
    return detail::gate_of_parts<Bits>(power, fnma(z, by, magic - power));
}

/// sigmoid(ln(2) z by) for factors of 8 bits, -128.4 <= z by <= 127.4 or NaN: no scale has to be removed. Error: 1.6e-4
/// of the result; 0 from -127.6 down.
template <class V>
TIGON_INLINE V sigmoid_of_log2(V z, V by) {
  using c = detail::constants<typename V::value_type>;
  const V magic(c::whole + c::bias), power = fnma(z, by, magic), f = fnma(z, by, magic - power);
  return detail::reciprocal_estimate(fma(detail::polynomial(f, c::exp2_q8()), detail::exp2_field(power), V(1)));
}

/// sigmoid(x) and sigmoid(-x) for factors: gate_lowest <= x <= gate_highest or NaN, by fewer operations than
/// sigmoid_both. Error: 4 / 4; 2.8 / 2.8; where the result is subnormal, one unit of those numbers. With Bits = 11 or
/// 8, for results that are rounded to so many bits, 6e-5 and 1.6e-4 of the result.
template <std::size_t Bits = 53, class E, class A>
TIGON_INLINE sigmoids<vec<E, A>> gate_sigmoid(vec<E, A> x) {
  using V = vec<E, A>;
  using c = detail::constants<A>;
  constexpr bool full = Bits >= 24;
  if constexpr (!full && detail::has_exp<typename V::lanes>) {
    const V rest = exp_nonpositive<Bits>(V(-c::gate_shift * std::numbers::ln2_v<A>) - x);
    const V inverse = detail::gate_of_rest<false>(rest).inverse;
    return {inverse * V(c::gate_one), rest * inverse};
  } else if constexpr (detail::looks_up<V>) {
    constexpr A log2e = 32 * c::log2e, low = 32 * detail::log2e_low;
    const V magic(detail::gate_magic<V>), by(log2e), power = fnma(x, by, magic), n = magic - power;
    V rest;
    if constexpr (Bits == 8) {
      // e^-x = 2^(-n / 32) e^-r, of which 1 - r is enough: a product less than by the fraction of an exponent of two.
      const V s = detail::exp2_field<32>(power), r = fnma(n, V(c::root_q8), x);
      rest = fnma(s, r, s);
    } else {
      V f = fnma(x, by, n);
      if constexpr (full) f = fnma(x, V(low), f);
      rest = detail::exp2_by_roots < full ? 24 : Bits > (power, f);
    }
    const V inverse = detail::gate_of_rest<full>(rest).inverse;
    return {inverse * V(c::gate_one), rest * inverse};
  }
  // e = e^-x and 1 are scaled so that neither e nor 1 / (1 + e) leaves the normal numbers: no sign to look at.
  const V magic(c::whole + c::bias - c::gate_shift), one(c::gate_one);
  const V t = fma(x, V(-c::log2e), magic);
  const V n = t - magic;
  V y;  // x + n ln(2)
  if constexpr (full)
    y = fma(n, V(c::ln2_lo), fma(n, V(c::ln2_hi), x));
  else
    y = fma(n, V(c::ln2_hi + c::ln2_lo), x);
  const V m = detail::exp_of_minus < full ? 24 : Bits > (y);
  const V power = detail::exp2_field(t);
  const V sum = fma(m, power, one);
  V inverse;
  if constexpr (full)
    inverse = reciprocal(sum);
  else
    inverse = detail::reciprocal_estimate(sum);
  return {inverse * one, m * power * inverse};
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_MATH_GATE_HPP
