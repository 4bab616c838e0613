// exp, log and their family, each written once for vectors of every engine and, in tigon::math, for scalars.
//
// Every function states its largest error in units in the last place (ULP) of the result, as
//   f32 with FMA / f32 without; f64 with FMA / f64 without.
// The f32 numbers come from all 2^32 arguments with FMA and from every 67th without, the f64 numbers from samples
// (tests/simd/math_test.cpp). Everywhere: NaN gives NaN, infinities and zeros of either sign give what IEEE 754 asks
// for, overflow gives infinity, underflow is gradual.
#ifndef TIGON_SIMD_MATH_HPP
#define TIGON_SIMD_MATH_HPP

#include <tigon/simd/engines/scalar.hpp>
#include <tigon/simd/vec.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// What a raw register of AVX-512 offers beyond the neutral vector.
#if defined(TIGON_X86)
template <class L>
concept raw_parts = requires(decltype(L::raw(typename L::reg{})) v) {
  x86::clamp_magnitude(v, v);
  x86::mantissa(v);
  x86::exponent(v);
};
template <class L>
concept raw_reciprocal = requires(decltype(L::raw(typename L::reg{})) v) {
  { x86::reciprocal_estimate(v) } -> std::same_as<decltype(v)>;  // clang takes a register of f64 for one of f32
};
template <class L>
concept raw_lookup = requires(decltype(L::raw(typename L::reg{})) v) {
  { x86::lookup(v, v) } -> std::same_as<decltype(v)>;
};
template <class L>
concept raw_square_root = requires(decltype(L::raw(typename L::reg{})) v) { x86::square_root(v); };
#endif

// Coefficients minimise the largest relative error of the function that they serve. f32: linear programs, one after the
// other, each rounding its lowest coefficient and leaving the error to those above. f64: Remez exchange in 160 bits or
// more, then rounded. ln2_hi ends early enough that n * ln2_hi is exact for every exponent n; ln2_lo is the rest.
template <class A>
struct constants;

template <>
struct constants<float> {
  static constexpr int fraction = 23;  // bits
  static constexpr float fraction_mask = std::bit_cast<float>(0x007fffffu);
  static constexpr float infinity = std::numeric_limits<float>::infinity();
  static constexpr float bias = 127;
  static constexpr float whole = 0x1.8p23f;  // added to a small number it leaves the nearest whole one in the last bits
  static constexpr float implicit = 0x1p23f;
  static constexpr float subnormal = 24;  // times 2^24, subnormal numbers and e^exp_lowest are normal
  static constexpr float up = 0x1p24f, down = 0x1p-24f;
  static constexpr float tiny = 0x1p-25f;  // below it expm1(x) and log1p(x) are x
  static constexpr float log2e = 0x1.715476p+0f;
  static constexpr float ln2_hi = 0x1.62e4p-1f;
  static constexpr float ln2_lo = 0x1.7f7d1cp-20f;
  static constexpr float exp_lowest = -104, exp_highest = 89;  // e^x rounds to 0 and infinity there
  static constexpr float expm1_lowest = -20;                   // e^x - 1 rounds to -1
  static constexpr float erf_highest = 4;                      // erf(x) rounds to 1
  // e^r = 1 + r + r^2 q(r) for |r| <= ln(2) / 2; 1.4e-8 of e^r - 1.
  static constexpr float exp_q[] = {0x1.fffffep-2f, 0x1.5554b4p-3f, 0x1.5556f2p-5f, 0x1.12254ap-7f, 0x1.6b9c68p-10f};
  // The same for gates, by the bits of the result; 1.1e-7, 5.4e-6 and 1.3e-4 of e^r.
  static constexpr float gate_q24[] = {0x1.fffdfep-2f, 0x1.5557bp-3f, 0x1.572982p-5f, 0x1.106180p-7f};
  static constexpr float gate_q11[] = {0x1.0006b6p-1f, 0x1.571cc0p-3f, 0x1.522530p-5f};
  static constexpr float gate_q8[] = {0x1.0204a8p-1f, 0x1.554118p-3f};
  // 2^f for |f| <= 1/2, by the bits of the result: 1.1e-7, 2.7e-6 and 7.5e-5 of it; the first without its leading 1.
  static constexpr float exp2_q24[] = {0x1.62e42ap-1f, 0x1.ebf9a4p-3f, 0x1.c6b596p-5f, 0x1.3cf3bap-7f, 0x1.5cbae6p-10f};
  static constexpr float exp2_q11[] = {0x1.ffffe8p-1f, 0x1.62e0dp-1f, 0x1.ec060cp-3f, 0x1.ca1ab6p-5f, 0x1.39e5e8p-7f};
  static constexpr float exp2_q8[] = {0x1.fff692p-1f, 0x1.62f31ap-1f, 0x1.f0de1ap-3f, 0x1.c3f764p-5f};
  static constexpr float gate_lowest = -112, gate_highest = 42.9f, gate_shift = 64;
  static constexpr float gate_one = 0x1p-64f;
  // 2^(f / 32) for |f| <= 1/2, by the bits of the result, without its leading 1: 5.4e-8; ln(2) / 32, 6e-5 of it.
  static constexpr float root_q24[] = {0x1.62e584p-6f, 0x1.ebfbep-13f};
  static constexpr float root_q8 = 0x1.62e43p-6f;
  // log(1 + f) = f + f^2 l(f) for -1/4 <= f <= 1/2; 4.9e-9.
  static constexpr float log_l[] = {-0x1p-1f,       0x1.5555a4p-2f,  -0x1.000048p-2f, 0x1.99698ap-3f, -0x1.54eddep-3f,
                                    0x1.28825ep-3f, -0x1.0d99b0p-3f, 0x1.ace4eep-4f,  -0x1.71bcaap-5f};
  // -log(1 - erf(a)) = a + a s(a) for 0 <= a <= 3.95; 4.3e-9 of erf(a).
  static constexpr float erf_s[] = {0x1.06eba8p-3f,   0x1.45f300p-1f,   0x1.a4f8c4p-4f,
                                    -0x1.39b7cep-6f,  -0x1.636f4cp-13f, 0x1.b74238p-10f,
                                    -0x1.4e2518p-11f, 0x1.f27c4ep-14f,  -0x1.3af10ep-17f};
};

template <>
struct constants<double> {
  static constexpr int fraction = 52;
  static constexpr double fraction_mask = std::bit_cast<double>(0x000fffffffffffffull);
  static constexpr double bias = 1023;
  static constexpr double whole = 0x1.8p52;
  static constexpr double implicit = 0x1p52;
  static constexpr double subnormal = 54;
  static constexpr double up = 0x1p54, down = 0x1p-54;
  static constexpr double tiny = 0x1p-54;
  static constexpr double log2e = 0x1.71547652b82fep+0;
  static constexpr double ln2_hi = 0x1.62e42fefa38p-1;
  static constexpr double ln2_lo = 0x1.ef35793c7673p-45;
  static constexpr double exp_lowest = -746, exp_highest = 710;
  static constexpr double expm1_lowest = -40;
  static constexpr double erf_highest = 6;
  // 2^-54.7 of e^r - 1.
  static constexpr double exp_q[] = {0x1.0000000000005p-1,  0x1.5555555555539p-3,  0x1.555555555228ep-5,
                                     0x1.111111111900ep-7,  0x1.6c16c17ee71f2p-10, 0x1.a01a0174fbc5bp-13,
                                     0x1.a019a74a87471p-16, 0x1.71de882372904p-19, 0x1.28a2067f05181p-22,
                                     0x1.ae6bae8c28464p-26};
  // 2^-53.7 of 2^f, without its leading 1.
  static constexpr double exp2_q24[] = {0x1.62e42fefa39efp-1,  0x1.ebfbdff82c593p-3,  0x1.c6b08d7049f59p-5,
                                        0x1.3b2ab6fba22dp-7,   0x1.5d87fe78f1297p-10, 0x1.430913093ed6ap-13,
                                        0x1.ffcbfaf7005e6p-17, 0x1.62bfd3c80344fp-20, 0x1.b527e93b464e8p-24,
                                        0x1.e608ae304b5aep-28, 0x1.e58be0cd679ccp-32};
  static constexpr double gate_lowest = -765, gate_highest = 350, gate_shift = 512;
  static constexpr double gate_one = 0x1p-512;
  // log(1 + f) = 2 s + s z l(z), s = f / (2 + f), z = s^2 <= 0.0401; 2^-62.
  static constexpr double log_l[] = {0x1.555555555554fp-1, 0x1.999999999c187p-2, 0x1.24924921e32e6p-2,
                                     0x1.c71c7490db620p-3, 0x1.745c4a959ba4cp-3, 0x1.3b35c9fc6a36ap-3,
                                     0x1.0dcaf88055d85p-3, 0x1.1b85c84cf831fp-3};
  // 2^-56 of erf(a), 0 <= a <= 5.95.
  static constexpr double erf_s[] = {
      0x1.06eba8214db69p-3,   0x1.45f306dc9c885p-1,   0x1.a4f4e2a1b466bp-4,   -0x1.39668594d53b9p-6,
      -0x1.b6b684faa9ba3p-13, 0x1.bca674634e3ecp-10,  -0x1.3564fb2c916f8p-11, 0x1.b2017df009d83p-16,
      0x1.0e9eadf92f115p-14,  -0x1.f3c43986a4291p-16, 0x1.d82bd473f9bfcp-19,  0x1.6870c5ca686abp-19,
      -0x1.a8449c57eec98p-20, 0x1.a7985eac3e3cap-23,  0x1.f703f73b1195ep-23,  -0x1.a636c70f880acp-23,
      0x1.8632b1ddbe6bap-24,  -0x1.03ee6d23562f3p-25, 0x1.0ac1c5d908600p-27,  -0x1.ada71366541cfp-30,
      0x1.0edab50c9d954p-32,  -0x1.06b93a83ae2fbp-35, 0x1.7b16ff4d7a7b9p-39,  -0x1.7f50c0ce4b3e7p-43,
      0x1.e4a6e25190dc3p-48,  -0x1.202f92631904cp-53};
};

// c[0] + c[1] x + c[2] x^2 + ... by Horner's rule: fewest instructions, and those bind once four vectors are in flight.
template <class V, class A, std::size_t N>
TIGON_INLINE V polynomial(V x, const A (&c)[N]) {
  V p(c[N - 1]);
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((p = fma(p, x, V(c[N - 2 - I]))), ...);
  }(std::make_index_sequence<N - 1>());
  return p;
}

// c[0] + c[1] x + ... + x^N: its first step is a sum, which is cheaper than a product.
template <class V, class A, std::size_t N>
TIGON_INLINE V monic_polynomial(V x, const A (&c)[N]) {
  V p = x + V(c[N - 1]);
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((p = fma(p, x, V(c[N - 2 - I]))), ...);
  }(std::make_index_sequence<N - 1>());
  return p;
}

// The first in pairs, c[0] + c[1] x + x^2 (c[2] + c[3] x + ...): one product more in a chain half as long, for functions
// that are little more than the polynomial.
template <class V, class A, std::size_t N>
TIGON_INLINE V polynomial_in_pairs(V x, const A (&c)[N]) {
  static_assert(N % 2 == 0);
  const V square = x * x;
  V p = fma(V(c[N - 1]), x, V(c[N - 2]));
  [&]<std::size_t... I>(std::index_sequence<I...>) TIGON_LAMBDA {
    ((p = fma(p, square, fma(V(c[N - 3 - 2 * I]), x, V(c[N - 4 - 2 * I])))), ...);
  }(std::make_index_sequence<N / 2 - 1>());
  return p;
}

// c[0] - c[1] y + c[2] y^2 - ...
template <class V, class A, std::size_t N>
TIGON_INLINE V polynomial_of_minus(V y, const A (&c)[N]) {
  V p(c[N - 1]);
  [&]<std::size_t... I>(std::index_sequence<I...>)
      TIGON_LAMBDA { ((p = fnma(p, y, V(c[N - 2 - I]))), ...); }(std::make_index_sequence<N - 1>());
  return p;
}

// Whether a vector holds a number for each of sixteen pieces of a function and has an instruction that looks them up.
template <class V>
inline constexpr bool looks_up =
#if defined(TIGON_X86)
    raw_lookup<typename V::lanes>;
#else
    false;
#endif

// The numbers of a table of sixteen that the last bits of `index` say.
template <class V>
  requires looks_up<V>
TIGON_INLINE V looked_up(std::span<const typename V::value_type, 16> table, V index) {
  using L = typename V::lanes;
  return V::from(L::from_raw(x86::lookup(L::raw(L::load(table.data())), L::raw(index.r))));
}

// c[0][k] + c[1][k] x + ... in piece k of sixteen; the index is k + whole.
template <class V, class A, std::size_t N>
  requires looks_up<V>
TIGON_INLINE V polynomial_by_pieces(V x, V index, const A (&c)[N][16]) {
  V p = looked_up(c[N - 1], index);
  [&]<std::size_t... I>(std::index_sequence<I...>)
      TIGON_LAMBDA { ((p = fma(p, x, looked_up(c[N - 2 - I], index))), ...); }(std::make_index_sequence<N - 1>());
  return p;
}

// The fractions of 2^(k / 32) for k = 0 to 31, each less the bits of k in the uppermost five places: what is added to an
// exponent that is followed by k.
alignas(64) inline constexpr auto roots_less_index = [] {
  std::array<std::uint32_t, 32> bits{0x000000u, 0x02cd87u, 0x05aac3u, 0x08980fu, 0x0b95c2u, 0x0ea43au, 0x11c3d3u,
                                     0x14f4f0u, 0x1837f0u, 0x1b8d3au, 0x1ef532u, 0x227043u, 0x25fed7u, 0x29a15bu,
                                     0x2d583fu, 0x3123f6u, 0x3504f3u, 0x38fbafu, 0x3d08a4u, 0x412c4du, 0x45672au,
                                     0x49b9beu, 0x4e248cu, 0x52a81eu, 0x5744fdu, 0x5bfbb8u, 0x60ccdfu, 0x65b907u,
                                     0x6ac0c7u, 0x6fe4bau, 0x75257du, 0x7a83b3u};
  for (std::uint32_t k = 0; k < 32; ++k) bits[k] -= k << 18;
  return std::bit_cast<std::array<float, 32>>(bits);
}();

// How many parts of a power of two exp2_field tells apart: where roots of two are looked up, a short polynomial is left.
template <class V, int Roots = 32>
inline constexpr int exp2_parts = looks_up<V> ? Roots : 1;

// The number of roots_less_index that the last bits of t say, in Parts parts.
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

// 2^(n / Parts) for t = n + Parts bias + whole, -bias < n / Parts < bias + 1: the last bits of t become the exponent, all
// others leave. 0 for n = -Parts bias; between the two not accurate, but less than the smallest normal number.
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
  return fma(fma(polynomial(r, constants<typename V::value_type>::exp_q), r, one), r, one);
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

namespace detail {

// 1 / v; within 2^-14 of it where division is slow.
template <class V>
TIGON_INLINE V reciprocal_estimate(V v) {
#if defined(TIGON_X86)
  using L = typename V::lanes;
  if constexpr (raw_reciprocal<L>)
    return V::from(L::from_raw(x86::reciprocal_estimate(L::raw(v.r))));
  else
#endif
    return V(1) / v;
}

// num / (large + small). The remainder is taken against the sum before its rounding, which would cost up to one ULP;
// the same step squares the error of the estimate, so that 2^-28 is left of it.
template <class V>
TIGON_INLINE V quotient_of_sum(V num, V large, V small) {
  const V y = reciprocal_estimate(large + small);
  const V q = num * y;
  return fma(fnma(q, small, fnma(q, large, num)), y, q);
}

}  // namespace detail

/// a / b for normal b whose reciprocal is normal and a quotient that is neither subnormal nor near overflow, by an
/// estimate and one step on the remainder where division is slow, on Intel's cores.
/// Error at most 0.54 ULP.
template <class E, class A>
TIGON_INLINE vec<E, A> quotient(vec<E, A> a, vec<E, A> b) {
#if defined(TIGON_X86) && TIGON_INTEL_CORES
  if constexpr (detail::raw_reciprocal<typename vec<E, A>::lanes>) {
    const auto y = detail::reciprocal_estimate(b);
    const auto q = a * y;
    return fma(fnma(q, b, a), y, q);
  } else
#endif
    return a / b;
}

/// 1 / v, with the conditions and the error of quotient.
template <class E, class A>
TIGON_INLINE vec<E, A> reciprocal(vec<E, A> v) {
  return quotient(vec<E, A>(A(1)), v);
}

/// e^x. Error: 0.93 / 1.2; 0.95 / 1.25.
template <class E, class A>
TIGON_INLINE vec<E, A> exp(vec<E, A> x) {
  using V = vec<E, A>;
  using c = detail::constants<A>;
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
  if constexpr (full && scales) {
    return exp(x);
  } else {
    // n + subnormal fits the exponent field for all n that can occur; the last product rounds.
    const V y = max(V(c::exp_lowest), x);
    const auto [t, n, r] = detail::reduce(y, scales ? A(0) : c::bias + c::subnormal);
    V m;
    if constexpr (full)
      m = detail::exp_reduced(r);
    else if constexpr (Bits > 8)
      m = detail::polynomial_of_minus(fnma(y, V(c::log2e), n), c::exp2_q11);
    else
      m = detail::polynomial_of_minus(fnma(y, V(c::log2e), n), c::exp2_q8);
    if constexpr (scales)
      return scale(m, n);
    else
      return m * detail::exp2_field(t) * V(c::down);
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
  const V y = fma(s, r * r * detail::polynomial(r, c::exp_q), fma(s, r, s - half));
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
  {
    const auto small = x < V(std::numeric_limits<A>::min());
    x = select(small, x * V(c::up), x);
    // The exponent field, read as the last bits of 2^23 or 2^52.
    const V field = bit_or(x.template shr<c::fraction>(), V(c::implicit));
    const V e = field - select(small, V(c::implicit + c::bias + c::subnormal), V(c::implicit + c::bias));
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
    const V tail = fma(f * f, polynomial(f, c::log_l), e * V(c::ln2_lo));
    return fma(e, V(c::ln2_hi), f + tail);
  } else {
    const V s = f / (V(A(2)) + f);
    const V z = s * s;
    const V half_square = V(A(0.5)) * f * f;
    const V tail = fma(s, fma(polynomial(z, c::log_l), z, half_square), e * V(c::ln2_lo));
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
  const V large = detail::quotient_of_sum(one, one, q);
  const V small = q * large;
  const auto negative = x < V(A(0));
  return {select(negative, small, large), select(negative, large, small)};
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

namespace detail {

// 1 + x q(x), for x = -y, by the constants of e^-y for results of so many bits.
template <std::size_t Bits, class V, class A = typename V::value_type>
TIGON_INLINE V exp_of_minus(V y) {
  const auto horner = [y]<std::size_t N>(const A(&c)[N]) TIGON_LAMBDA {
    const V one(A(1));
    return fnma(fnma(polynomial_of_minus(y, c), y, one), y, one);
  };
  if constexpr (sizeof(A) == 8)
    return horner(constants<A>::exp_q);
  else if constexpr (Bits == 24)
    return horner(constants<A>::gate_q24);
  else if constexpr (Bits == 11)
    return horner(constants<A>::gate_q11);
  else
    return horner(constants<A>::gate_q8);
}

}  // namespace detail

/// What a gate is made of: unit * inverse is sigmoid(x), rest * inverse is sigmoid(-x), for gate_lowest <= x <=
/// gate_highest or NaN. Errors as those of gate_sigmoid.
template <class V>
struct gate_parts {
  using A = typename V::value_type;
  static constexpr A unit = detail::constants<A>::gate_one;
  V inverse, rest;
};

namespace detail {

// 2^((n + f) / 32), |f| <= 1/2, for results of so many bits; power = n + 32 bias + whole.
template <std::size_t Bits, class V>
  requires looks_up<V>
TIGON_INLINE V exp2_by_roots(V power, V f) {
  using c = constants<typename V::value_type>;
  const V s = exp2_field<32>(power), sf = s * f;
  if constexpr (Bits == 8)
    return fma(sf, V(c::root_q8), s);
  else
    return fma(sf, fma(f, V(c::root_q24[1]), V(c::root_q24[0])), s);
}

// 2^((n + f) / exp2_parts), |f| <= 1/2; power = n + exp2_parts bias + whole. Error: 2e-7.
template <class V>
TIGON_INLINE V exp2_of_parts(V power, V f) {
  if constexpr (looks_up<V>) {
    return exp2_by_roots<24>(power, f);
  } else {
    const V s = exp2_field(power);
    return fma(polynomial(f, constants<typename V::value_type>::exp2_q24), s * f, s);
  }
}

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
    m = fma(f, polynomial(f, c::exp2_q24), V(1));
  else if constexpr (Bits > 8)
    m = polynomial(f, c::exp2_q11);
  else
    m = polynomial(f, c::exp2_q8);
  const V s = exp2_field(power), sum = fma(m, s, V(c::gate_one));
  if constexpr (full)
    return {reciprocal(sum), m * s};
  else
    return {reciprocal_estimate(sum), m * s};
}

}  // namespace detail

/// factor * log2(e) in two parts, for exponents of base two.
template <class A>
struct times_log2e {
  A high, low;

  explicit times_log2e(double factor) {
    constexpr double log2e = std::numbers::log2e, rest = 0x1.777d0ffda0d24p-56;
    high = static_cast<A>(factor * log2e);
    low = static_cast<A>(std::fma(factor, log2e, -static_cast<double>(high)) + factor * rest);
  }
};

/// The gate of x = slope z for many z.
template <std::size_t Bits, class A>
struct scaled_gate : times_log2e<A> {
  using times_log2e<A>::times_log2e, times_log2e<A>::high, times_log2e<A>::low;

  template <class E>
  TIGON_INLINE gate_parts<vec<E, A>> operator()(vec<E, A> z) const {
    using V = vec<E, A>;
    constexpr A parts = detail::exp2_parts<V>;
    const V magic(detail::gate_magic<V>), by(parts * high), power = fnma(z, by, magic);
    V f = fnma(z, by, magic - power);
    if constexpr (sizeof(A) == 8 || Bits >= 24) f = fnma(z, V(parts * low), f);
    return detail::gate_of_parts<Bits>(power, f);
  }
};

/// The gate of x = ln(2) z by / exp2_parts.
template <std::size_t Bits, class V>
TIGON_INLINE gate_parts<V> gate_of_log2(V z, V by) {
  const V magic(detail::gate_magic<V>), power = fnma(z, by, magic);
  return detail::gate_of_parts<Bits>(power, fnma(z, by, magic - power));
}

/// sigmoid(ln(2) z by) for factors of 8 bits, -128.4 <= z by <= 127.4 or NaN: no scale has to be taken off again. Error:
/// 1.6e-4 of the result; 0 from -127.6 down.
template <class V>
TIGON_INLINE V sigmoid_of_log2(V z, V by) {
  using c = detail::constants<typename V::value_type>;
  const V magic(c::whole + c::bias), power = fnma(z, by, magic), f = fnma(z, by, magic - power);
  return detail::reciprocal_estimate(fma(detail::polynomial(f, c::exp2_q8), detail::exp2_field(power), V(1)));
}

/// sigmoid(x) and sigmoid(-x) for factors: gate_lowest <= x <= gate_highest or NaN, by fewer operations than
/// sigmoid_both. Error: 4 / 4; 2.8 / 2.8; where the result is subnormal, one unit of those numbers. With Bits = 11 or
/// 8, for results that are rounded to so many bits, 6e-5 and 1.6e-4 of the result.
template <std::size_t Bits = 53, class E, class A>
TIGON_INLINE sigmoids<vec<E, A>> gate_sigmoid(vec<E, A> x) {
  using V = vec<E, A>;
  using c = detail::constants<A>;
  constexpr bool full = Bits >= 24;
  if constexpr (detail::looks_up<V>) {
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

namespace detail {

// e^y - 1 for y <= 0. Nothing cancels: where s is not 1, s - 1 is more than twice as large as the rest.
template <class V>
TIGON_INLINE V expm1_nonpositive(V y) {
  using A = typename V::value_type;
  using c = constants<A>;
  const auto [t, n, r] = reduce(max(V(c::expm1_lowest), y), c::bias);
  const V s = exp2_field(t);
  return fma(s, fma(r * r, polynomial(r, c::exp_q), r), s - V(1));
}

}  // namespace detail

/// tanh(x). Error: 2 / 2.1; 2.1 / 2.2.
template <class E, class A>
TIGON_INLINE vec<E, A> tanh(vec<E, A> x) {
  using V = vec<E, A>;
  // With t = e^(-2|x|) - 1: tanh|x| = -t / (2 + t), without cancellation anywhere.
  const V t = detail::expm1_nonpositive(V(A(-2)) * abs(x));
  return copysign(detail::quotient_of_sum(t, V(A(2)), t), x);
}

/// erf(x). Error: 1.85 / 2.05; 1.7 / 1.9.
template <class E, class A>
TIGON_INLINE vec<E, A> erf(vec<E, A> x) {
  using V = vec<E, A>;
  using c = detail::constants<A>;
  // erf(a) = 1 - e^-y, y = -log(1 - erf(a)): smooth, 2 a / sqrt(pi) near 0, nearly a^2 far away. One path for all a.
  const V a = min(V(c::erf_highest), abs(x));
  const V y = fma(a, detail::polynomial(a, c::erf_s), a);
  return copysign(detail::expm1_nonpositive(-y), x);
}

/// x; 0 where |x| is below the smallest normal number, for gradients: a product with subnormal operands, as fused
/// linear losses make of them, is a hundred times slower on some CPUs, and their sum is nothing. NaN is kept.
template <class E, class A>
TIGON_INLINE vec<E, A> normal_or_zero(vec<E, A> x) {
  using V = vec<E, A>;
  return select(abs(x) < V(std::numeric_limits<A>::min()), V(A(0)), x);
}

/// 1 / sqrt(x). Error: 1.5 / 1.5; 1.5 / 1.5. A square root and a division: kernels need it once a row.
template <class E, class A>
TIGON_INLINE vec<E, A> rsqrt(vec<E, A> x) {
  using V = vec<E, A>;
#if defined(TIGON_X86)
  // Eigen's square root is an approximation that flushes subnormal numbers and loses the sign of zero.
  using L = typename V::lanes;
  if constexpr (detail::raw_square_root<L>)
    return V(A(1)) / V::from(L::from_raw(x86::square_root(L::raw(x.r))));
  else
#endif
    return V(A(1)) / sqrt(x);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon::math {
inline namespace TIGON_ABI {

// Scalars through the scalar engine, with the errors stated above.
template <class A>
using lane = simd::vec<simd::scalar, A>;

template <std::floating_point A>
TIGON_INLINE A exp(A x) {
  return simd::exp(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A exp_nonpositive(A x) {
  return simd::exp_nonpositive(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A expm1(A x) {
  return simd::expm1(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A log(A x) {
  return simd::log(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A log1p(A x) {
  return simd::log1p(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A tanh(A x) {
  return simd::tanh(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A erf(A x) {
  return simd::erf(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A sigmoid(A x) {
  return simd::sigmoid(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE simd::sigmoids<A> sigmoid_both(A x) {
  const auto s = simd::sigmoid_both(lane<A>(x));
  return {s.of_x.r, s.of_minus_x.r};
}
template <std::floating_point A>
TIGON_INLINE A scale(A v, A n) {
  return simd::scale(lane<A>(v), lane<A>(n)).r;
}
template <std::floating_point A>
TIGON_INLINE A rsqrt(A x) {
  return simd::rsqrt(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A sqrt(A x) {
  return std::sqrt(x);
}
template <std::floating_point A>
TIGON_INLINE A abs(A x) {
  return std::fabs(x);
}
/// As those of vectors: a NaN in b is kept.
template <std::floating_point A>
TIGON_INLINE A max(A a, A b) {
  return a > b ? a : b;
}
template <std::floating_point A>
TIGON_INLINE A min(A a, A b) {
  return a < b ? a : b;
}
template <std::floating_point A>
TIGON_INLINE bool is_nan(A x) {
  return x != x;
}

}  // namespace TIGON_ABI
}  // namespace tigon::math

#endif  // TIGON_SIMD_MATH_HPP
