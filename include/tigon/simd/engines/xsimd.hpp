// Lanes by xsimd: its best architecture for the flags of the translation unit.
#ifndef TIGON_SIMD_ENGINES_XSIMD_HPP
#define TIGON_SIMD_ENGINES_XSIMD_HPP

#include <tigon/simd/engines/native.hpp>
#include <tigon/simd/engines/pairs.hpp>

#include <xsimd/xsimd.hpp>

#if XSIMD_VERSION_MAJOR * 100 + XSIMD_VERSION_MINOR < 801
#error "tigon: xsimd 8.1 or newer is needed"
#include <the_error_above_ends_compilation>
#endif

namespace tigon::simd {
inline namespace TIGON_ABI {

struct xsimd {
  static constexpr std::string_view name = "xsimd";
  static constexpr std::string_view target = ::xsimd::default_arch::name();
  template <class A>
  struct lanes;
};

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
static_assert(::xsimd::batch<float>::size == 16, "tigon: the flags promise AVX-512 but xsimd was configured for less");
#elif defined(__AVX2__)
static_assert(::xsimd::batch<float>::size >= 8, "tigon: the flags promise AVX2 but xsimd was configured for less");
#endif

template <class A>
struct xsimd::lanes {
 private:
  using word = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;

 public:
  using reg = ::xsimd::batch<A>;
  using mask = ::xsimd::batch_bool<A>;
  static constexpr std::size_t size = reg::size;

  static TIGON_HOST_INLINE reg set(A value) { return reg(value); }
  static TIGON_HOST_INLINE reg iota() {
    alignas(64) A buffer[size];
    for (std::size_t i = 0; i < size; ++i) buffer[i] = static_cast<A>(i);
    return load(buffer);
  }
  static TIGON_HOST_INLINE reg load(const A* p) { return reg::load_unaligned(p); }
  static TIGON_HOST_INLINE void store(reg v, A* p) { v.store_unaligned(p); }

  static TIGON_HOST_INLINE reg add(reg a, reg b) { return a + b; }
  static TIGON_HOST_INLINE reg sub(reg a, reg b) { return a - b; }
  static TIGON_HOST_INLINE reg mul(reg a, reg b) { return a * b; }
  // On 64-bit ARM xsimd's division and square root of f32 are estimates.
  static TIGON_HOST_INLINE reg div(reg a, reg b) {
    if constexpr (requires { native::div(a.data, b.data); })
      return reg(native::div(a.data, b.data));
    else
      return a / b;
  }
  static TIGON_HOST_INLINE reg neg(reg a) { return a ^ reg(A(-0.0)); }  // xsimd 8 subtracts from 0 on AVX-512
  // xsimd 8 multiplies and adds with two roundings on AVX-512, and subtracts so on ARM.
  static TIGON_HOST_INLINE reg fma(reg a, reg b, reg c) {
    if constexpr (requires { native::fma(a.data, b.data, c.data); })
      return reg(native::fma(a.data, b.data, c.data));
    else
      return ::xsimd::fma(a, b, c);
  }
  static TIGON_HOST_INLINE reg fnma(reg a, reg b, reg c) {
    if constexpr (requires { native::fnma(a.data, b.data, c.data); })
      return reg(native::fnma(a.data, b.data, c.data));
    else
      return ::xsimd::fnma(a, b, c);
  }
  // Where one operand is a NaN, xsimd 8 keeps b on x86, and later versions keep a.
  static TIGON_HOST_INLINE reg min(reg a, reg b) {
    if constexpr (requires { native::min(a.data, b.data); })
      return reg(native::min(a.data, b.data));
    else
      return select(a < b, a, b);
  }
  static TIGON_HOST_INLINE reg max(reg a, reg b) {
    if constexpr (requires { native::max(a.data, b.data); })
      return reg(native::max(a.data, b.data));
    else
      return select(b < a, a, b);
  }
  static TIGON_HOST_INLINE reg abs(reg a) { return ::xsimd::abs(a); }
  static TIGON_HOST_INLINE reg sqrt(reg a) {
    if constexpr (requires { native::square_root(a.data); })
      return reg(native::square_root(a.data));
    else
      return ::xsimd::sqrt(a);
  }
  static TIGON_HOST_INLINE reg round(reg a) { return ::xsimd::nearbyint(a); }

  static TIGON_HOST_INLINE mask lt(reg a, reg b) { return a < b; }
  static TIGON_HOST_INLINE mask le(reg a, reg b) { return a <= b; }
  static TIGON_HOST_INLINE mask eq(reg a, reg b) { return a == b; }
  static TIGON_HOST_INLINE mask both(mask a, mask b) { return a & b; }
  static TIGON_HOST_INLINE mask either(mask a, mask b) { return a | b; }
  static TIGON_HOST_INLINE mask no(mask a) { return ~a; }
  static TIGON_HOST_INLINE reg select(mask m, reg a, reg b) { return ::xsimd::select(m, a, b); }

  static TIGON_HOST_INLINE reg bit_and(reg a, reg b) { return a & b; }
  static TIGON_HOST_INLINE reg bit_or(reg a, reg b) { return a | b; }
  static TIGON_HOST_INLINE reg bit_xor(reg a, reg b) { return a ^ b; }
  template <int K>
  static TIGON_HOST_INLINE reg shl(reg a) {
    return reg(native::on_words<word>(a.data, [](auto bits) { return bits << K; }));
  }
  template <int K>
  static TIGON_HOST_INLINE reg shr(reg a) {
    return reg(native::on_words<word>(a.data, [](auto bits) { return bits >> K; }));
  }

  // xsimd 8 permutes across the whole register, with a vector of indices.
  template <std::size_t Bit>
  static TIGON_HOST_INLINE reg exchange(reg a) {
    return reg(pairs::exchange<Bit, size>(a.data));
  }
  static TIGON_HOST_INLINE reg swap_pairs(reg a) { return exchange<1>(a); }
  static TIGON_HOST_INLINE reg dup_even(reg a) { return reg(pairs::dup<0, size>(a.data)); }
  static TIGON_HOST_INLINE reg dup_odd(reg a) { return reg(pairs::dup<1, size>(a.data)); }
  static TIGON_HOST_INLINE reg even_lanes(reg a, reg b) { return reg(pairs::every_second<0, size>(a.data, b.data)); }
  static TIGON_HOST_INLINE reg odd_lanes(reg a, reg b) { return reg(pairs::every_second<1, size>(a.data, b.data)); }
  static TIGON_HOST_INLINE reg zip_low(reg a, reg b) { return reg(pairs::zip<0, size>(a.data, b.data)); }
  static TIGON_HOST_INLINE reg zip_high(reg a, reg b) { return reg(pairs::zip<size / 2, size>(a.data, b.data)); }

  // Not by xsimd's own, whose order and name depend on the version: in the order of xsimd 8, which adds neighbours last
  // where it has an instruction for them.
  template <std::size_t Bit = size / 2>
  static TIGON_HOST_INLINE A sum(reg a) {
#if defined(__SSE2__) && !defined(__SSE3__)
    constexpr bool neighbours = false;
#else
    constexpr bool neighbours = true;
#endif
    if constexpr (Bit == 2 && sizeof(A) == 4 && neighbours) {
      const reg pairs = a + exchange<1>(a), all = pairs + exchange<2>(pairs);
      return all.data[0];
    } else {
      const reg half = a + exchange<Bit>(a);
      if constexpr (Bit == 1)
        return half.data[0];
      else
        return sum<Bit / 2>(half);
    }
  }

#if defined(TIGON_X86)
  static TIGON_HOST_INLINE auto raw(reg a) { return a.data; }
  template <class R>
  static TIGON_HOST_INLINE reg from_raw(R r) {
    return reg(r);
  }
#endif
};

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_ENGINES_XSIMD_HPP
