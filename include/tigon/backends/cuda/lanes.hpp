// The engine of a GPU's thread: one lane. A driver gives a thread several numbers at a time
// (backends/cuda/elements.hpp).
#ifndef TIGON_BACKENDS_CUDA_LANES_HPP
#define TIGON_BACKENDS_CUDA_LANES_HPP

#include <tigon/backends/cuda/device_code.hpp>
// Behind it: it says how these are compiled.
#include <tigon/simd/engines/scalar.hpp>
#include <tigon/simd/math/exp_log.hpp>

#include <bit>
#include <cmath>
#include <cstdint>

namespace tigon::simd {
inline namespace TIGON_ABI {

struct cuda {
  static constexpr std::string_view name = "cuda";
  static constexpr std::string_view target = "cuda";
  template <class A>
  struct lanes;
};

template <class A>
struct cuda::lanes : scalar::lanes<A> {
  static TIGON_INLINE A fma(A a, A b, A c) { return ::fma(a, b, c); }
  static TIGON_INLINE A fnma(A a, A b, A c) { return ::fma(-a, b, c); }
};
template <>
struct cuda::lanes<float> : scalar::lanes<float> {
  static TIGON_INLINE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
  static TIGON_INLINE float fnma(float a, float b, float c) { return ::fmaf(-a, b, c); }

  /// e^x, within 2.1e-7 of it: 2^t of the GPU for t = x / ln 2, corrected by what t has lost to its rounding.
  static TIGON_INLINE float exp(float x) {
#if defined(__CUDA_ARCH__)
    const float t = x * log2e_high;
    if (!(t < 128.f && t >= -126.f)) return ::expf(x);
    return power_of(x, t, log2e_high, log2e_low);
#else
    return std::exp(x);
#endif
  }
  /// e^x for x <= 88, such as x - max: within 2.1e-7 of it; 0 where it is below 2^-126.
  static TIGON_INLINE float exp_nonpositive(float x) { return power_above(x, -88.f, log2e_high, log2e_low); }
  /// The same of factor x, where factor has f64's digits. `rough` is for results of 16 bits: within 2e-6 for
  /// |factor x| <= 40.
  struct exp_of_multiple {
    float high, low;  ///< factor log2 e
    float lowest;     ///< the power of what is less is 0
    explicit TIGON_INLINE exp_of_multiple(double factor) {
      const times_log2e<float> by(factor);
      high = by.high, low = by.low, lowest = factor > 88. / 3e38 ? static_cast<float>(-88 / factor) : -3e38f;
    }
    TIGON_INLINE float of(float x) const { return power_above(x, lowest, high, low); }
    TIGON_INLINE float rough(float x) const { return power_of_two(x * high); }
  };
  /// e^x for results of 16 bits: within 2e-6 of it for |x| <= 40; 0 where it is below 2^-126.
  static TIGON_INLINE float exp_rough(float x) {
#if defined(__CUDA_ARCH__)
    return power_of_two(x * log2e_high);
#else
    return std::exp(x);
#endif
  }
  /// x = 2^e (1 + f), f in [-1/4, 1/2), for positive finite x.
  struct parts {
    float e, f;
  };
  static TIGON_INLINE parts split(float x) {
    const bool is_subnormal = x < 0x1p-126f;
    const auto bits = std::bit_cast<std::int32_t>(is_subnormal ? x * 0x1p23f : x);
    const std::int32_t exponent = (bits - 0x3f400000) & ~0x7fffff;  // times 2^23; 0x3f400000 are the bits of 3/4
    return {::fmaf(static_cast<float>(exponent), 0x1p-23f, is_subnormal ? -23.f : 0.f),
            std::bit_cast<float>(bits - exponent) - 1.f};
  }
  /// log2(x) for results of 16 bits: within 2^-22 of it between 1/2 and 2.
  static TIGON_INLINE float log2_rough(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return std::log2(x);
#endif
  }
  /// tanh(x) for results of bf16: within 2^-11 of it.
  static TIGON_INLINE float tanh_rough(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return std::tanh(x);
#endif
  }
  /// 1 / x, within 1 ULP of it for normal numbers.
  static TIGON_INLINE float reciprocal_estimate(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1 / x;
#endif
  }

  /// factor times of(v) is e^(v - top), within 2e-6 of it for |v - top| <= 40: a product and a sum in one, and what top
  /// has lost to its rounding is in the factor.
  struct rough_exp_below {
    float minus, factor;
    explicit TIGON_INLINE rough_exp_below(float top) : minus(-(top * log2e_high)) {
      factor = power_of_two(-::fmaf(top, log2e_high, minus));
    }
    TIGON_INLINE float of(float v) const { return power_of_two(::fmaf(v, log2e_high, minus)); }
  };

 private:
  // log2 e = high + low.
  static constexpr float log2e_high = 1.44269504f, log2e_low = 1.92596303e-8f, ln2 = 0.693147182f;
  // 2^((high + low) x) for t, high x rounded.
  static TIGON_INLINE float power_of(float x, float t, float high, float low) {
    const float p = power_of_two(t), lost = ::fmaf(x, low, ::fmaf(x, high, -t));
    return ::fmaf(p, lost * ln2, p);
  }
  // The same; 0 below `lowest`, which is finite, so that t can be subtracted. NaN stays.
  static TIGON_INLINE float power_above(float x, float lowest, float high, float low) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(lowest));
#else
    const float y = x < lowest ? lowest : x;
#endif
    return power_of(y, y * high, high, low);
  }
  static TIGON_INLINE float power_of_two(float t) {
#if defined(__CUDA_ARCH__)
    float p;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(t));
    return p;
#else
    const float p = std::exp2(t);
    return p < 0x1p-126f ? 0 : p;
#endif
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_BACKENDS_CUDA_LANES_HPP
