// Polynomials, their coefficients, and tables that are looked up in a register.
#ifndef TIGON_SIMD_MATH_POLYNOMIAL_HPP
#define TIGON_SIMD_MATH_POLYNOMIAL_HPP

#include <tigon/simd/vec.hpp>

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// What a raw register of AVX-512 offers beyond the neutral vector; on other targets no register does.
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

// Coefficients minimise the largest relative error of the function that they serve. f32: linear programs, one after the
// other, each rounding its lowest coefficient and leaving the error to those above. f64: Remez exchange in 160 bits or
// more, then rounded. ln2_hi ends early enough that n * ln2_hi is exact for every exponent n; ln2_lo is the rest.
// Coefficients are functions: nvcc has no static array on the device to which a reference could be bound.
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
  static constexpr float log_smallest = -87.33654f;            // of a normal number
  static constexpr float erf_highest = 4;                      // erf(x) rounds to 1
  // e^r = 1 + r + r^2 q(r) for |r| <= ln(2) / 2; 1.4e-8 of e^r - 1.
  static constexpr auto exp_q() {
    return std::array{0x1.fffffep-2f, 0x1.5554b4p-3f, 0x1.5556f2p-5f, 0x1.12254ap-7f, 0x1.6b9c68p-10f};
  }
  // The same for gates, by the bits of the result; 1.1e-7, 5.4e-6 and 1.3e-4 of e^r.
  static constexpr auto gate_q24() { return std::array{0x1.fffdfep-2f, 0x1.5557bp-3f, 0x1.572982p-5f, 0x1.106180p-7f}; }
  static constexpr auto gate_q11() { return std::array{0x1.0006b6p-1f, 0x1.571cc0p-3f, 0x1.522530p-5f}; }
  static constexpr auto gate_q8() { return std::array{0x1.0204a8p-1f, 0x1.554118p-3f}; }
  // 2^f for |f| <= 1/2, by the bits of the result: 1.1e-7, 2.7e-6 and 7.5e-5 of it; the first without its leading 1.
  static constexpr auto exp2_q24() {
    return std::array{0x1.62e42ap-1f, 0x1.ebf9a4p-3f, 0x1.c6b596p-5f, 0x1.3cf3bap-7f, 0x1.5cbae6p-10f};
  }
  static constexpr auto exp2_q11() {
    return std::array{0x1.ffffe8p-1f, 0x1.62e0dp-1f, 0x1.ec060cp-3f, 0x1.ca1ab6p-5f, 0x1.39e5e8p-7f};
  }
  static constexpr auto exp2_q8() { return std::array{0x1.fff692p-1f, 0x1.62f31ap-1f, 0x1.f0de1ap-3f, 0x1.c3f764p-5f}; }
  static constexpr float gate_lowest = -112, gate_highest = 42.9f, gate_shift = 64;
  static constexpr float gate_one = 0x1p-64f;
  // 2^(f / 32) for |f| <= 1/2, by the bits of the result, without its leading 1: 5.4e-8; ln(2) / 32, 6e-5 of it.
  static constexpr auto root_q24() { return std::array{0x1.62e584p-6f, 0x1.ebfbep-13f}; }
  static constexpr float root_q8 = 0x1.62e43p-6f;
  // log(1 + f) = f + f^2 l(f) for -1/4 <= f <= 1/2; 4.9e-9.
  static constexpr auto log_l() {
    return std::array{-0x1p-1f,       0x1.5555a4p-2f,  -0x1.000048p-2f, 0x1.99698ap-3f, -0x1.54eddep-3f,
                      0x1.28825ep-3f, -0x1.0d99b0p-3f, 0x1.ace4eep-4f,  -0x1.71bcaap-5f};
  }
  // -log(1 - erf(a)) = a + a s(a) for 0 <= a <= 3.95; 4.3e-9 of erf(a).
  static constexpr auto erf_s() {
    return std::array{0x1.06eba8p-3f,  0x1.45f300p-1f,   0x1.a4f8c4p-4f,  -0x1.39b7cep-6f, -0x1.636f4cp-13f,
                      0x1.b74238p-10f, -0x1.4e2518p-11f, 0x1.f27c4ep-14f, -0x1.3af10ep-17f};
  }
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
  static constexpr double log_smallest = -708.396418532264;
  static constexpr double erf_highest = 6;
  // 2^-54.7 of e^r - 1.
  static constexpr auto exp_q() {
    return std::array{0x1.0000000000005p-1,  0x1.5555555555539p-3,  0x1.555555555228ep-5,  0x1.111111111900ep-7,
                      0x1.6c16c17ee71f2p-10, 0x1.a01a0174fbc5bp-13, 0x1.a019a74a87471p-16, 0x1.71de882372904p-19,
                      0x1.28a2067f05181p-22, 0x1.ae6bae8c28464p-26};
  }
  // 2^-53.7 of 2^f, without its leading 1.
  static constexpr auto exp2_q24() {
    return std::array{0x1.62e42fefa39efp-1,  0x1.ebfbdff82c593p-3,  0x1.c6b08d7049f59p-5,  0x1.3b2ab6fba22dp-7,
                      0x1.5d87fe78f1297p-10, 0x1.430913093ed6ap-13, 0x1.ffcbfaf7005e6p-17, 0x1.62bfd3c80344fp-20,
                      0x1.b527e93b464e8p-24, 0x1.e608ae304b5aep-28, 0x1.e58be0cd679ccp-32};
  }
  static constexpr double gate_lowest = -765, gate_highest = 350, gate_shift = 512;
  static constexpr double gate_one = 0x1p-512;
  // log(1 + f) = 2 s + s z l(z), s = f / (2 + f), z = s^2 <= 0.0401; 2^-62.
  static constexpr auto log_l() {
    return std::array{0x1.555555555554fp-1, 0x1.999999999c187p-2, 0x1.24924921e32e6p-2, 0x1.c71c7490db620p-3,
                      0x1.745c4a959ba4cp-3, 0x1.3b35c9fc6a36ap-3, 0x1.0dcaf88055d85p-3, 0x1.1b85c84cf831fp-3};
  }
  // 2^-56 of erf(a), 0 <= a <= 5.95.
  static constexpr auto erf_s() {
    return std::array{0x1.06eba8214db69p-3,   0x1.45f306dc9c885p-1,   0x1.a4f4e2a1b466bp-4,   -0x1.39668594d53b9p-6,
                      -0x1.b6b684faa9ba3p-13, 0x1.bca674634e3ecp-10,  -0x1.3564fb2c916f8p-11, 0x1.b2017df009d83p-16,
                      0x1.0e9eadf92f115p-14,  -0x1.f3c43986a4291p-16, 0x1.d82bd473f9bfcp-19,  0x1.6870c5ca686abp-19,
                      -0x1.a8449c57eec98p-20, 0x1.a7985eac3e3cap-23,  0x1.f703f73b1195ep-23,  -0x1.a636c70f880acp-23,
                      0x1.8632b1ddbe6bap-24,  -0x1.03ee6d23562f3p-25, 0x1.0ac1c5d908600p-27,  -0x1.ada71366541cfp-30,
                      0x1.0edab50c9d954p-32,  -0x1.06b93a83ae2fbp-35, 0x1.7b16ff4d7a7b9p-39,  -0x1.7f50c0ce4b3e7p-43,
                      0x1.e4a6e25190dc3p-48,  -0x1.202f92631904cp-53};
  }
};

// c[0] + c[1] x + c[2] x^2 + ... by Horner's rule: fewest instructions. With four vectors in flight throughput is the
// limit, not latency.
template <class V, class A, std::size_t N>
TIGON_INLINE V polynomial(V x, const std::array<A, N>& c) {
  V p(c[N - 1]);
  [&]<std::size_t... I>(std::index_sequence<I...>)
      TIGON_LAMBDA { ((p = fma(p, x, V(c[N - 2 - I]))), ...); }(std::make_index_sequence<N - 1>());
  return p;
}

// c[0] + c[1] x + ... + x^N: its first step is a sum, which is cheaper than a product.
template <class V, class A, std::size_t N>
TIGON_INLINE V monic_polynomial(V x, const std::array<A, N>& c) {
  V p = x + V(c[N - 1]);
  [&]<std::size_t... I>(std::index_sequence<I...>)
      TIGON_LAMBDA { ((p = fma(p, x, V(c[N - 2 - I]))), ...); }(std::make_index_sequence<N - 1>());
  return p;
}

// The first in pairs, c[0] + c[1] x + x^2 (c[2] + c[3] x + ...): one product more in a chain half as long, for
// functions that are little more than the polynomial.
template <class V, class A, std::size_t N>
TIGON_INLINE V polynomial_in_pairs(V x, const std::array<A, N>& c) {
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
TIGON_INLINE V polynomial_of_minus(V y, const std::array<A, N>& c) {
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

// The numbers of a table of sixteen that the last bits of `index` select.
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

}  // namespace detail

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_MATH_POLYNOMIAL_HPP
