// Lanes by Google Highway, statically dispatched: the widest target that the flags of the translation unit promise.
#ifndef TIGON_SIMD_ENGINES_HIGHWAY_HPP
#define TIGON_SIMD_ENGINES_HIGHWAY_HPP

#include <tigon/simd/engines/native.hpp>
#include <tigon/simd/engines/pairs.hpp>

// Works around three defects of Highway 1.0.3, before it is included. It refuses AVX2 and AVX-512 without the AES
// flags, which x86-64-v3 and v4 lack. Flags of current servers do not compile without the DL target. Debug builds call
// into the shared library.
#if defined(__AVX2__) && !(defined(__PCLMUL__) && defined(__AES__)) && !defined(HWY_DISABLE_PCLMUL_AES)
#define HWY_DISABLE_PCLMUL_AES
#endif
#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif
#ifndef HWY_IS_DEBUG_BUILD
#define HWY_IS_DEBUG_BUILD 0
#endif
#include <hwy/highway.h>

#if defined(__x86_64__)
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#if HWY_TARGET > HWY_AVX3
#error "tigon: the flags promise AVX-512 but Highway was configured for less; include tigon before <hwy/highway.h>"
#endif
#elif defined(__AVX2__) && defined(__FMA__)
#if HWY_TARGET > HWY_AVX2
#error "tigon: the flags promise AVX2 but Highway was configured for less; include tigon before <hwy/highway.h>"
#endif
#endif
#endif

namespace tigon::simd {
inline namespace TIGON_ABI {

struct highway {
  static constexpr std::string_view name = "highway";
  static constexpr std::string_view target =
#if defined(__x86_64__)
      HWY_TARGET <= HWY_AVX3_DL ? "AVX3_DL"
      : HWY_TARGET <= HWY_AVX3  ? "AVX3"
      : HWY_TARGET <= HWY_AVX2  ? "AVX2"
      : HWY_TARGET <= HWY_SSE4  ? "SSE4"
      : HWY_TARGET <= HWY_SSSE3 ? "SSSE3"
                                : "EMU128 or SCALAR";
#else
      "of this architecture";
#endif
  template <class A>
  struct lanes;
};

template <class A>
struct highway::lanes {
 private:
  using tag = hwy::HWY_NAMESPACE::ScalableTag<A>;
  using bits = hwy::MakeUnsigned<A>;
  using bits_tag = hwy::HWY_NAMESPACE::Rebind<bits, tag>;

 public:
  using reg = hwy::HWY_NAMESPACE::Vec<tag>;
  using mask = hwy::HWY_NAMESPACE::Mask<tag>;
  static constexpr std::size_t size = HWY_LANES(A);

  static TIGON_INLINE reg set(A value) { return hwy::HWY_NAMESPACE::Set(tag(), value); }
  static TIGON_INLINE reg iota() { return hwy::HWY_NAMESPACE::Iota(tag(), A(0)); }
  static TIGON_INLINE reg load(const A* p) { return hwy::HWY_NAMESPACE::LoadU(tag(), p); }
  static TIGON_INLINE void store(reg v, A* p) { hwy::HWY_NAMESPACE::StoreU(v, tag(), p); }

  static TIGON_INLINE reg add(reg a, reg b) { return hwy::HWY_NAMESPACE::Add(a, b); }
  static TIGON_INLINE reg sub(reg a, reg b) { return hwy::HWY_NAMESPACE::Sub(a, b); }
  static TIGON_INLINE reg mul(reg a, reg b) { return hwy::HWY_NAMESPACE::Mul(a, b); }
  static TIGON_INLINE reg div(reg a, reg b) { return hwy::HWY_NAMESPACE::Div(a, b); }
  static TIGON_INLINE reg neg(reg a) { return hwy::HWY_NAMESPACE::Neg(a); }
  static TIGON_INLINE reg fma(reg a, reg b, reg c) { return hwy::HWY_NAMESPACE::MulAdd(a, b, c); }
  static TIGON_INLINE reg fnma(reg a, reg b, reg c) { return hwy::HWY_NAMESPACE::NegMulAdd(a, b, c); }
  // Not Highway's own, which on other targets than x86 lose a NaN in b.
  static TIGON_INLINE reg min(reg a, reg b) {
    if constexpr (requires { native::min(a.raw, b.raw); })
      return reg{native::min(a.raw, b.raw)};
    else
      return select(lt(a, b), a, b);
  }
  static TIGON_INLINE reg max(reg a, reg b) {
    if constexpr (requires { native::max(a.raw, b.raw); })
      return reg{native::max(a.raw, b.raw)};
    else
      return select(lt(b, a), a, b);
  }
  static TIGON_INLINE reg abs(reg a) { return hwy::HWY_NAMESPACE::Abs(a); }
  static TIGON_INLINE reg sqrt(reg a) { return hwy::HWY_NAMESPACE::Sqrt(a); }
  static TIGON_INLINE reg round(reg a) { return hwy::HWY_NAMESPACE::Round(a); }

  static TIGON_INLINE mask lt(reg a, reg b) { return hwy::HWY_NAMESPACE::Lt(a, b); }
  static TIGON_INLINE mask le(reg a, reg b) { return hwy::HWY_NAMESPACE::Le(a, b); }
  static TIGON_INLINE mask eq(reg a, reg b) { return hwy::HWY_NAMESPACE::Eq(a, b); }
  static TIGON_INLINE mask both(mask a, mask b) { return hwy::HWY_NAMESPACE::And(a, b); }
  static TIGON_INLINE mask either(mask a, mask b) { return hwy::HWY_NAMESPACE::Or(a, b); }
  static TIGON_INLINE mask no(mask a) { return hwy::HWY_NAMESPACE::Not(a); }
  static TIGON_INLINE reg select(mask m, reg a, reg b) { return hwy::HWY_NAMESPACE::IfThenElse(m, a, b); }

  static TIGON_INLINE reg bit_and(reg a, reg b) { return hwy::HWY_NAMESPACE::And(a, b); }
  static TIGON_INLINE reg bit_or(reg a, reg b) { return hwy::HWY_NAMESPACE::Or(a, b); }
  static TIGON_INLINE reg bit_xor(reg a, reg b) { return hwy::HWY_NAMESPACE::Xor(a, b); }
  template <int K>
  static TIGON_INLINE reg shl(reg a) {
    namespace hn = hwy::HWY_NAMESPACE;
    return hn::BitCast(tag(), hn::ShiftLeft<K>(hn::BitCast(bits_tag(), a)));
  }
  template <int K>
  static TIGON_INLINE reg shr(reg a) {
    namespace hn = hwy::HWY_NAMESPACE;
    return hn::BitCast(tag(), hn::ShiftRight<K>(hn::BitCast(bits_tag(), a)));
  }

#if HWY_TARGET != HWY_SCALAR
  template <std::size_t Bit>
  static TIGON_INLINE reg exchange(reg a) {
    return reg{pairs::exchange<Bit, size>(a.raw)};
  }
  static TIGON_INLINE reg swap_pairs(reg a) { return hwy::HWY_NAMESPACE::Reverse2(tag(), a); }
  static TIGON_INLINE reg dup_even(reg a) { return hwy::HWY_NAMESPACE::DupEven(a); }
  static TIGON_INLINE reg dup_odd(reg a) { return hwy::HWY_NAMESPACE::DupOdd(a); }
  static TIGON_INLINE reg even_lanes(reg a, reg b) { return reg{pairs::every_second<0, size>(a.raw, b.raw)}; }
  static TIGON_INLINE reg odd_lanes(reg a, reg b) { return reg{pairs::every_second<1, size>(a.raw, b.raw)}; }
  static TIGON_INLINE reg zip_low(reg a, reg b) { return reg{pairs::zip<0, size>(a.raw, b.raw)}; }
  static TIGON_INLINE reg zip_high(reg a, reg b) { return reg{pairs::zip<size / 2, size>(a.raw, b.raw)}; }
#endif

  static TIGON_INLINE A sum(reg a) {
    namespace hn = hwy::HWY_NAMESPACE;
    return hn::GetLane(hn::SumOfLanes(tag(), a));
  }

#if defined(TIGON_X86) && HWY_TARGET <= HWY_AVX3
  static TIGON_INLINE mask not_above(reg a, reg b) { return mask{x86::not_above(a.raw, b.raw)}; }
#endif
#if defined(TIGON_X86) && HWY_TARGET <= HWY_SSSE3
  static TIGON_INLINE auto raw(reg a) { return a.raw; }
  template <class R>
  static TIGON_INLINE reg from_raw(R r) {
    return reg{r};
  }
#endif
};

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_ENGINES_HIGHWAY_HPP
