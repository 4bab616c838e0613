// The engine without SIMD: one lane, plain C++. What every other engine is compared with.
//
// An engine has a name, a target and, for f32 and f64, `lanes<A>`: registers, masks and the functions below. The names
// are the interface of every engine; vec.hpp gives them operators.
#ifndef TIGON_SIMD_ENGINES_SCALAR_HPP
#define TIGON_SIMD_ENGINES_SCALAR_HPP

#include <tigon/core/element.hpp>

#include <bit>
#include <cmath>
#include <limits>

namespace tigon::simd {
inline namespace TIGON_ABI {

struct scalar {
  static constexpr std::string_view name = "scalar";
  static constexpr std::string_view target = "scalar";
  template <class A>
  struct lanes;
};

template <class A>
struct scalar::lanes {
  using reg = A;
  using mask = bool;
  using bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  static constexpr std::size_t size = 1;

  static TIGON_INLINE reg set(A value) { return value; }
  static TIGON_INLINE reg iota() { return A(0); }
  template <element T>
  static TIGON_INLINE reg load(const T* p) {
    return static_cast<A>(*p);
  }
  template <element T>
  static TIGON_INLINE void store(reg v, T* p) {
    *p = static_cast<T>(v);
  }

  static TIGON_INLINE reg add(reg a, reg b) { return a + b; }
  static TIGON_INLINE reg sub(reg a, reg b) { return a - b; }
  static TIGON_INLINE reg mul(reg a, reg b) { return a * b; }
  static TIGON_INLINE reg div(reg a, reg b) { return a / b; }
  static TIGON_INLINE reg neg(reg a) { return -a; }
  static TIGON_INLINE reg fma(reg a, reg b, reg c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return std::fma(a, b, c);
#else
    return a * b + c;
#endif
  }
  static TIGON_INLINE reg fnma(reg a, reg b, reg c) { return fma(-a, b, c); }
  static TIGON_INLINE reg min(reg a, reg b) { return a < b ? a : b; }
  static TIGON_INLINE reg max(reg a, reg b) { return a > b ? a : b; }
  static TIGON_INLINE reg abs(reg a) { return std::fabs(a); }
  static TIGON_INLINE reg sqrt(reg a) { return std::sqrt(a); }
  static TIGON_INLINE reg round(reg a) { return std::nearbyint(a); }

  static TIGON_INLINE mask lt(reg a, reg b) { return a < b; }
  static TIGON_INLINE mask le(reg a, reg b) { return a <= b; }
  static TIGON_INLINE mask eq(reg a, reg b) { return a == b; }
  static TIGON_INLINE mask both(mask a, mask b) { return a && b; }
  static TIGON_INLINE mask either(mask a, mask b) { return a || b; }
  static TIGON_INLINE mask no(mask a) { return !a; }
  static TIGON_INLINE reg select(mask m, reg a, reg b) { return m ? a : b; }

  static TIGON_INLINE reg bit_and(reg a, reg b) { return cast(raw(a) & raw(b)); }
  static TIGON_INLINE reg bit_or(reg a, reg b) { return cast(raw(a) | raw(b)); }
  static TIGON_INLINE reg bit_xor(reg a, reg b) { return cast(raw(a) ^ raw(b)); }
  template <int K>
  static TIGON_INLINE reg shl(reg a) {
    return cast(raw(a) << K);
  }
  template <int K>
  static TIGON_INLINE reg shr(reg a) {
    return cast(raw(a) >> K);
  }

  static TIGON_INLINE A sum(reg a) { return a; }

 private:
  static TIGON_INLINE bits raw(reg a) { return std::bit_cast<bits>(a); }
  static TIGON_INLINE reg cast(bits b) { return std::bit_cast<reg>(b); }
};

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_ENGINES_SCALAR_HPP
