// Lanes by the compiler's own vectors of 128 bits, for targets on which a library has no registers, or none of a fixed
// size: SSE2 on x86-64 without flags, NEON under flags of SVE, and what the compiler makes of such vectors elsewhere.
#ifndef TIGON_SIMD_ENGINES_VECTORS_HPP
#define TIGON_SIMD_ENGINES_VECTORS_HPP

#include <tigon/simd/engines/native.hpp>
#include <tigon/simd/engines/pairs.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace vectors {

// By the names that native.hpp knows, where it has functions of them.
template <class A>
struct of_128_bits {
  typedef A type __attribute__((vector_size(16)));
};
#if defined(__SSE2__)
template <>
struct of_128_bits<float> {
  using type = __m128;
};
template <>
struct of_128_bits<double> {
  using type = __m128d;
};
#elif defined(__aarch64__)
template <>
struct of_128_bits<float> {
  using type = float32x4_t;
};
template <>
struct of_128_bits<double> {
  using type = float64x2_t;
};
#endif

inline constexpr std::string_view target =
#if defined(__SSE2__)
    "SSE2";
#elif defined(__aarch64__)
    "NEON";
#else
    "128 bit";
#endif

/// The functions of an engine, as in scalar.hpp.
template <class A>
struct lanes {
 private:
  using word = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  typedef word words __attribute__((vector_size(16)));

 public:
  using reg = typename of_128_bits<A>::type;
  using mask = words;  // all bits of a lane are set where the comparison holds
  static constexpr std::size_t size = 16 / sizeof(A);

  static TIGON_HOST_INLINE reg set(A value) {
    if constexpr (size == 4)
      return reg{value, value, value, value};
    else
      return reg{value, value};
  }
  static TIGON_HOST_INLINE reg iota() {
    if constexpr (size == 4)
      return reg{A(0), A(1), A(2), A(3)};
    else
      return reg{A(0), A(1)};
  }
  static TIGON_HOST_INLINE reg load(const A* p) {
    reg v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static TIGON_HOST_INLINE void store(reg v, A* p) { std::memcpy(p, &v, sizeof v); }

  static TIGON_HOST_INLINE reg add(reg a, reg b) { return a + b; }
  static TIGON_HOST_INLINE reg sub(reg a, reg b) { return a - b; }
  static TIGON_HOST_INLINE reg mul(reg a, reg b) { return a * b; }
  static TIGON_HOST_INLINE reg div(reg a, reg b) { return a / b; }
  static TIGON_HOST_INLINE reg neg(reg a) { return -a; }
  static TIGON_HOST_INLINE reg fma(reg a, reg b, reg c) {
    if constexpr (requires { native::fma(a, b, c); })
      return native::fma(a, b, c);
    else
#if defined(__riscv_flen)
      return each(a, [&](A x, std::size_t i) TIGON_LAMBDA { return std::fma(x, b[i], c[i]); });
#else
      return a * b + c;
#endif
  }
  static TIGON_HOST_INLINE reg fnma(reg a, reg b, reg c) {
    if constexpr (requires { native::fnma(a, b, c); })
      return native::fnma(a, b, c);
    else
      return fma(-a, b, c);
  }
  static TIGON_HOST_INLINE reg min(reg a, reg b) {
    if constexpr (requires { native::min(a, b); })
      return native::min(a, b);
    else
      return select(lt(a, b), a, b);
  }
  static TIGON_HOST_INLINE reg max(reg a, reg b) {
    if constexpr (requires { native::max(a, b); })
      return native::max(a, b);
    else
      return select(lt(b, a), a, b);
  }
  static TIGON_HOST_INLINE reg abs(reg a) { return (reg)((words)a & ~(words)set(A(-0.0))); }
  static TIGON_HOST_INLINE reg sqrt(reg a) {
    if constexpr (requires { native::square_root(a); })
      return native::square_root(a);
    else
      return each(a, [](A x, std::size_t) TIGON_LAMBDA { return std::sqrt(x); });
  }
  /// Numbers of this magnitude have no fraction: adding it rounds to a whole number. Larger ones, and NaN, stay.
  static TIGON_HOST_INLINE reg round(reg a) {
    const reg whole = set(A(1) / std::numeric_limits<A>::epsilon()), sign = bit_and(a, set(A(-0.0)));
    const reg magnitude = abs(a);
    return select(lt(magnitude, whole), bit_or((magnitude + whole) - whole, sign), a);
  }

  static TIGON_HOST_INLINE mask lt(reg a, reg b) { return (mask)(a < b); }
  static TIGON_HOST_INLINE mask le(reg a, reg b) { return (mask)(a <= b); }
  static TIGON_HOST_INLINE mask eq(reg a, reg b) { return (mask)(a == b); }
  static TIGON_HOST_INLINE mask both(mask a, mask b) { return a & b; }
  static TIGON_HOST_INLINE mask either(mask a, mask b) { return a | b; }
  static TIGON_HOST_INLINE mask no(mask a) { return ~a; }
  static TIGON_HOST_INLINE reg select(mask m, reg a, reg b) { return (reg)(((words)a & m) | ((words)b & ~m)); }

  static TIGON_HOST_INLINE reg bit_and(reg a, reg b) { return (reg)((words)a & (words)b); }
  static TIGON_HOST_INLINE reg bit_or(reg a, reg b) { return (reg)((words)a | (words)b); }
  static TIGON_HOST_INLINE reg bit_xor(reg a, reg b) { return (reg)((words)a ^ (words)b); }
  template <int K>
  static TIGON_HOST_INLINE reg shl(reg a) {
    return (reg)((words)a << K);
  }
  template <int K>
  static TIGON_HOST_INLINE reg shr(reg a) {
    return (reg)((words)a >> K);
  }

  template <std::size_t Bit>
  static TIGON_HOST_INLINE reg exchange(reg a) {
    return pairs::exchange<Bit, size>(a);
  }
  static TIGON_HOST_INLINE reg swap_pairs(reg a) { return pairs::exchange<1, size>(a); }
  static TIGON_HOST_INLINE reg dup_even(reg a) { return pairs::dup<0, size>(a); }
  static TIGON_HOST_INLINE reg dup_odd(reg a) { return pairs::dup<1, size>(a); }
  static TIGON_HOST_INLINE reg even_lanes(reg a, reg b) { return pairs::every_second<0, size>(a, b); }
  static TIGON_HOST_INLINE reg odd_lanes(reg a, reg b) { return pairs::every_second<1, size>(a, b); }
  static TIGON_HOST_INLINE reg zip_low(reg a, reg b) { return pairs::zip<0, size>(a, b); }
  static TIGON_HOST_INLINE reg zip_high(reg a, reg b) { return pairs::zip<size / 2, size>(a, b); }

  static TIGON_HOST_INLINE A sum(reg a) {
    if constexpr (size == 4) a = a + exchange<2>(a);
    return a[0] + a[1];
  }

#if defined(TIGON_X86)
  static TIGON_HOST_INLINE auto raw(reg a) { return a; }
  template <class R>
  static TIGON_HOST_INLINE reg from_raw(R r) {
    return r;
  }
#endif

 private:
  template <class F>
  static TIGON_HOST_INLINE reg each(reg a, F f) {
    for (std::size_t i = 0; i < size; ++i) a[i] = f(a[i], i);
    return a;
  }
};

}  // namespace vectors
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_ENGINES_VECTORS_HPP
