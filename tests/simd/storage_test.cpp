// Loads and stores of 16-bit numbers by the lanes of every engine, over all patterns.
#include <gtest/gtest.h>

#include <tigon/simd/engines/eigen.hpp>
#include <tigon/simd/engines/highway.hpp>
#include <tigon/simd/engines/scalar.hpp>
#include <tigon/simd/engines/xsimd.hpp>
#include <tigon/simd/vec.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/typed.hpp"

namespace {

namespace simd = tigon::simd;
using tigon::bfloat16, tigon::float16;

struct layout {
  int exponent_bits, fraction_bits;
};
template <class T>
constexpr layout layout_of = std::same_as<T, bfloat16> ? layout{8, 7} : layout{5, 10};

/// The number that a pattern stands for, by the definition of the format.
template <class T>
double value_of(std::uint16_t bits) {
  const auto [exponent_bits, fraction_bits] = layout_of<T>;
  const int fraction = bits & ((1 << fraction_bits) - 1), top = (1 << exponent_bits) - 1;
  const int exponent = bits >> fraction_bits & top, bias = top / 2;
  double magnitude;
  if (exponent == top)
    magnitude = fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  else if (exponent == 0)
    magnitude = std::ldexp(fraction, 1 - bias - fraction_bits);
  else
    magnitude = std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  return bits >> 15 != 0 ? -magnitude : magnitude;
}

/// The pattern nearest to a number that is no NaN, the even one of two: a search through all of its sign. Halfway
/// beyond the largest number begins infinity.
template <class T>
std::uint16_t nearest(float number) {
  const double v = std::abs(static_cast<double>(number));
  const auto infinity =
      static_cast<std::uint16_t>(((1 << layout_of<T>.exponent_bits) - 1) << layout_of<T>.fraction_bits);
  std::uint16_t below = 0, above = infinity;
  while (above - below > 1) {
    const auto middle = static_cast<std::uint16_t>((below + above) / 2);
    (value_of<T>(middle) <= v ? below : above) = middle;
  }
  // What would come after the largest number, were there one more exponent.
  const double low = value_of<T>(below),
               high = above == infinity ? 2 * low - value_of<T>(below - 1) : value_of<T>(above);
  const bool up = v - low > high - v || (v - low == high - v && below % 2 != 0);
  return static_cast<std::uint16_t>((up ? above : below) | (std::signbit(number) ? 0x8000 : 0));
}

/// A dense sample of all floats; every number halfway between two, or next to such a one; NaN of every kind.
template <class T>
std::vector<float> sample() {
  std::vector<float> out;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 16411)
    out.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (std::uint32_t k = 0; k < 1u << 16; ++k) {
    const auto low = static_cast<float>(value_of<T>(static_cast<std::uint16_t>(k)));
    const auto u = std::bit_cast<std::uint32_t>(low), half = 1u << (22 - layout_of<T>.fraction_bits);
    for (const std::uint32_t more : {0u, 1u, half - 1, half, half + 1, 2 * half - 1})
      out.push_back(std::bit_cast<float>(u + more));
  }
  for (const float tiny : {0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1.8p-24f, 0x1p-134f, 0x1.8p-133f, 0x1p-149f})
    out.insert(out.end(), {tiny, -tiny});
  for (const std::uint32_t nan : {0x7f800001u, 0x7f807fffu, 0x7fbfffffu, 0x7fc00000u, 0x7fff8000u, 0x7fffffffu})
    out.insert(out.end(), {std::bit_cast<float>(nan), std::bit_cast<float>(nan | 0x80000000u)});
  return out;
}

/// Whether `got` is the stored form of `number`.
template <class T>
void expect_stored(float number, T got, const char* how) {
  if (std::isnan(number))
    ASSERT_TRUE(std::isnan(value_of<T>(got.bits))) << how << std::hex << std::bit_cast<std::uint32_t>(number);
  else
    ASSERT_EQ(got.bits, nearest<T>(number)) << how << std::hexfloat << number;
}

template <class E, class T>
struct in {
  using engine = E;
  using element = T;
};
template <class Case>
struct storage : testing::Test {};
struct names {
  template <class Case>
  static std::string GetName(int) {
    const bool brain = std::same_as<typename Case::element, bfloat16>;
    return std::string(Case::engine::name) + (brain ? "_bf16" : "_f16");
  }
};
using cases = testing::Types<in<simd::scalar, bfloat16>, in<simd::scalar, float16>, in<simd::eigen, bfloat16>,
                             in<simd::eigen, float16>, in<simd::xsimd, bfloat16>, in<simd::xsimd, float16>,
                             in<simd::highway, bfloat16>, in<simd::highway, float16>>;
TYPED_TEST_SUITE(storage, cases, names);

TYPED_TEST(storage, widens_every_pattern) {
  using T = typename TypeParam::element;
  using V = simd::vec<typename TypeParam::engine, float>;
  for (std::uint32_t first = 0; first < 1u << 16; first += V::size) {
    std::array<T, V::size> from;
    std::array<float, V::size> to, part;
    for (std::size_t k = 0; k < V::size; ++k) from[k].bits = static_cast<std::uint16_t>(first + k);
    simd::store(simd::load<V>(from.data()), to.data());
    simd::store(simd::load_n<V>(from.data(), V::size / 2 + 1), part.data());
    for (std::size_t k = 0; k < V::size; ++k) {
      const double wanted = value_of<T>(from[k].bits);
      for (const float got : {to[k], k < V::size / 2 + 1 ? part[k] : to[k]})
        ASSERT_TRUE(std::isnan(wanted)
                        ? std::isnan(got)
                        : std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(static_cast<float>(wanted)))
            << std::hex << from[k].bits;
    }
  }
}

TYPED_TEST(storage, rounds_to_nearest_even_and_keeps_nan) {
  using T = typename TypeParam::element;
  using V = simd::vec<typename TypeParam::engine, float>;
  constexpr std::size_t n = V::size;
  std::vector<float> numbers = sample<T>();
  numbers.resize((numbers.size() + 2 * n - 1) / (2 * n) * (2 * n));
  struct {
    alignas(64) T stored[2 * n], streamed[2 * n], part[n];
  } to;
  for (std::size_t first = 0; first < numbers.size(); first += 2 * n) {
    const V a = simd::load<V>(numbers.data() + first), b = simd::load<V>(numbers.data() + first + n);
    simd::store(a, to.stored);
    simd::store(b, to.stored + n);
    simd::store_n(a, to.part, n / 2 + 1);
    std::array<float, n> rounded;
    simd::store(simd::round_to<T>(a), rounded.data());
    for (std::size_t k = 0; k < 2 * n; ++k) expect_stored(numbers[first + k], to.stored[k], "stored: ");
    for (std::size_t k = 0; k < n; ++k) {
      if (k < n / 2 + 1) expect_stored(numbers[first + k], to.part[k], "in part: ");
      expect_stored(numbers[first + k], T(rounded[k]), "rounded: ");
      if (!std::isnan(rounded[k])) {
        ASSERT_EQ(static_cast<float>(T(rounded[k])), rounded[k]);
      }
    }
    simd::stream(a, to.streamed);
    simd::stream(b, to.streamed + n);
    simd::stream_fence();
    for (std::size_t k = 0; k < 2 * n; ++k) expect_stored(numbers[first + k], to.streamed[k], "streamed: ");
    if constexpr (simd::stores_pairs<V, T>) {
      simd::store_pair<false>(a, b, to.stored);
      simd::store_pair<true>(a, b, to.streamed);
      simd::stream_fence();
      for (std::size_t k = 0; k < 2 * n; ++k) {
        expect_stored(numbers[first + k], to.stored[k], "a pair: ");
        expect_stored(numbers[first + k], to.streamed[k], "a streamed pair: ");
      }
      simd::store_pair<false, true>(a, b, to.stored);
      simd::store_pair<true, true>(a, b, to.streamed);
      simd::stream_fence();
      for (std::size_t k = 0; k < 2 * n; ++k) {
        expect_stored(numbers[first + k], to.stored[k], "a pair among zeros: ");
        expect_stored(numbers[first + k], to.streamed[k], "a streamed pair among zeros: ");
      }
    }
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(storage, rounds_what_was_computed_alike) {
  using T = typename TypeParam::element;
  using V = simd::vec<typename TypeParam::engine, float>;
  constexpr std::size_t n = V::size;
  std::vector<float> numbers = sample<T>();
  // NaN as arithmetic on elements of T makes them: quiet, with a payload of T.
  for (float& v : numbers)
    if (std::isnan(v)) v = std::bit_cast<float>((std::bit_cast<std::uint32_t>(v) & 0xffff0000u) | 0x400000u);
  numbers.resize((numbers.size() + n - 1) / n * n);
  for (std::size_t first = 0; first < numbers.size(); first += n) {
    std::array<float, n> rounded, by_shift;
    const V v = simd::load<V>(numbers.data() + first);
    simd::store(simd::round_computed_to<T>(v), rounded.data());
    simd::store(simd::round_computed_to<T, simd::odd_by::shift>(v), by_shift.data());
    for (std::size_t k = 0; k < n; ++k) {
      expect_stored(numbers[first + k], T(rounded[k]), "");
      expect_stored(numbers[first + k], T(by_shift[k]), "by a shift");
      if (!std::isnan(rounded[k])) {
        ASSERT_EQ(static_cast<float>(T(rounded[k])), rounded[k]);
        ASSERT_EQ(by_shift[k], rounded[k]);
      }
    }
    if (this->HasFatalFailure()) return;
  }
}

}  // namespace
