// The engine of a GPU's thread: one lane. A driver gives a thread several numbers at a time
// (backends/cuda/elements.hpp).
#ifndef TIGON_BACKENDS_CUDA_LANES_HPP
#define TIGON_BACKENDS_CUDA_LANES_HPP

#include <tigon/backends/cuda/device_code.hpp>
// Behind it: it says how these are compiled.
#include <tigon/simd/engines/scalar.hpp>

#include <cmath>

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

  /// e^x, within 1.5 ULP: 2^t of the GPU for t = x / ln 2, corrected by what t has lost to its rounding.
  static TIGON_INLINE float exp(float x) {
#if defined(__CUDA_ARCH__)
    const float t = x * log2e_high;
    if (!(t < 128.f && t >= -126.f)) return ::expf(x);
    const float p = power_of_two(t), lost = ::fmaf(x, log2e_high, -t) + x * log2e_low;
    return ::fmaf(p, lost * ln2, p);
#else
    return std::exp(x);
#endif
  }
  /// e^x for results of 16 bits: within 2e-6 of it for |x| <= 40; 0 where it is below 2^-126.
  static TIGON_INLINE float exp_rough(float x) {
#if defined(__CUDA_ARCH__)
    return power_of_two(x * log2e_high);
#else
    return std::exp(x);
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
  static TIGON_INLINE float power_of_two(float t) {
#if defined(__CUDA_ARCH__)
    float p;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(t));
    return p;
#else
    return std::exp2(t);
#endif
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_BACKENDS_CUDA_LANES_HPP
