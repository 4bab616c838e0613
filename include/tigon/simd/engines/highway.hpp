// Lanes by Google Highway, statically dispatched: the widest target that the flags of the translation unit promise.
#ifndef TIGON_SIMD_ENGINES_HIGHWAY_HPP
#define TIGON_SIMD_ENGINES_HIGHWAY_HPP

#include <tigon/simd/engines/native.hpp>
#include <tigon/simd/engines/pairs.hpp>
#include <tigon/simd/engines/vectors.hpp>

// Highway's defaults that do not fit, changed before it is included. It uses an x86 target only where the flags have
// more than tigon needs: AES, which x86-64-v2, v3 and v4 lack, and BMI2, FMA and F16C, which -mavx2 lacks. Highway
// 1.0.3 does not compile with the flags of current servers without the DL target. Debug builds call into the library.
#if defined(HWY_TARGET)
#define TIGON_HIGHWAY_CAME_FIRST 1
#else
#define TIGON_HIGHWAY_CAME_FIRST 0
#endif
#if defined(__SSE4_1__) && !(defined(__PCLMUL__) && defined(__AES__)) && !defined(HWY_DISABLE_PCLMUL_AES)
#define HWY_DISABLE_PCLMUL_AES
#endif
#if defined(__AVX2__) && !(defined(__BMI2__) && defined(__FMA__)) && !defined(HWY_DISABLE_BMI2_FMA)
#define HWY_DISABLE_BMI2_FMA
#endif
#if defined(__AVX2__) && !defined(__F16C__) && !defined(HWY_DISABLE_F16C)
#define HWY_DISABLE_F16C
#endif
#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif
#ifndef HWY_IS_DEBUG_BUILD
#define HWY_IS_DEBUG_BUILD 0
#endif
#if defined(__riscv_vector) && !defined(HWY_DISABLED_TARGETS)
#define HWY_DISABLED_TARGETS HWY_RVV  // written for intrinsics of other names than those of today's compilers
#endif
#include <hwy/highway.h>

#if HWY_TARGET != HWY_STATIC_TARGET
#error "tigon: <hwy/foreach_target.h> compiles this file for each target; include tigon behind #if HWY_ONCE"
#include <the_error_above_ends_compilation>
#endif

#if defined(__x86_64__)
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define TIGON_HIGHWAY_WIDEST HWY_AVX3
#define TIGON_HIGHWAY_WIDEST_NAME "AVX-512"
#elif defined(__AVX2__)
#define TIGON_HIGHWAY_WIDEST HWY_AVX2
#define TIGON_HIGHWAY_WIDEST_NAME "AVX2"
#endif
#endif
#if defined(TIGON_HIGHWAY_WIDEST)
#if TIGON_HIGHWAY_CAME_FIRST
static_assert(HWY_TARGET <= TIGON_HIGHWAY_WIDEST,
              "tigon: the flags promise " TIGON_HIGHWAY_WIDEST_NAME
              " but <hwy/highway.h>, included before tigon, was configured for less; include tigon first, or compile "
              "with -DHWY_DISABLE_PCLMUL_AES -DHWY_DISABLE_BMI2_FMA -DHWY_DISABLE_F16C");
#else
static_assert(HWY_TARGET <= TIGON_HIGHWAY_WIDEST,
              "tigon: the flags promise " TIGON_HIGHWAY_WIDEST_NAME
              " but Highway was configured for less; remove HWY_COMPILE_ONLY_SCALAR, HWY_COMPILE_ONLY_EMU128, "
              "HWY_DISABLED_TARGETS, HWY_BASELINE_TARGETS and HWY_BROKEN_TARGETS");
#endif
#endif

// Where Highway has no registers, or registers that cannot be members of a class because their size is not known (SVE,
// RVV), or where g++ cannot inline its functions (Highway 1.0.3 on 64-bit ARM without +crypto): the compiler's
// own vectors.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_RVV
#define TIGON_HIGHWAY_LANES 0
#elif HWY_TARGET == HWY_SVE || HWY_TARGET == HWY_SVE2 || HWY_TARGET == HWY_SVE_256 || HWY_TARGET == HWY_SVE2_128
#define TIGON_HIGHWAY_LANES 0
#elif defined(__aarch64__) && !defined(__clang__) && !defined(HWY_NEON_WITHOUT_AES) && !defined(__ARM_FEATURE_CRYPTO)
#define TIGON_HIGHWAY_LANES 0
#else
#define TIGON_HIGHWAY_LANES 1
#endif

namespace tigon::simd {
inline namespace TIGON_ABI {

struct highway {
  static constexpr std::string_view name = "highway";
  static constexpr std::string_view target =
#if !TIGON_HIGHWAY_LANES
      vectors::target;
#elif defined(__x86_64__)
      HWY_TARGET <= HWY_AVX3_DL ? "AVX3_DL"
      : HWY_TARGET <= HWY_AVX3  ? "AVX3"
      : HWY_TARGET <= HWY_AVX2  ? "AVX2"
      : HWY_TARGET <= HWY_SSE4  ? "SSE4"
      : HWY_TARGET <= HWY_SSSE3 ? "SSSE3"
                                : "SSE2";
#else
      "of this architecture";
#endif
  template <class A>
  struct lanes;
};

#if !TIGON_HIGHWAY_LANES
template <class A>
struct highway::lanes : vectors::lanes<A> {};
#else
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

  static TIGON_HOST_INLINE reg set(A value) { return hwy::HWY_NAMESPACE::Set(tag(), value); }
  static TIGON_HOST_INLINE reg iota() { return hwy::HWY_NAMESPACE::Iota(tag(), A(0)); }
  static TIGON_HOST_INLINE reg load(const A* p) { return hwy::HWY_NAMESPACE::LoadU(tag(), p); }
  static TIGON_HOST_INLINE void store(reg v, A* p) { hwy::HWY_NAMESPACE::StoreU(v, tag(), p); }

  static TIGON_HOST_INLINE reg add(reg a, reg b) { return hwy::HWY_NAMESPACE::Add(a, b); }
  static TIGON_HOST_INLINE reg sub(reg a, reg b) { return hwy::HWY_NAMESPACE::Sub(a, b); }
  static TIGON_HOST_INLINE reg mul(reg a, reg b) { return hwy::HWY_NAMESPACE::Mul(a, b); }
  static TIGON_HOST_INLINE reg div(reg a, reg b) { return hwy::HWY_NAMESPACE::Div(a, b); }
  static TIGON_HOST_INLINE reg neg(reg a) { return hwy::HWY_NAMESPACE::Neg(a); }
#if defined(__FMA__) && defined(HWY_DISABLE_BMI2_FMA)
  static TIGON_HOST_INLINE reg fma(reg a, reg b, reg c) { return reg{x86::fma(a.raw, b.raw, c.raw)}; }
  static TIGON_HOST_INLINE reg fnma(reg a, reg b, reg c) { return reg{x86::fnma(a.raw, b.raw, c.raw)}; }
#else
  static TIGON_HOST_INLINE reg fma(reg a, reg b, reg c) { return hwy::HWY_NAMESPACE::MulAdd(a, b, c); }
  static TIGON_HOST_INLINE reg fnma(reg a, reg b, reg c) { return hwy::HWY_NAMESPACE::NegMulAdd(a, b, c); }
#endif
  // Not Highway's own, which on other targets than x86 lose a NaN in b.
  static TIGON_HOST_INLINE reg min(reg a, reg b) {
    if constexpr (requires { native::min(a.raw, b.raw); })
      return reg{native::min(a.raw, b.raw)};
    else
      return select(lt(a, b), a, b);
  }
  static TIGON_HOST_INLINE reg max(reg a, reg b) {
    if constexpr (requires { native::max(a.raw, b.raw); })
      return reg{native::max(a.raw, b.raw)};
    else
      return select(lt(b, a), a, b);
  }
  static TIGON_HOST_INLINE reg abs(reg a) { return hwy::HWY_NAMESPACE::Abs(a); }
  static TIGON_HOST_INLINE reg sqrt(reg a) { return hwy::HWY_NAMESPACE::Sqrt(a); }
  static TIGON_HOST_INLINE reg round(reg a) { return hwy::HWY_NAMESPACE::Round(a); }

  static TIGON_HOST_INLINE mask lt(reg a, reg b) { return hwy::HWY_NAMESPACE::Lt(a, b); }
  static TIGON_HOST_INLINE mask le(reg a, reg b) { return hwy::HWY_NAMESPACE::Le(a, b); }
  static TIGON_HOST_INLINE mask eq(reg a, reg b) { return hwy::HWY_NAMESPACE::Eq(a, b); }
  static TIGON_HOST_INLINE mask both(mask a, mask b) { return hwy::HWY_NAMESPACE::And(a, b); }
  static TIGON_HOST_INLINE mask either(mask a, mask b) { return hwy::HWY_NAMESPACE::Or(a, b); }
  static TIGON_HOST_INLINE mask no(mask a) { return hwy::HWY_NAMESPACE::Not(a); }
  static TIGON_HOST_INLINE reg select(mask m, reg a, reg b) { return hwy::HWY_NAMESPACE::IfThenElse(m, a, b); }

  static TIGON_HOST_INLINE reg bit_and(reg a, reg b) { return hwy::HWY_NAMESPACE::And(a, b); }
  static TIGON_HOST_INLINE reg bit_or(reg a, reg b) { return hwy::HWY_NAMESPACE::Or(a, b); }
  static TIGON_HOST_INLINE reg bit_xor(reg a, reg b) { return hwy::HWY_NAMESPACE::Xor(a, b); }
  template <int K>
  static TIGON_HOST_INLINE reg shl(reg a) {
    namespace hn = hwy::HWY_NAMESPACE;
    return hn::BitCast(tag(), hn::ShiftLeft<K>(hn::BitCast(bits_tag(), a)));
  }
  template <int K>
  static TIGON_HOST_INLINE reg shr(reg a) {
    namespace hn = hwy::HWY_NAMESPACE;
    return hn::BitCast(tag(), hn::ShiftRight<K>(hn::BitCast(bits_tag(), a)));
  }

  template <std::size_t Bit>
  static TIGON_HOST_INLINE reg exchange(reg a) {
    return reg{pairs::exchange<Bit, size>(a.raw)};
  }
  static TIGON_HOST_INLINE reg swap_pairs(reg a) { return hwy::HWY_NAMESPACE::Reverse2(tag(), a); }
  static TIGON_HOST_INLINE reg dup_even(reg a) { return hwy::HWY_NAMESPACE::DupEven(a); }
  static TIGON_HOST_INLINE reg dup_odd(reg a) { return hwy::HWY_NAMESPACE::DupOdd(a); }
  static TIGON_HOST_INLINE reg even_lanes(reg a, reg b) { return reg{pairs::every_second<0, size>(a.raw, b.raw)}; }
  static TIGON_HOST_INLINE reg odd_lanes(reg a, reg b) { return reg{pairs::every_second<1, size>(a.raw, b.raw)}; }
  static TIGON_HOST_INLINE reg zip_low(reg a, reg b) { return reg{pairs::zip<0, size>(a.raw, b.raw)}; }
  static TIGON_HOST_INLINE reg zip_high(reg a, reg b) { return reg{pairs::zip<size / 2, size>(a.raw, b.raw)}; }

  static TIGON_HOST_INLINE A sum(reg a) {
    namespace hn = hwy::HWY_NAMESPACE;
    return hn::GetLane(hn::SumOfLanes(tag(), a));
  }

#if defined(TIGON_X86) && HWY_TARGET <= HWY_AVX3
  static TIGON_HOST_INLINE mask not_above(reg a, reg b) { return mask{x86::not_above(a.raw, b.raw)}; }
#endif
#if defined(TIGON_X86) && HWY_TARGET <= HWY_SSSE3
  static TIGON_HOST_INLINE auto raw(reg a) { return a.raw; }
  template <class R>
  static TIGON_HOST_INLINE reg from_raw(R r) {
    return reg{r};
  }
#endif
};
#endif

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_ENGINES_HIGHWAY_HPP
