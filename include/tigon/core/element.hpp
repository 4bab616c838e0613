// Storage types of tensors and the type in which they are summed.
#ifndef TIGON_CORE_ELEMENT_HPP
#define TIGON_CORE_ELEMENT_HPP

#include <tigon/config.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tigon {

namespace detail {

#if defined(TIGON_DEVICE_CODE)
__device__ TIGON_HOST_INLINE std::uint16_t device_bfloat16_bits(float value) {
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ TIGON_HOST_INLINE std::uint16_t device_float16_bits(float value) {
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ TIGON_HOST_INLINE float device_float16_value(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
#endif

/// f32 bits to bfloat16 bits, round to nearest even; a NaN stays a NaN (made quiet).
constexpr TIGON_INLINE std::uint16_t bfloat16_bits(float value) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return device_bfloat16_bits(value);
#endif
  const auto u = std::bit_cast<std::uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/// f32 bits to IEEE binary16 bits, round to nearest even, subnormals kept, overflow to infinity, NaN made quiet.
constexpr TIGON_INLINE std::uint16_t float16_bits(float value) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return device_float16_bits(value);
#endif
#if defined(__aarch64__)
  if (!std::is_constant_evaluated()) return std::bit_cast<std::uint16_t>(static_cast<__fp16>(value));
#endif
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 2^-1 lines the subnormal's last bit up with the f32's
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

constexpr TIGON_INLINE float float16_value(std::uint16_t bits) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return device_float16_value(bits);
#endif
#if defined(__aarch64__)
  if (!std::is_constant_evaluated()) return std::bit_cast<__fp16>(bits);
#endif
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x400u) {  // subnormal: an integer multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

}  // namespace detail

/// 16-bit brain float: the upper half of an f32. Conversion rounds to nearest even and keeps NaN.
struct bfloat16 {
  std::uint16_t bits = 0;

  constexpr bfloat16() = default;
  constexpr TIGON_INLINE explicit bfloat16(float value) : bits(detail::bfloat16_bits(value)) {}
  constexpr TIGON_INLINE operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE binary16. Conversion rounds to nearest even, keeps subnormals, NaN and signed zeros.
struct float16 {
  std::uint16_t bits = 0;

  constexpr float16() = default;
  constexpr TIGON_INLINE explicit float16(float value) : bits(detail::float16_bits(value)) {}
  constexpr TIGON_INLINE operator float() const { return detail::float16_value(bits); }
};

/// Types in which tensors may be stored.
template <class T>
concept element =
    std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, bfloat16> || std::same_as<T, float16>;

/// Whether values of T are computed and summed in f64.
template <class T>
inline constexpr bool summed_in_f64 = std::same_as<T, double>;

/// The type in which values of T are computed and summed: f64 for f64, f32 for everything else. Not constrained: it
/// is in the signatures of public functions, and a type that is no element is refused by the public function's
/// sentence.
template <class T>
using accumulator_t = std::conditional_t<summed_in_f64<T>, double, float>;

/// A number as an element; of f64 that becomes one of 16 bits, f32 is in between.
template <class T, class A>
constexpr TIGON_INLINE T as_element(A value) {
  if constexpr (sizeof(T) == 2)
    return static_cast<T>(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

/// Element types that may meet in one call: all but f64 with one another, f64 only with itself.
template <class T, class U>
concept mixes_with = element<T> && element<U> && std::same_as<accumulator_t<T>, accumulator_t<U>>;

/// Types of token ids and labels.
template <class I>
concept token_id = std::same_as<I, std::int32_t> || std::same_as<I, std::int64_t>;

template <element T>
constexpr std::string_view element_name() {
  if constexpr (std::same_as<T, float>) return "f32";
  if constexpr (std::same_as<T, double>) return "f64";
  if constexpr (std::same_as<T, bfloat16>) return "bf16";
  if constexpr (std::same_as<T, float16>) return "f16";
}

/// The name as a number, for messages between processes: bf16 and f16 have one size. Evaluated by the compiler, so no
/// function of it is left to link.
template <element T>
consteval std::uint64_t element_number() {
  std::uint64_t number = 0;
  for (const char c : element_name<T>()) number = number << 8 | static_cast<unsigned char>(c);
  return number;
}

/// How a gradient of a parameter is written: `overwrite` replaces what was there, `accumulate` adds to it.
enum class gradient { overwrite, accumulate };

/// Whether a backward pass makes gradients of parameters.
///   trained      gradients of any mode and layout
///   frozen       none; takes less workspace, because nothing is summed up
///   overwritten  gradients by gradient::overwrite in memory without gaps between rows that begins at a multiple of 16
///                bytes: before they are written, their memory can hold sums, so that a call may take less workspace
enum class parameters { trained, frozen, overwritten };
constexpr TIGON_INLINE parameters trained_if(bool any_gradient) {
  return any_gradient ? parameters::trained : parameters::frozen;
}
namespace detail {
constexpr TIGON_INLINE bool trains(parameters of) { return of != parameters::frozen; }
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_CORE_ELEMENT_HPP
