// What the engines share on 64-bit ARM below their libraries: 16-bit storage, by the CPU's conversions where the flags
// have them. Nothing here is used on other architectures.
#ifndef TIGON_SIMD_ENGINES_ARM_HPP
#define TIGON_SIMD_ENGINES_ARM_HPP

#include <tigon/core/element.hpp>

#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace arm {

TIGON_INLINE float32x4_t widened(const bfloat16* p) {
  uint16x4_t half;
  std::memcpy(&half, p, sizeof half);
  return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}
TIGON_INLINE float32x4_t widened(const float16* p) {
  float16x4_t half;
  std::memcpy(&half, p, sizeof half);
  return vcvt_f32_f16(half);
}

/// Rounded to nearest even; a NaN is made quiet.
TIGON_INLINE void narrowed(float32x4_t v, bfloat16* p) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  const bfloat16x4_t half = vcvt_bf16_f32(v);
#else
  const uint32x4_t u = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
  const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
  const uint16x4_t half = vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
#endif
  std::memcpy(static_cast<void*>(p), &half, sizeof half);
}
TIGON_INLINE void narrowed(float32x4_t v, float16* p) {
  const float16x4_t half = vcvt_f16_f32(v);
  std::memcpy(static_cast<void*>(p), &half, sizeof half);
}

/// Whether a V, in any engine, is a register of four f32, and T has 16 bits.
template <class V, class T>
inline constexpr bool converts = V::size == 4 && sizeof(V) == 16 && std::is_trivially_copyable_v<V> && sizeof(T) == 2 &&
                                 sizeof(typename V::value_type) == 4;

template <class V, class T>
TIGON_INLINE V load(const T* p) {
  const float32x4_t r = widened(p);
  V v(0.0f);
  std::memcpy(static_cast<void*>(&v), &r, sizeof v);
  return v;
}
template <class V, class T>
TIGON_INLINE void store(V v, T* p) {
  float32x4_t r;
  std::memcpy(&r, &v, sizeof r);
  narrowed(r, p);
}
/// n < 4 elements.
template <class V, class T>
TIGON_INLINE V load_n(const T* p, std::size_t n) {
  T buffer[4] = {};
  for (std::size_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load<V>(buffer);
}
template <class V, class T>
TIGON_INLINE void store_n(V v, T* p, std::size_t n) {
  T buffer[4];
  store(v, buffer);
  for (std::size_t i = 0; i < n; ++i) p[i] = buffer[i];
}

}  // namespace arm
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif

#endif  // TIGON_SIMD_ENGINES_ARM_HPP
