// What a GPU's thread loads and stores at a time: N elements that lie one behind the other, by accesses of up to 16
// bytes.
#ifndef TIGON_BACKENDS_CUDA_ELEMENTS_HPP
#define TIGON_BACKENDS_CUDA_ELEMENTS_HPP

#include <tigon/backends/cuda/device_code.hpp>
// Behind it: it says how these are compiled.
#include <tigon/core/element.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// Most bytes of one access.
inline constexpr std::size_t access_bytes = 16;

/// N elements as they lie in memory. They begin at a multiple of 16 bytes, or of all that they take.
template <int N, class T>
struct elements {
  static constexpr int bytes = N * static_cast<int>(sizeof(T)), words = bytes / 4;
  static_assert(bytes % 4 == 0 && (bytes < 16 || bytes % 16 == 0));
  std::uint32_t w[words];

  TIGON_DEVICE_INLINE void load(const T* p) {
    if constexpr (bytes >= 16) {
#pragma unroll
      for (int k = 0; k < words / 4; ++k) {
        const uint4 four = reinterpret_cast<const uint4*>(p)[k];
        w[4 * k] = four.x, w[4 * k + 1] = four.y, w[4 * k + 2] = four.z, w[4 * k + 3] = four.w;
      }
    } else if constexpr (bytes == 8) {
      const uint2 two = *reinterpret_cast<const uint2*>(p);
      w[0] = two.x, w[1] = two.y;
    } else {
      w[0] = *reinterpret_cast<const std::uint32_t*>(p);
    }
  }
  TIGON_DEVICE_INLINE void store(T* p) const {
    if constexpr (bytes >= 16) {
#pragma unroll
      for (int k = 0; k < words / 4; ++k)
        reinterpret_cast<uint4*>(p)[k] = {w[4 * k], w[4 * k + 1], w[4 * k + 2], w[4 * k + 3]};
    } else if constexpr (bytes == 8) {
      *reinterpret_cast<uint2*>(p) = {w[0], w[1]};
    } else {
      *reinterpret_cast<std::uint32_t*>(p) = w[0];
    }
  }
  TIGON_DEVICE_INLINE void fill(T value) {
#pragma unroll
    for (int k = 0; k < N; ++k) set(k, value);
  }

  /// The k-th, as a number of A; k is known when the loop is unrolled.
  template <class A>
  TIGON_DEVICE_INLINE A get(int k) const {
    if constexpr (sizeof(T) == 8)
      return static_cast<A>(std::bit_cast<double>(static_cast<std::uint64_t>(w[2 * k + 1]) << 32 | w[2 * k]));
    else if constexpr (sizeof(T) == 4)
      return static_cast<A>(std::bit_cast<float>(w[k]));
    else if constexpr (std::is_same_v<T, bfloat16>)
      return static_cast<A>(std::bit_cast<float>(k % 2 == 0 ? w[k / 2] << 16 : w[k / 2] & 0xffff0000u));
    else
      return static_cast<A>(widened(static_cast<std::uint16_t>(k % 2 == 0 ? w[k / 2] & 0xffffu : w[k / 2] >> 16)));
  }
  /// All of them, from N numbers, each rounded once.
  template <class A>
  TIGON_DEVICE_INLINE void set_all(const A (&v)[N]) {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int k = 0; k < words; ++k) w[k] = pair(static_cast<float>(v[2 * k]), static_cast<float>(v[2 * k + 1]));
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) set(k, static_cast<T>(v[k]));
    }
  }

 private:
  static TIGON_DEVICE_INLINE float widened(std::uint16_t bits) { return static_cast<float>(std::bit_cast<T>(bits)); }
  static TIGON_DEVICE_INLINE std::uint32_t pair(float low, float high) {
#if defined(__CUDA_ARCH__)
    std::uint32_t both;
    if constexpr (std::is_same_v<T, bfloat16>)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return std::uint32_t{T(low).bits} | std::uint32_t{T(high).bits} << 16;
#endif
  }
  TIGON_DEVICE_INLINE void set(int k, T value) {
    if constexpr (sizeof(T) == 8) {
      const auto bits = std::bit_cast<std::uint64_t>(value);
      w[2 * k] = static_cast<std::uint32_t>(bits), w[2 * k + 1] = static_cast<std::uint32_t>(bits >> 32);
    } else if constexpr (sizeof(T) == 4) {
      w[k] = std::bit_cast<std::uint32_t>(value);
    } else {
      const std::uint32_t bits = value.bits;
      w[k / 2] = k % 2 == 0 ? bits : w[k / 2] | bits << 16;
    }
  }
};
/// One element, wherever it begins.
template <class T>
struct elements<1, T> {
  T one;

  TIGON_DEVICE_INLINE void load(const T* p) { one = *p; }
  TIGON_DEVICE_INLINE void store(T* p) const { *p = one; }
  TIGON_DEVICE_INLINE void fill(T value) { one = value; }
  template <class A>
  TIGON_DEVICE_INLINE A get(int) const {
    return static_cast<A>(one);
  }
  template <class A>
  TIGON_DEVICE_INLINE void set_all(const A (&v)[1]) {
    one = as_element<T>(v[0]);
  }
};

/// Starts to bring so many bytes into L2, which begin and end at multiples of 16; a GPU before sm_90 does nothing.
TIGON_DEVICE_INLINE void prefetch_to_l2([[maybe_unused]] const void* p, [[maybe_unused]] unsigned bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

/// Whether elements<N, T> may begin at p, and at every multiple of `stride` elements behind it.
template <int N, class T>
bool begins_accesses(const T* p, std::size_t stride) {
  constexpr std::size_t all = N * sizeof(T), access = all < access_bytes ? all : access_bytes;
  return N == 1 || (reinterpret_cast<std::uintptr_t>(p) % access == 0 && stride * sizeof(T) % access == 0);
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_ELEMENTS_HPP
