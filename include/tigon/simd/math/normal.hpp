// erf and the normal distribution.
//
// Every function states its largest error in units in the last place (ULP) of the result, as
//   f32 with FMA / f32 without; f64 with FMA / f64 without.
#ifndef TIGON_SIMD_MATH_NORMAL_HPP
#define TIGON_SIMD_MATH_NORMAL_HPP

#include <tigon/simd/math/exp_log.hpp>

#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// erf(x). Error: 1.85 / 2.05; 1.7 / 1.9.
template <class E, class A>
TIGON_INLINE vec<E, A> erf(vec<E, A> x) {
  using V = vec<E, A>;
  using c = detail::constants<A>;
  // erf(a) = 1 - e^-y, y = -log(1 - erf(a)): smooth, 2 a / sqrt(pi) near 0, nearly a^2 far away. One path for all a.
  const V a = min(V(c::erf_highest), abs(x));
  const V y = fma(a, detail::polynomial(a, c::erf_s()), a);
  return copysign(detail::expm1_nonpositive(-y), x);
}

/// Of the normal distribution at 0.
inline constexpr double normal_density = std::numbers::inv_sqrtpi / std::numbers::sqrt2;

namespace detail {

/// Coefficients for results of so many bits.
template <std::size_t Bits, std::size_t N, std::size_t M>
TIGON_INLINE constexpr auto of_bits(const std::array<float, N>& q8, const std::array<float, M>& q24) {
  if constexpr (Bits == 8)
    return q8;
  else
    return q24;
}
// -log2(P(-t)): within 1e-7 for t <= 2 and what is 2e-9 of P(-t) beyond; of 8 bits within 5.2e-4 for t <= 5. Linear
// programs; each coefficient is rounded and the next ones make up for it.
template <int Parts>
constexpr TIGON_INLINE auto tail_log2_q24() {
  return std::array{Parts * 0x1.fffffcp-1f,   Parts * 0x1.26af1ap+0f,   Parts * 0x1.d6334ap-2f,
                    Parts * 0x1.ae994ep-5f,   Parts * -0x1.d3200ep-8f,  Parts * 0x1.3a58b8p-13f,
                    Parts * 0x1.b0aa6cp-13f,  Parts * -0x1.ce36fcp-15f, Parts * 0x1.f2df3cp-18f,
                    Parts * -0x1.3470f6p-21f, Parts * 0x1.9bc5dap-26f,  Parts * -0x1.cb1522p-32f};
}
constexpr TIGON_INLINE auto tail_log2_q8() {
  return std::array{0x1.00220ep+0f, 0x1.24fe1ep+0f, 0x1.e40526p-2f, 0x1.5f0918p-5f, -0x1.2441b4p-8f, 0x1.a335eap-13f};
}

// 1 - t p(t) / P(-t), for 8 bits: within 2.7e-4 of itself or of 0.05.
constexpr TIGON_INLINE auto tail_slope() {
  return std::array{0x1.ffdc62p-1f, -0x1.9668a6p-1f, -0x1.4c2476p-1f, -0x1.895212p-4f, 0x1.dfe47p-7f, -0x1.e5f39p-11f};
}
// The tail and its slope of itself for 8 bits by pieces, which grow narrower from 0 to 5: cubics in t - 2.5, within
// 4.1e-4 of the one, 6.7e-5 of the other or of 0.05. The last piece, from 5.02 on, is 0. Linear programs, as above.
inline constexpr float tail_end = 0x1.4676fap+2f;
template <class V, class A>
TIGON_INLINE V by_tail_pieces(V t, const A (&pieces)[4][16]) {
  const V piece = fma(t, fma(t, V(A(0x1.a5a604p-2)), V(A(0x1.ae2ab2p-1))), V(constants<A>::whole));
  return polynomial_by_pieces(t - V(A(2.5)), piece, pieces);
}
alignas(64) inline constexpr float tail_pieces[4][16] = {
    {0x1.d090acp-2f, 0x1.ecd82ep-4f, 0x1.5b5b38p-7f, 0x1.717dfap-8f, 0x1.96665p-8f, 0x1.97012cp-8f, 0x1.8e3b02p-8f,
     0x1.626ea2p-8f, 0x1.16ea4ap-8f, 0x1.88186cp-9f, 0x1.f5d1d8p-10f, 0x1.2986c8p-10f, 0x1.4b827cp-11f, 0x1.5ee2bp-12f,
     0x1.5e231cp-13f, 0},
    {0x1.78c8d2p-1f, 0x1.cb919cp-3f, -0x1.ae600cp-8f, -0x1.6276ccp-6f, -0x1.22d1e8p-6f, -0x1.1f39bcp-6f,
     -0x1.0934bcp-6f, -0x1.a25914p-7f, -0x1.1f91dcp-7f, -0x1.6382d8p-8f, -0x1.950e72p-9f, -0x1.b0ecacp-10f,
     -0x1.b79ep-11f, -0x1.ac1ca8p-12f, -0x1.8b86d4p-13f, 0},
    {0x1.ce15dp-2f, 0x1.828f36p-3f, 0x1.a86402p-6f, 0x1.635cfep-7f, 0x1.4915fap-6f, 0x1.621d1ep-6f, 0x1.148beep-6f,
     0x1.67dde8p-7f, 0x1.a07d02p-8f, 0x1.bc1376p-9f, 0x1.bd8aacp-10f, 0x1.aa6c38p-11f, 0x1.89025ap-12f, 0x1.5f2a2p-13f,
     0x1.2bcc66p-14f, 0},
    {0x1.e9d08cp-5f, 0x1.e3339ep-7f, -0x1.84ea0ap-6f, -0x1.d5bf84p-6f, -0x1.599ffap-6f, -0x1.a044cep-7f,
     -0x1.bf3018p-8f, -0x1.bd65c4p-9f, -0x1.a415a4p-10f, -0x1.7c1b62p-11f, -0x1.4cd254p-12f, -0x1.1bb726p-13f,
     -0x1.d90688p-15f, -0x1.82eafap-16f, -0x1.30bb42p-17f, 0}};
alignas(64) inline constexpr float tail_slope_pieces[4][16] = {
    {-0x1.9aaab4p+2f, -0x1.8902c6p+2f, -0x1.844022p+2f, -0x1.83aec6p+2f, -0x1.83a3b8p+2f, -0x1.83a3a2p+2f,
     -0x1.83a47p+2f, -0x1.83a998p+2f, -0x1.83b572p+2f, -0x1.83c8bp+2f, -0x1.83e2dep+2f, -0x1.8402fp+2f, -0x1.8427dcp+2f,
     -0x1.845082p+2f, -0x1.847cd2p+2f, 0},
    {-0x1.6cbb0ap+2f, -0x1.525c28p+2f, -0x1.488d04p+2f, -0x1.46b204p+2f, -0x1.466db2p+2f, -0x1.466b9p+2f,
     -0x1.466306p+2f, -0x1.4648a8p+2f, -0x1.461fb2p+2f, -0x1.45ecdcp+2f, -0x1.45b45p+2f, -0x1.457946p+2f,
     -0x1.453dbcp+2f, -0x1.450326p+2f, -0x1.44c94p+2f, 0},
    {-0x1.516b18p+0f, -0x1.1cbcf6p+0f, -0x1.019c9ep+0f, -0x1.f2e6e8p-1f, -0x1.ee67a8p-1f, -0x1.ede154p-1f,
     -0x1.eee6fap-1f, -0x1.f051a2p-1f, -0x1.f1cc94p-1f, -0x1.f33388p-1f, -0x1.f479bep-1f, -0x1.f59bc6p-1f,
     -0x1.f69bfap-1f, -0x1.f77d4p-1f, -0x1.f8471p-1f, 0},
    {-0x1.70de46p-4f, -0x1.c8387p-5f, -0x1.fd62f4p-6f, -0x1.3bd964p-6f, -0x1.a7b942p-7f, -0x1.3563b2p-7f,
     -0x1.b68a44p-8f, -0x1.4d994cp-8f, -0x1.044196p-8f, -0x1.9eabe4p-9f, -0x1.5029p-9f, -0x1.14bd7cp-9f,
     -0x1.cd8d78p-10f, -0x1.85551ep-10f, -0x1.4ab0bep-10f, 0}};
// P(-t) e^(t^2 / 2), Mills' ratio but for a factor, is p(t) / q(t), where q goes on with t^5, within 1.5e-8 of itself
// for t <= 13.3. Linear programs, too.
constexpr TIGON_INLINE auto mills_p() {
  return std::array{0x1.8d0b34p+5f, 0x1.59f29p+5f, 0x1.1fe8f4p+4f, 0x1.fbeb6cp+1f, 0x1.9885dp-2f};
}
constexpr TIGON_INLINE auto mills_q() {
  return std::array{0x1.8d0b34p+6f, 0x1.4b5f12p+7f, 0x1.da3944p+6f, 0x1.70b5d4p+5f, 0x1.3e509cp+3f};
}

}  // namespace detail

/// t = |a| and P(-t), the tail of the normal distribution, in f32: gelu(a) = max(a, 0) - t P(-t). Error of t P(-t):
/// 5e-8, relative to that 1e-6 for t <= 2.5. With Bits = 8, for results of so many bits, 4.5e-4 of it for t <= 5, more
/// where it is below 3e-7. 0 for the highest t.
template <class V>
struct tail_parts {
  V t, tail;
};
template <std::size_t Bits, class V>
TIGON_INLINE tail_parts<V> normal_tail(V a) {
  using A = typename V::value_type;
  using c = detail::constants<A>;
  constexpr bool rough = Bits == 8;
  if constexpr (rough && detail::looks_up<V>) {
    const V t = min(V(detail::tail_end), abs(a));
    return {t, detail::by_tail_pieces(t, detail::tail_pieces)};
  }
  // At the limit minus_log2 is 127, an exponent field of 0.
  constexpr int parts = detail::exp2_parts<V>;
  const V t = min(V(A(rough ? 12.59 : 13.0035)), abs(a));
  const V minus_log2 =
      detail::polynomial_in_pairs(t, detail::of_bits<Bits>(detail::tail_log2_q8(), detail::tail_log2_q24<parts>()));
  const V magic(c::whole + parts * c::bias), power = magic - minus_log2, f = (magic - power) - minus_log2;
  if constexpr (rough)
    return {t, detail::polynomial_in_pairs(f, c::exp2_q8()) * detail::exp2_field(power)};
  else
    return {t, detail::exp2_of_parts(power, f)};
}
/// The same, and the slope of gelu at -t, P(-t) - t p(t), where p is the density, from which P(-t) is made here. Error
/// of P(-t): 1e-6 of itself for t <= 5; of the slope: 1.3e-7. With Bits = 8, P(-t) as above and 7.2e-4 of the slope or
/// of P(-t) / 20.
template <class V>
struct tail_and_slope {
  V t, tail, slope;
};
template <std::size_t Bits, class V>
TIGON_INLINE tail_and_slope<V> normal_tail_and_slope(V a) {
  using A = typename V::value_type;
  using c = detail::constants<A>;
  if constexpr (Bits == 8) {
    const auto [t, tail] = normal_tail<Bits>(a);
    V slope;  // of itself
    if constexpr (detail::looks_up<V>)
      slope = detail::by_tail_pieces(t, detail::tail_slope_pieces);
    else
      slope = detail::polynomial_in_pairs(t, detail::tail_slope());
    return {t, tail, tail * slope};
  } else {
    // At the limit e^(-t^2 / 2) is 2^-127, an exponent field of 0.
    constexpr int parts = detail::exp2_parts<V>;
    const V t = min(V(A(13.2686)), abs(a)), square = t * t, by(A(parts * std::numbers::log2e / 2));
    const V magic(c::whole + parts * c::bias), power = fnma(square, by, magic), f = fnma(square, by, magic - power);
    const V decay = detail::exp2_of_parts(power, f);
    const V mills = quotient(detail::polynomial(t, detail::mills_p()), detail::monic_polynomial(t, detail::mills_q()));
    return {t, decay * mills, decay * fnma(t, V(A(normal_density)), mills)};
  }
}
/// (1 + erf(a / sqrt 2)) / 2.
template <class V>
TIGON_INLINE V upper_normal(V a) {
  using A = typename V::value_type;
  return fma(V(A(0.5)), erf(a * V(A(1 / std::numbers::sqrt2))), V(A(0.5)));
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_MATH_NORMAL_HPP
