// Instructions about whose results the libraries do not agree, nor their versions: minima and maxima, and on 64-bit ARM
// division, square root and fused products. On raw registers; a register without an overload takes the portable way.
#ifndef TIGON_SIMD_ENGINES_NATIVE_HPP
#define TIGON_SIMD_ENGINES_NATIVE_HPP

#include <tigon/simd/engines/x86.hpp>

#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace native {

// So that every name exists on every target.
struct none {};
template <class... T>
void min(none, T...);
template <class... T>
void max(none, T...);
template <class... T>
void div(none, T...);
using x86::fma, x86::fnma, x86::square_root;

// x86: a < b ? a : b and a > b ? a : b, lane by lane.
#if defined(__SSE2__)
TIGON_HOST_INLINE __m128 min(__m128 a, __m128 b) { return _mm_min_ps(a, b); }
TIGON_HOST_INLINE __m128d min(__m128d a, __m128d b) { return _mm_min_pd(a, b); }
TIGON_HOST_INLINE __m128 max(__m128 a, __m128 b) { return _mm_max_ps(a, b); }
TIGON_HOST_INLINE __m128d max(__m128d a, __m128d b) { return _mm_max_pd(a, b); }
#endif
#if defined(__AVX__)
TIGON_HOST_INLINE __m256 min(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
TIGON_HOST_INLINE __m256d min(__m256d a, __m256d b) { return _mm256_min_pd(a, b); }
TIGON_HOST_INLINE __m256 max(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
TIGON_HOST_INLINE __m256d max(__m256d a, __m256d b) { return _mm256_max_pd(a, b); }
#endif
#if defined(__AVX512F__)
TIGON_HOST_INLINE __m512 min(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
TIGON_HOST_INLINE __m512d min(__m512d a, __m512d b) { return _mm512_min_pd(a, b); }
TIGON_HOST_INLINE __m512 max(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
TIGON_HOST_INLINE __m512d max(__m512d a, __m512d b) { return _mm512_max_pd(a, b); }
#endif

// ARM: FMIN and FMAX, which keep a NaN of either operand, not FMINNM and FMAXNM, which prefer numbers.
#if defined(__ARM_NEON)
TIGON_HOST_INLINE float32x4_t min(float32x4_t a, float32x4_t b) { return vminq_f32(a, b); }
TIGON_HOST_INLINE float32x4_t max(float32x4_t a, float32x4_t b) { return vmaxq_f32(a, b); }
#endif
#if defined(__aarch64__)
TIGON_HOST_INLINE float64x2_t min(float64x2_t a, float64x2_t b) { return vminq_f64(a, b); }
TIGON_HOST_INLINE float64x2_t max(float64x2_t a, float64x2_t b) { return vmaxq_f64(a, b); }
TIGON_HOST_INLINE float32x4_t div(float32x4_t a, float32x4_t b) { return vdivq_f32(a, b); }
TIGON_HOST_INLINE float64x2_t div(float64x2_t a, float64x2_t b) { return vdivq_f64(a, b); }
TIGON_HOST_INLINE float32x4_t square_root(float32x4_t a) { return vsqrtq_f32(a); }
TIGON_HOST_INLINE float64x2_t square_root(float64x2_t a) { return vsqrtq_f64(a); }
/// a * b + c and c - a * b.
TIGON_HOST_INLINE float32x4_t fma(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }
TIGON_HOST_INLINE float64x2_t fma(float64x2_t a, float64x2_t b, float64x2_t c) { return vfmaq_f64(c, a, b); }
TIGON_HOST_INLINE float32x4_t fnma(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmsq_f32(c, a, b); }
TIGON_HOST_INLINE float64x2_t fnma(float64x2_t a, float64x2_t b, float64x2_t c) { return vfmsq_f64(c, a, b); }
#endif

/// f on the lanes of R as unsigned whole numbers: the bits of a register by the compiler's own vectors.
template <class Word, class R, class F>
TIGON_HOST_INLINE R on_words(R r, F f) {
  typedef Word words __attribute__((vector_size(sizeof(R))));
  return (R)(f((words)r));
}

}  // namespace native
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_ENGINES_NATIVE_HPP
