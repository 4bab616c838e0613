// Random bits that are a function of a key and a counter, on every engine; and rounding by them.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tigon/simd/engines/eigen.hpp>
#include <tigon/simd/engines/highway.hpp>
#include <tigon/simd/engines/scalar.hpp>
#include <tigon/simd/engines/xsimd.hpp>
#include <tigon/simd/math/random.hpp>
#include <vector>

#include "support/typed.hpp"

namespace {

namespace simd = tigon::simd;
using tigon::bfloat16;

constexpr std::size_t count = 1 << 16;

/// Bits of counters [first, first + count).
template <class E>
std::vector<std::uint32_t> draw(simd::random_key key, std::size_t first = 0) {
  using V = simd::vec<E, float>;
  std::vector<std::uint32_t> out(count);
  alignas(64) float buffer[V::size];
  for (std::size_t i = 0; i < count; i += V::size) {
    simd::store(simd::random_bits(V::iota() + V(static_cast<float>(first + i)), key), buffer);
    for (std::size_t k = 0; k < V::size; ++k) out[i + k] = std::bit_cast<std::uint32_t>(buffer[k]);
  }
  return out;
}
template <class E>
float rounded(float x, std::uint32_t random) {
  using V = simd::vec<E, float>;
  alignas(64) float buffer[V::size];
  simd::store(simd::round_to_bfloat16_by(V(x), V(std::bit_cast<float>(random))), buffer);
  return buffer[V::size - 1];
}

template <class E>
class random_bits : public testing::Test {};
using engines = testing::Types<simd::scalar, simd::eigen, simd::xsimd, simd::highway>;
TYPED_TEST_SUITE(random_bits, engines);

TYPED_TEST(random_bits, are_the_same_on_every_engine) {
  // By its definition.
  const simd::random_key key = simd::random_key_of(1, 2, 3);
  const auto bits = draw<TypeParam>(key);
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t x = (0x4b000000u + i) ^ key.first;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = ((x ^ (x >> 15)) + key.second) * 0x846ca68bu;
    ASSERT_EQ(bits[i], x ^ (x >> 16)) << i;
  }
  EXPECT_EQ(draw<TypeParam>(key, 1000)[0], bits[1000]);
}

TYPED_TEST(random_bits, round_to_a_neighbour) {
  for (const float x : {1.0f, -1.0f, 0.0f, 3.140625f, 0x1p-126f, -0x1p-130f, 0x1.fep127f,
                        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()})
    for (const std::uint32_t r : {0u, 1u, 0x8000u, 0xffffu, 0xffff0000u, 0xffffffffu})
      EXPECT_EQ(rounded<TypeParam>(x, r), x) << r;  // bf16 has them all
  for (const std::uint32_t nan : {0x7fc00000u, 0xffffffffu, 0x7fffffffu, 0x7fc00001u})
    EXPECT_TRUE(std::isnan(rounded<TypeParam>(std::bit_cast<float>(nan), 0xffff)));
  // A quarter of the way from 1 to its neighbour.
  const float quarter = 1 + 0x1p-9f;
  EXPECT_EQ(rounded<TypeParam>(quarter, 0xbfff), 1.0f);
  EXPECT_EQ(rounded<TypeParam>(quarter, 0xc000), 1 + 0x1p-7f);
  EXPECT_EQ(rounded<TypeParam>(-quarter, 0xc000), -1 - 0x1p-7f);
  EXPECT_EQ(rounded<TypeParam>(quarter, 0x1234c000), 1 + 0x1p-7f);  // the other bits do not count
  EXPECT_EQ(rounded<TypeParam>(0x1.fffffep127f, 0xffff), std::numeric_limits<float>::infinity());
}

/// Six standard deviations of a sum of `n` fair bits.
double limit(std::size_t n) { return 3 * std::sqrt(static_cast<double>(n)); }

TEST(random_bits_are, fair_and_independent) {
  const auto a = draw<simd::scalar>(simd::random_key_of(7, 1)), b = draw<simd::scalar>(simd::random_key_of(7, 2)),
             c = draw<simd::scalar>(simd::random_key_of(8, 1));
  const auto ones = [](auto word) {
    for (int bit = 0; bit < 32; ++bit) {
      double sum = 0;
      for (std::size_t i = 0; i < count; ++i) sum += (word(i) >> bit & 1) - 0.5;
      EXPECT_LT(std::abs(sum), limit(count)) << "bit " << bit;
    }
  };
  ones([&](std::size_t i) { return a[i]; });
  ones([&](std::size_t i) { return a[i] ^ b[i]; });                 // of two steps
  ones([&](std::size_t i) { return a[i] ^ c[i]; });                 // of two seeds
  ones([&](std::size_t i) { return a[i] ^ a[(i + 1) % count]; });   // of neighbours
  ones([&](std::size_t i) { return a[i] ^ std::rotl(a[i], 16); });  // of the two halves
  ones([&](std::size_t i) { return a[i] ^ std::rotl(a[i], 1); });
  ones([&](std::size_t i) { return a[i] ^ a[i ^ 1024]; });
  // The last 16 bits by their first 8: 256 places, each as often as chance has it.
  for (const int shift : {8, 24}) {
    std::array<double, 256> seen{};
    for (const std::uint32_t x : a) ++seen[x >> shift & 255];
    double chi = 0;
    for (const double n : seen) chi += (n - count / 256.0) * (n - count / 256.0) / (count / 256.0);
    EXPECT_LT(std::abs(chi - 255), 6 * std::sqrt(2 * 255.0));
  }
}

}  // namespace
