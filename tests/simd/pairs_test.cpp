// Pairs of neighbouring lanes, on every engine that has two.
#include <gtest/gtest.h>

#include <tigon/simd/engines/eigen.hpp>
#include <tigon/simd/engines/highway.hpp>
#include <tigon/simd/engines/scalar.hpp>
#include <tigon/simd/engines/xsimd.hpp>
#include <tigon/simd/vec.hpp>

#include <array>

namespace {

namespace simd = tigon::simd;

template <class V>
class pairs : public testing::Test {
 protected:
  using A = typename V::value_type;
  static constexpr std::size_t n = V::size;

  static std::array<A, n> lanes_of(V v) {
    std::array<A, n> out;
    simd::store(v, out.data());
    return out;
  }
  static V numbers() { return V::iota() + V(A(10)); }  // 10, 11, ...
};

struct engine_and_number {
  template <class V>
  static std::string GetName(int) {
    return std::string(V::engine::name) + (sizeof(typename V::value_type) == 4 ? "_f32" : "_f64");
  }
};
using engines =
    testing::Types<simd::vec<simd::scalar, float>, simd::vec<simd::scalar, double>, simd::vec<simd::eigen, float>,
                   simd::vec<simd::eigen, double>, simd::vec<simd::xsimd, float>, simd::vec<simd::xsimd, double>,
                   simd::vec<simd::highway, float>, simd::vec<simd::highway, double>>;
TYPED_TEST_SUITE(pairs, engines, engine_and_number);

TYPED_TEST(pairs, are_exchanged_doubled_and_signed) {
  using A = typename TypeParam::value_type;
  if constexpr (TypeParam::size == 1) {
    GTEST_SKIP() << "one lane is half a pair";
  } else {
    const auto swapped = this->lanes_of(swap_pairs(this->numbers())), even = this->lanes_of(dup_even(this->numbers())),
               odd = this->lanes_of(dup_odd(this->numbers())), signs = this->lanes_of(TypeParam::pair_signs());
    for (std::size_t i = 0; i < TypeParam::size; ++i) {
      EXPECT_EQ(swapped[i], static_cast<A>(10 + (i % 2 == 0 ? i + 1 : i - 1))) << i;
      EXPECT_EQ(even[i], static_cast<A>(10 + i - i % 2)) << i;
      EXPECT_EQ(odd[i], static_cast<A>(11 + i - i % 2)) << i;
      EXPECT_EQ(signs[i], i % 2 == 0 ? A(-1) : A(1)) << i;
    }
  }
}

TYPED_TEST(pairs, are_taken_apart_and_put_together) {
  using A = typename TypeParam::value_type;
  constexpr std::size_t n = TypeParam::size;
  if constexpr (n == 1) {
    GTEST_SKIP() << "one lane is half a pair";
  } else {
    const TypeParam first = this->numbers(), second = first + TypeParam(A(n));
    const auto even = this->lanes_of(even_lanes(first, second)), odd = this->lanes_of(odd_lanes(first, second)),
               low = this->lanes_of(zip_low(first, second)), high = this->lanes_of(zip_high(first, second));
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(even[i], static_cast<A>(10 + 2 * i)) << i;
      EXPECT_EQ(odd[i], static_cast<A>(11 + 2 * i)) << i;
      EXPECT_EQ(low[i], static_cast<A>(10 + i / 2 + i % 2 * n)) << i;
      EXPECT_EQ(high[i], static_cast<A>(10 + (n + i) / 2 + i % 2 * n)) << i;
    }
  }
}

}  // namespace
