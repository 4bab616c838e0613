// Lanes of 32 bits that are also four bytes each: dot products of bytes, and codes of two bits spread over the bytes.
#ifndef TIGON_SIMD_QUADS_HPP
#define TIGON_SIMD_QUADS_HPP

#include <tigon/simd/engines/x86.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace tigon::simd {
inline namespace TIGON_ABI {

template <class T, std::size_t N>
struct vector_of {
  typedef T type __attribute__((vector_size(sizeof(T) * N)));
};

/// N lanes, as an engine has of f32. Sums wrap around.
template <std::size_t N>
struct quads {
  using lanes = typename vector_of<std::uint32_t, N>::type;
  using signed_lanes = typename vector_of<std::int32_t, N>::type;
  using bytes = typename vector_of<std::uint8_t, 4 * N>::type;

  /// Whether dot() is one instruction.
#if defined(__AVX512VNNI__)
  static constexpr bool has_dot = N == 16;
#elif defined(__AVXVNNI__)
  static constexpr bool has_dot = N == 8;
#elif defined(__ARM_FEATURE_DOTPROD)
  static constexpr bool has_dot = N == 4;
#else
  static constexpr bool has_dot = false;
#endif

  template <class T>
  static TIGON_HOST_INLINE lanes load(const T* p) {
    lanes v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  template <class T>
  static TIGON_HOST_INLINE void store(lanes v, T* p) {
    std::memcpy(p, &v, sizeof v);
  }
  static TIGON_HOST_INLINE lanes broadcast(std::uint32_t x) { return x - lanes{}; }

  /// sum + the products of the unsigned bytes of u, each at most 127, with the signed bytes of s, four to a lane.
  static TIGON_HOST_INLINE lanes dot(lanes sum, lanes u, lanes s) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    if constexpr (N == 16) {
      const __m512i x = (__m512i)u, y = (__m512i)s, z = (__m512i)sum;
#if defined(__AVX512VNNI__)
      return (lanes)_mm512_dpbusd_epi32(z, x, y);
#else
      const __m512i pairs = _mm512_maddubs_epi16(x, y);
      return (lanes)_mm512_add_epi32(z, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
    }
#endif
#if defined(__AVX2__)
    if constexpr (N == 8) {
      const __m256i x = (__m256i)u, y = (__m256i)s, z = (__m256i)sum;
#if defined(__AVXVNNI__)
      return (lanes)_mm256_dpbusd_avx_epi32(z, x, y);
#else
      const __m256i pairs = _mm256_maddubs_epi16(x, y);
      return (lanes)_mm256_add_epi32(z, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
    }
#endif
#if defined(__SSE2__)
    if constexpr (N == 4) {
      const __m128i x = (__m128i)u, y = (__m128i)s, z = (__m128i)sum;
#if defined(__SSE4_1__)
      return (lanes)_mm_add_epi32(z, _mm_madd_epi16(_mm_maddubs_epi16(x, y), _mm_set1_epi16(1)));
#else  // even and odd bytes, as halves of a lane
      const __m128i even =
          _mm_madd_epi16(_mm_and_si128(x, _mm_set1_epi16(255)), _mm_srai_epi16(_mm_slli_epi16(y, 8), 8));
      const __m128i odd = _mm_madd_epi16(_mm_srli_epi16(x, 8), _mm_srai_epi16(y, 8));
      return (lanes)_mm_add_epi32(z, _mm_add_epi32(even, odd));
#endif
    }
#endif
#if defined(__ARM_FEATURE_DOTPROD)
    if constexpr (N == 4) {
      int32x4_t z;
      int8x16_t x, y;
      std::memcpy(&z, &sum, 16), std::memcpy(&x, &u, 16), std::memcpy(&y, &s, 16);
      z = vdotq_s32(z, x, y);
      return load(&z);
    }
#endif
    for (int shift = 0; shift < 32; shift += 8)
      sum += ((u >> shift) & 255) * (lanes)((signed_lanes)(s << (24 - shift)) >> 24);
    return sum;
  }

  /// The four codes of each of the N bytes at p, the first in the lowest byte of a lane.
  static TIGON_HOST_INLINE lanes codes(const std::uint8_t* p) {
    lanes x = widened(p);
#if defined(__AVX512VBMI__)
    if constexpr (N == 16) {  // eight bits of a pair of lanes, from bit 0, 2, 4 and 6 of each on
      const __m512i from = _mm512_set1_epi64(0x2624222006040200);
      return (lanes)_mm512_multishift_epi64_epi8(from, (__m512i)x) & 0x03030303u;
    }
#endif
    x |= x << 12;
    x |= x << 6;
    return x & 0x03030303u;
  }

 private:
  static TIGON_HOST_INLINE lanes widened(const std::uint8_t* p) {
#if defined(__AVX512F__)
    if constexpr (N == 16) return (lanes)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#endif
#if defined(__AVX2__)
    if constexpr (N == 8) return (lanes)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#endif
#if defined(__SSE2__)
    if constexpr (N == 4) {
      int four;
      std::memcpy(&four, p, 4);
      const __m128i zero = _mm_setzero_si128();
      return (lanes)_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero);
    }
#endif
    if constexpr (N == 1) {
      return broadcast(*p);
    } else {
      typename vector_of<std::uint8_t, N>::type narrow;
      std::memcpy(&narrow, p, N);
      return __builtin_convertvector(narrow, lanes);
    }
  }
};

/// Bytes of four rows, side by side: word r is a[r], b[r], c[r], d[r]; 16 words.
TIGON_HOST_INLINE void zip_bytes(const std::int8_t* a, const std::int8_t* b, const std::int8_t* c, const std::int8_t* d,
                                 std::uint32_t* words) {
  using V = typename vector_of<std::uint8_t, 16>::type;
  using eight_pairs = typename vector_of<std::uint16_t, 8>::type;
  V x[4];
  std::memcpy(&x[0], a, 16), std::memcpy(&x[1], b, 16), std::memcpy(&x[2], c, 16), std::memcpy(&x[3], d, 16);
  const auto low = [](V p, V q) TIGON_LAMBDA {
    return __builtin_shufflevector(p, q, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  };
  const auto high = [](V p, V q) TIGON_LAMBDA {
    return __builtin_shufflevector(p, q, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  };
  const auto put = [&](V first, V second, std::uint32_t* to) TIGON_LAMBDA {
    const auto p = (eight_pairs)first, q = (eight_pairs)second;
    const eight_pairs l = __builtin_shufflevector(p, q, 0, 8, 1, 9, 2, 10, 3, 11);
    const eight_pairs h = __builtin_shufflevector(p, q, 4, 12, 5, 13, 6, 14, 7, 15);
    std::memcpy(to, &l, 16), std::memcpy(to + 4, &h, 16);
  };
  put(low(x[0], x[1]), low(x[2], x[3]), words);
  put(high(x[0], x[1]), high(x[2], x[3]), words + 8);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_QUADS_HPP
