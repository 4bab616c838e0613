// What the x86 engines share below their libraries: 16-bit storage, partial loads and stores, streaming stores and the
// exponent instructions, on raw registers. Nothing here is used on other architectures.
#ifndef TIGON_SIMD_ENGINES_X86_HPP
#define TIGON_SIMD_ENGINES_X86_HPP

#include <tigon/core/element.hpp>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace x86 {

// So that every name exists on every target; a register without an overload takes the portable way. With any
// number of arguments, because nvcc checks it in templates that are not instantiated.
struct none {};
template <class... T>
void load(none, T...);
template <class... T>
void store(none, T...);
template <class... T>
void stream(none, T...);
template <bool Zeros = false, class... T>
void store_pair(none, T...);
template <bool Zeros = false, class... T>
void stream_pair(none, T...);
template <bool Zeros = false, class... T>
void store_zipped(none, T...);
template <bool Zeros = false, class... T>
void stream_zipped(none, T...);
template <class... T>
void load_n(none, T...);
template <class... T>
void store_n(none, T...);
template <class... T>
void scale(none, T...);
template <class... T>
void round_to(none, T...);
template <class... T>
void round_computed_to(none, T...);
template <class... T>
void round_computed_by_shift_to(none, T...);
template <class... T>
void clamp_magnitude(none, T...);
template <class... T>
void mantissa(none, T...);
template <class... T>
void exponent(none, T...);
template <class... T>
void reciprocal_estimate(none, T...);
template <class... T>
void square_root(none, T...);
template <class... T>
void lookup(none, T...);
template <class... T>
void add_bits(none, T...);
template <class... T>
void fma(none, T...);
template <class... T>
void fnma(none, T...);

}  // namespace x86
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#if defined(__x86_64__) || defined(__i386__)
#define TIGON_X86 1
#include <immintrin.h>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace x86 {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

// Narrower numbers in lanes of f64.
TIGON_HOST_INLINE void load(const float* p, __m512d& v) { v = _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
TIGON_HOST_INLINE void load(const bfloat16* p, __m512d& v) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  v = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16)));
}

/// Sixteen numbers of 16 bits, each as the upper half of 32.
TIGON_HOST_INLINE __m512 in_upper_halves(__m256i raw) {
#if defined(__AVX512VBMI__) && !defined(__clang__)  // one instruction, of which clang makes others with more constants
  const __m512i index = _mm512_set_epi8(31, 30, 0, 0, 29, 28, 0, 0, 27, 26, 0, 0, 25, 24, 0, 0, 23, 22, 0, 0, 21, 20, 0,
                                        0, 19, 18, 0, 0, 17, 16, 0, 0, 15, 14, 0, 0, 13, 12, 0, 0, 11, 10, 0, 0, 9, 8,
                                        0, 0, 7, 6, 0, 0, 5, 4, 0, 0, 3, 2, 0, 0, 1, 0, 0, 0);
  constexpr __mmask64 upper = 0xcccccccccccccccc;
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi8(upper, index, _mm512_zextsi256_si512(raw)));
#else
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
#endif
}
TIGON_HOST_INLINE void load(const bfloat16* p, __m512& v) {
  v = in_upper_halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TIGON_HOST_INLINE void load(const float16* p, __m512& v) {
  v = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TIGON_HOST_INLINE __m256i to_bfloat16_in_integers(__m512 v) {
  const __m512i u = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
/// Round to nearest even. The instruction flushes subnormal numbers: where a result is zero they are looked for, and
/// rounded in integers.
TIGON_HOST_INLINE __m256i to_bfloat16(__m512 v) {
#if defined(__AVX512BF16__)
  const auto rounded = (__m256i)_mm512_cvtneps_pbh(v);
  if (__builtin_expect(_mm256_testn_epi16_mask(rounded, _mm256_set1_epi16(0x7f80)) == 0, 1)) return rounded;
  constexpr int subnormal = 0x20;
  if (_mm512_fpclass_ps_mask(v, subnormal) == 0) return rounded;
#endif
  return to_bfloat16_in_integers(v);
}
#if defined(__AVX512BF16__)
/// Two vectors by one instruction, as fast as that for one vector. Zeros: one operation more in place of a branch,
/// which scattered zeros would make mispredict.
template <bool Zeros = false>
TIGON_HOST_INLINE __m512i to_bfloat16(__m512 first, __m512 second) {
  const auto rounded = (__m512i)_mm512_cvtne2ps_pbh(second, first);
  if constexpr (!Zeros)
    if (__builtin_expect(_mm512_testn_epi16_mask(rounded, _mm512_set1_epi16(0x7f80)) == 0, 1)) return rounded;
  constexpr int subnormal = 0x20;
  const __mmask16 of_first = _mm512_fpclass_ps_mask(first, subnormal),
                  of_second = _mm512_fpclass_ps_mask(second, subnormal);
  if (__builtin_expect(_mm512_kortestz(of_first, of_second), 1)) return rounded;
  return _mm512_inserti64x4(_mm512_castsi256_si512(to_bfloat16_in_integers(first)), to_bfloat16_in_integers(second), 1);
}
template <bool Zeros = false>
TIGON_HOST_INLINE void store_pair(__m512 first, __m512 second, bfloat16* p) {
  _mm512_storeu_si512(p, to_bfloat16<Zeros>(first, second));
}
template <bool Zeros = false>
TIGON_HOST_INLINE void stream_pair(__m512 first, __m512 second, bfloat16* p) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), to_bfloat16<Zeros>(first, second));
}
/// even[0], odd[0], even[1], ...: what is rounded already has half the size.
template <bool Zeros>
TIGON_HOST_INLINE __m512i to_zipped_bfloat16(__m512 even, __m512 odd) {
  const __m512i index = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(index, to_bfloat16<Zeros>(even, odd));
}
template <bool Zeros = false>
TIGON_HOST_INLINE void store_zipped(__m512 even, __m512 odd, bfloat16* p) {
  _mm512_storeu_si512(p, to_zipped_bfloat16<Zeros>(even, odd));
}
template <bool Zeros = false>
TIGON_HOST_INLINE void stream_zipped(__m512 even, __m512 odd, bfloat16* p) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), to_zipped_bfloat16<Zeros>(even, odd));
}
#endif
/// v rounded to the storage type and widened again.
TIGON_HOST_INLINE __m512 round_to(__m512 v, bfloat16) { return in_upper_halves(to_bfloat16(v)); }
/// The same where v is what arithmetic on such numbers made: a NaN is quiet, and its payload has no lower half that
/// could carry into the sign.
TIGON_HOST_INLINE __m512 round_computed_to(__m512 v, bfloat16) {
  const __m512i u = _mm512_castps_si512(v), half = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
  const __m512i sum = _mm512_mask_sub_epi32(half, odd, half, _mm512_set1_epi32(-1));
  return _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(-0x10000)));
}
/// The same by a shift and logic instead of a mask and a sum.
TIGON_HOST_INLINE __m512 round_computed_by_shift_to(__m512 v, bfloat16) {
  // u + 0x7fff + its bit 16, as u less the complement of 0x7ffe + that bit.
  const __m512i u = _mm512_castps_si512(v), shifted = _mm512_srli_epi32(u, 16);
  const __m512i less = _mm512_ternarylogic_epi32(shifted, _mm512_set1_epi32(1), _mm512_set1_epi32(0x7ffe), 0x15);
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_sub_epi32(u, less), _mm512_set1_epi32(-0x10000)));
}
TIGON_HOST_INLINE __m256i to_float16(__m512 v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
TIGON_HOST_INLINE __m512 round_to(__m512 v, float16) { return _mm512_cvtph_ps(to_float16(v)); }
TIGON_HOST_INLINE void store(__m512 v, bfloat16* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bfloat16(v));
}
TIGON_HOST_INLINE void store(__m512 v, float16* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_float16(v));
}
TIGON_HOST_INLINE void stream(__m512 v, float* p) { _mm512_stream_ps(p, v); }
TIGON_HOST_INLINE void stream(__m512d v, double* p) { _mm512_stream_pd(p, v); }
TIGON_HOST_INLINE void stream(__m512 v, bfloat16* p) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_bfloat16(v));
}
TIGON_HOST_INLINE void stream(__m512 v, float16* p) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_float16(v));
}

// Masked loads and stores touch no byte outside the mask, also at the edge of a page.
TIGON_HOST_INLINE __mmask16 first16(std::size_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
TIGON_HOST_INLINE __mmask8 first8(std::size_t n) { return static_cast<__mmask8>((1u << n) - 1u); }
TIGON_HOST_INLINE void load_n(const float* p, std::size_t n, __m512& v) { v = _mm512_maskz_loadu_ps(first16(n), p); }
TIGON_HOST_INLINE void load_n(const double* p, std::size_t n, __m512d& v) { v = _mm512_maskz_loadu_pd(first8(n), p); }
TIGON_HOST_INLINE void load_n(const bfloat16* p, std::size_t n, __m512& v) {
  v = in_upper_halves(_mm256_maskz_loadu_epi16(first16(n), p));
}
TIGON_HOST_INLINE void load_n(const float16* p, std::size_t n, __m512& v) {
  v = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first16(n), p));
}
TIGON_HOST_INLINE void store_n(__m512 v, float* p, std::size_t n) { _mm512_mask_storeu_ps(p, first16(n), v); }
TIGON_HOST_INLINE void store_n(__m512d v, double* p, std::size_t n) { _mm512_mask_storeu_pd(p, first8(n), v); }
TIGON_HOST_INLINE void store_n(__m512 v, bfloat16* p, std::size_t n) {
  _mm256_mask_storeu_epi16(p, first16(n), to_bfloat16(v));
}
TIGON_HOST_INLINE void store_n(__m512 v, float16* p, std::size_t n) {
  _mm256_mask_storeu_epi16(p, first16(n), to_float16(v));
}
/// Not a > b, by one comparison.
TIGON_HOST_INLINE __mmask16 not_above(__m512 a, __m512 b) { return _mm512_cmp_ps_mask(a, b, _CMP_NGT_UQ); }
TIGON_HOST_INLINE __mmask8 not_above(__m512d a, __m512d b) { return _mm512_cmp_pd_mask(a, b, _CMP_NGT_UQ); }
/// x * 2^n for whole n, rounded once, right at overflow, underflow and NaN.
TIGON_HOST_INLINE __m512 scale(__m512 x, __m512 n) { return _mm512_scalef_ps(x, n); }
TIGON_HOST_INLINE __m512d scale(__m512d x, __m512d n) { return _mm512_scalef_pd(x, n); }
/// x, or where |x| is larger, the limit with the sign of x: one instruction. A NaN becomes the limit.
TIGON_HOST_INLINE __m512 clamp_magnitude(__m512 x, __m512 limit) { return _mm512_range_ps(x, limit, 2); }
TIGON_HOST_INLINE __m512d clamp_magnitude(__m512d x, __m512d limit) { return _mm512_range_pd(x, limit, 2); }
/// |x| = m * 2^e with m in [3/4, 3/2): m. For 0 and infinity it is 1, below 0 NaN.
TIGON_HOST_INLINE __m512 mantissa(__m512 x) { return _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan); }
TIGON_HOST_INLINE __m512d mantissa(__m512d x) { return _mm512_getmant_pd(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan); }
/// floor(log2|x|): -infinity for 0, infinity for infinity.
TIGON_HOST_INLINE __m512 exponent(__m512 x) { return _mm512_getexp_ps(x); }
TIGON_HOST_INLINE __m512d exponent(__m512d x) { return _mm512_getexp_pd(x); }
/// 1 / x within 2^-14. There is none for f64, where division is rare, nor for narrower registers, where it is fast.
TIGON_HOST_INLINE __m512 reciprocal_estimate(__m512 x) { return _mm512_rcp14_ps(x); }
/// The lanes of the table whose numbers are the last four bits of each lane of the index.
TIGON_HOST_INLINE __m512 lookup(__m512 table, __m512 index) {
  return _mm512_permutexvar_ps(_mm512_castps_si512(index), table);
}
/// The same of two tables, the lower and the upper half of one whose index has five bits.
TIGON_HOST_INLINE __m512 lookup(__m512 lower, __m512 upper, __m512 index) {
  return _mm512_permutex2var_ps(lower, _mm512_castps_si512(index), upper);
}
/// The sum of a and b as whole numbers of 32 bits.
TIGON_HOST_INLINE __m512 add_bits(__m512 a, __m512 b) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
TIGON_HOST_INLINE __m512 square_root(__m512 x) { return _mm512_sqrt_ps(x); }
TIGON_HOST_INLINE __m512d square_root(__m512d x) { return _mm512_sqrt_pd(x); }
/// a * b + c and c - a * b, for libraries that leave the fusion to the compiler.
TIGON_HOST_INLINE __m512 fma(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
TIGON_HOST_INLINE __m512d fma(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
TIGON_HOST_INLINE __m512 fnma(__m512 a, __m512 b, __m512 c) { return _mm512_fnmadd_ps(a, b, c); }
TIGON_HOST_INLINE __m512d fnma(__m512d a, __m512d b, __m512d c) { return _mm512_fnmadd_pd(a, b, c); }

#endif

#if defined(__AVX2__) && defined(__F16C__)

TIGON_HOST_INLINE void load(const bfloat16* p, __m256& v) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  v = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
TIGON_HOST_INLINE void load(const float16* p, __m256& v) {
  v = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// Rounded to nearest even in the upper halves; what the lower ones hold is of no meaning.
TIGON_HOST_INLINE __m256i rounded_in_upper_halves(__m256 v) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, nan);
}
TIGON_HOST_INLINE __m128i to_bfloat16(__m256 v) {
  const __m256i high = _mm256_srli_epi32(rounded_in_upper_halves(v), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
TIGON_HOST_INLINE __m256 round_to(__m256 v, bfloat16) {
  return _mm256_castsi256_ps(_mm256_and_si256(rounded_in_upper_halves(v), _mm256_set1_epi32(-0x10000)));
}
TIGON_HOST_INLINE __m128i to_float16(__m256 v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
TIGON_HOST_INLINE __m256 round_to(__m256 v, float16) { return _mm256_cvtph_ps(to_float16(v)); }
TIGON_HOST_INLINE void store(__m256 v, bfloat16* p) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bfloat16(v)); }
TIGON_HOST_INLINE void store(__m256 v, float16* p) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_float16(v)); }
TIGON_HOST_INLINE void stream(__m256 v, float* p) { _mm256_stream_ps(p, v); }
TIGON_HOST_INLINE void stream(__m256d v, double* p) { _mm256_stream_pd(p, v); }
TIGON_HOST_INLINE void stream(__m256 v, bfloat16* p) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), to_bfloat16(v));
}
TIGON_HOST_INLINE void stream(__m256 v, float16* p) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), to_float16(v)); }

#endif

#if defined(__AVX__)
TIGON_HOST_INLINE void load(const float* p, __m256d& v) { v = _mm256_cvtps_pd(_mm_loadu_ps(p)); }
TIGON_HOST_INLINE __m256 square_root(__m256 x) { return _mm256_sqrt_ps(x); }
TIGON_HOST_INLINE __m256d square_root(__m256d x) { return _mm256_sqrt_pd(x); }
#endif

#if defined(__FMA__)
TIGON_HOST_INLINE __m256 fma(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
TIGON_HOST_INLINE __m256d fma(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
TIGON_HOST_INLINE __m256 fnma(__m256 a, __m256 b, __m256 c) { return _mm256_fnmadd_ps(a, b, c); }
TIGON_HOST_INLINE __m256d fnma(__m256d a, __m256d b, __m256d c) { return _mm256_fnmadd_pd(a, b, c); }
#endif

#if defined(__SSE2__)
TIGON_HOST_INLINE void stream(__m128 v, float* p) { _mm_stream_ps(p, v); }
TIGON_HOST_INLINE void stream(__m128d v, double* p) { _mm_stream_pd(p, v); }
TIGON_HOST_INLINE __m128 square_root(__m128 x) { return _mm_sqrt_ps(x); }
TIGON_HOST_INLINE __m128d square_root(__m128d x) { return _mm_sqrt_pd(x); }
#endif

}  // namespace x86
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif
#endif  // TIGON_SIMD_ENGINES_X86_HPP
