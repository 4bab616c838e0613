// op::gemm of two bf16 matrices by the dot instruction: pairs of depth, multiplied and summed in f32, without widening.
// Every other combination of types is the parent's.
#ifndef TIGON_BACKENDS_AVX512_BF16_GEMM_HPP
#define TIGON_BACKENDS_AVX512_BF16_GEMM_HPP

#include <immintrin.h>

#include <tigon/backends/avx512_bf16/backend.hpp>
#include <tigon/backends/highway/gemm.hpp>

namespace tigon {

namespace packed {
inline namespace TIGON_ABI {

/// A word is two bf16 that follow each other in depth.
template <class E>
struct dot_lanes {
  using value = float;
  using sums = simd::vec<E, float>;
  using operand = __m512bh;
  using word = std::uint32_t;
  static constexpr std::size_t group = 2;
  static constexpr std::size_t size = sums::size;
  using block = words<word, size>;
  static_assert(size == 16, "tigon: the bf16 dot instruction needs an engine with lanes of 512 bits");

  static TIGON_INLINE operand load(const word* p) {
    operand b = (__m512bh)_mm512_loadu_si512(p);
    simd::keep_in_register(b);
    return b;
  }
  static TIGON_INLINE operand broadcast(const word* p) { return (__m512bh)_mm512_set1_epi32(static_cast<int>(*p)); }
  static TIGON_INLINE sums multiply_add(operand a, operand b, sums c) {
    using lanes = typename sums::lanes;
    return sums::from(lanes::from_raw(_mm512_dpbf16_ps(lanes::raw(c.r), a, b)));
  }

  static TIGON_INLINE block along(const bfloat16* p, std::size_t count) {
    return bits(count == 2 * size ? _mm512_loadu_si512(p)
                                  : _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ull << count) - 1), p));
  }
  static TIGON_INLINE block across(const bfloat16* p, std::size_t stride, std::size_t depth, std::size_t count) {
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
    if (depth == 1) return bits(low);
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p + stride));
    return bits(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }

 private:
  static TIGON_INLINE block bits(__m512i v) {
    block b;
    std::memcpy(&b, &v, sizeof b);
    return b;
  }
};

template <class B, class TA, class TB>
using dots = dot_lanes<typename B::engine>;

template <class TA, class TB>
inline constexpr bool by_dots = std::same_as<TA, bfloat16> && std::same_as<TB, bfloat16>;
template <class TA, class TB>
using dots_or_highway = std::conditional_t<by_dots<TA, TB>, gemm_by_panels<dots>, kernel<op::gemm, backends::highway>>;

}  // namespace TIGON_ABI
}  // namespace packed

template <>
struct kernel<op::gemm, backends::avx512_bf16> : packed::gemm_by_types<packed::dots_or_highway> {
  template <element TA, element TB>
  static constexpr std::string_view layout =
      packed::by_dots<TA, TB> ? std::string_view("panels of bf16 pairs")
                              : kernel<op::gemm, backends::highway>::template layout<TA, TB>;
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_AVX512_BF16_GEMM_HPP
