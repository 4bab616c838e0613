// What the lanes of every engine promise: NaN in minima, maxima and comparisons, division and square root that are
// rounded once, shifts of bits, and pairs of neighbours where there are two.
#include <gtest/gtest.h>

#include <tigon/simd/engines/eigen.hpp>
#include <tigon/simd/engines/highway.hpp>
#include <tigon/simd/engines/scalar.hpp>
#include <tigon/simd/engines/vectors.hpp>
#include <tigon/simd/engines/xsimd.hpp>
#include <tigon/simd/math.hpp>
#include <tigon/simd/vec.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "support/typed.hpp"

namespace {

namespace simd = tigon::simd;

/// The lanes that highway has where Highway has none, on any machine.
struct own_vectors {
  static constexpr std::string_view name = "vectors";
  template <class A>
  using lanes = simd::vectors::lanes<A>;
};

template <class V>
class lanes : public testing::Test {
 protected:
  using A = typename V::value_type;
  static constexpr std::size_t n = V::size;

  static std::array<A, n> lanes_of(V v) {
    std::array<A, n> out;
    simd::store(v, out.data());
    return out;
  }
  static V numbers() { return V::iota() + V(A(10)); }  // 10, 11, ...

  /// Edges, and NaN of either sign, quiet and signalling, with payloads.
  static std::vector<A> edges() {
    using word = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
    using limits = std::numeric_limits<A>;
    constexpr word infinity = std::bit_cast<word>(limits::infinity()), sign = word{1} << (8 * sizeof(A) - 1);
    std::vector<A> out{A(0), A(1), A(2.5), limits::max(), limits::min(), limits::infinity()};
    for (const word payload : {std::bit_cast<word>(limits::quiet_NaN()) - infinity, word{1}, infinity ^ (sign - 1)})
      out.push_back(std::bit_cast<A>(infinity + payload));
    for (std::size_t i = 0, size = out.size(); i < size; ++i)
      out.push_back(std::bit_cast<A>(std::bit_cast<word>(out[i]) | sign));
    return out;
  }
};

/// The same bits but for those of NaN.
template <class A>
bool same(A a, A b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

struct engine_and_number {
  template <class V>
  static std::string GetName(int) {
    return std::string(V::engine::name) + (sizeof(typename V::value_type) == 4 ? "_f32" : "_f64");
  }
};
using engines =
    testing::Types<simd::vec<simd::scalar, float>, simd::vec<simd::scalar, double>, simd::vec<simd::eigen, float>,
                   simd::vec<simd::eigen, double>, simd::vec<simd::xsimd, float>, simd::vec<simd::xsimd, double>,
                   simd::vec<simd::highway, float>, simd::vec<simd::highway, double>, simd::vec<own_vectors, float>,
                   simd::vec<own_vectors, double>>;
TYPED_TEST_SUITE(lanes, engines, engine_and_number);

TYPED_TEST(lanes, minimum_and_maximum_keep_the_second_nan) {
  using A = typename TypeParam::value_type;
  constexpr std::size_t n = TypeParam::size;
  for (const A x : this->edges())
    for (const A y : this->edges())
      for (std::size_t lane = 0; lane < n; ++lane) {
        std::array<A, n> a, b;
        a.fill(A(3)), b.fill(A(4));
        a[lane] = x, b[lane] = y;
        const TypeParam va = simd::load<TypeParam>(a.data()), vb = simd::load<TypeParam>(b.data());
        const auto low = this->lanes_of(min(va, vb)), high = this->lanes_of(max(va, vb));
        for (std::size_t i = 0; i < n; ++i) {
          SCOPED_TRACE(testing::Message() << a[i] << " and " << b[i] << " in lane " << i << " of " << n);
          if (std::isnan(b[i])) {
            ASSERT_TRUE(std::isnan(low[i]) && std::isnan(high[i])) << low[i] << ", " << high[i];
            ASSERT_TRUE(std::isnan(tigon::math::min(a[i], b[i])) && std::isnan(tigon::math::max(a[i], b[i])));
          } else if (std::isnan(a[i])) {
            ASSERT_TRUE(std::isnan(low[i]) || low[i] == b[i]) << low[i];
            ASSERT_TRUE(std::isnan(high[i]) || high[i] == b[i]) << high[i];
          } else {
            ASSERT_EQ(low[i], std::min(a[i], b[i]));
            ASSERT_EQ(high[i], std::max(a[i], b[i]));
          }
        }
      }
}

TYPED_TEST(lanes, extrema_of_lanes_are_lanes_or_nan) {
  using A = typename TypeParam::value_type;
  constexpr std::size_t n = TypeParam::size;
  const A nan = std::numeric_limits<A>::quiet_NaN();
  EXPECT_TRUE(std::isnan(max_lanes(TypeParam(nan))));
  EXPECT_TRUE(std::isnan(min_lanes(TypeParam(nan))));
  for (std::size_t lane = 0; lane < n; ++lane) {
    auto x = this->lanes_of(this->numbers());
    x[lane] = A(100);
    EXPECT_EQ(max_lanes(simd::load<TypeParam>(x.data())), A(100)) << lane;
    x[lane] = A(-100);
    EXPECT_EQ(min_lanes(simd::load<TypeParam>(x.data())), A(-100)) << lane;
    x[lane] = nan;
    for (const A got : {max_lanes(simd::load<TypeParam>(x.data())), min_lanes(simd::load<TypeParam>(x.data()))})
      EXPECT_TRUE(std::isnan(got) || std::find(x.begin(), x.end(), got) != x.end()) << got << " with NaN in " << lane;
    EXPECT_TRUE(std::isnan(sum_lanes(simd::load<TypeParam>(x.data())))) << lane;
  }
}

TYPED_TEST(lanes, comparisons_with_nan_are_false_and_functions_keep_it) {
  using A = typename TypeParam::value_type;
  const auto first = [this](auto mask) {
    return this->lanes_of(select(mask, TypeParam(A(1)), TypeParam(A(0))))[0] == A(1);
  };
  for (const A x : this->edges())
    for (const A y : this->edges()) {
      const TypeParam a(x), b(y);
      EXPECT_EQ(first(a < b), x < y) << x << " " << y;
      EXPECT_EQ(first(a <= b), x <= y) << x << " " << y;
      EXPECT_EQ(first(a > b), x > y) << x << " " << y;
      EXPECT_EQ(first(a >= b), x >= y) << x << " " << y;
      EXPECT_EQ(first(a == b), x == y) << x << " " << y;
      EXPECT_EQ(first(not_above(a, b)), !(x > y)) << x << " " << y;
      EXPECT_EQ(first(a < b || a == b), x <= y) << x << " " << y;
      EXPECT_EQ(first(a < b && !is_nan(a)), x < y) << x << " " << y;
    }
  for (const A x : this->edges()) {
    const TypeParam a(x);
    for (const TypeParam y : {abs(a), -a, sqrt(a), round(a), fma(a, TypeParam(A(2)), a), fnma(a, TypeParam(A(2)), a),
                              copysign(a, TypeParam(A(-1))), normal_or_zero(a)})
      EXPECT_TRUE(!std::isnan(x) || std::isnan(this->lanes_of(y)[0])) << x;
    EXPECT_EQ(first(is_nan(a)), std::isnan(x)) << x;
    EXPECT_TRUE(same(this->lanes_of(abs(a))[0], std::abs(x))) << x;
    EXPECT_TRUE(same(this->lanes_of(-a)[0], -x)) << x;
    EXPECT_TRUE(std::isnan(x) || this->lanes_of(round(a))[0] == std::nearbyint(x)) << x;
  }
}

TYPED_TEST(lanes, division_and_square_root_are_rounded_once) {
  using A = typename TypeParam::value_type;
  constexpr std::size_t n = TypeParam::size;
  std::mt19937 random(1);
  std::vector<A> x = this->edges();
  x.push_back(std::numeric_limits<A>::denorm_min());
  for (int i = 0; i < 2000; ++i)
    x.push_back(std::ldexp(A(1) + static_cast<A>(random()) / A(4294967296), static_cast<int>(random() % 200) - 100));
  x.resize((x.size() + n - 1) / n * n, A(1));
  std::vector<A> y(x.rbegin(), x.rend());
  for (std::size_t i = 0; i < x.size(); i += n) {
    const auto a = simd::load<TypeParam>(x.data() + i), b = simd::load<TypeParam>(y.data() + i);
    const auto quotient = this->lanes_of(a / b), root = this->lanes_of(sqrt(a));
    for (std::size_t k = 0; k < n; ++k) {
      EXPECT_TRUE(same(quotient[k], x[i + k] / y[i + k])) << x[i + k] << " / " << y[i + k] << ": " << quotient[k];
      EXPECT_TRUE(same(root[k], std::sqrt(x[i + k]))) << x[i + k] << ": " << root[k];
    }
  }
}

TYPED_TEST(lanes, numbers_round_to_the_nearest_whole_one_ties_to_even) {
  using A = typename TypeParam::value_type;
  const A whole = A(1) / std::numeric_limits<A>::epsilon();  // and above it there are no fractions
  for (const A size : {A(0), A(0.25), A(0.5), A(0.75), A(1.5), A(2.5), A(3.5), A(1000.5), whole / 2 - A(0.5),
                       whole / 2 + A(0.5), whole - A(0.5), whole - A(1), whole, whole + A(1), 2 * whole + A(2)})
    for (const A x : {size, -size}) {
      const A got = this->lanes_of(round(TypeParam(x)))[TypeParam::size - 1];
      EXPECT_TRUE(got == std::nearbyint(x) && std::signbit(got) == std::signbit(x)) << x << ": " << got;
    }
}

TYPED_TEST(lanes, lanes_are_numbered_and_summed) {
  using A = typename TypeParam::value_type;
  constexpr std::size_t n = TypeParam::size;
  const auto numbers = this->lanes_of(this->numbers());
  A sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_EQ(numbers[i], static_cast<A>(10 + i)) << i;
    sum += numbers[i];
  }
  EXPECT_EQ(sum_lanes(this->numbers()), sum);
}

TYPED_TEST(lanes, xsimd_sums_in_one_order_whatever_its_version) {
  using A = typename TypeParam::value_type;
  if constexpr (!std::same_as<typename TypeParam::engine, simd::xsimd>) {
    GTEST_SKIP() << "of one library alone";
  } else {
    std::mt19937 random(3);
    for (int repeat = 0; repeat < 100; ++repeat) {
      std::vector<A> x(TypeParam::size);
      for (A& v : x) v = static_cast<A>(random()) / A(3) - A(500000000);
      const A sum = sum_lanes(simd::load<TypeParam>(x.data()));
      // Halves, and of four numbers the neighbours first where there is an instruction for that.
#if defined(__SSE2__) && !defined(__SSE3__)
      constexpr std::size_t fours = 0;
#else
      constexpr std::size_t fours = sizeof(A) == 4 ? 4 : 0;
#endif
      while (x.size() > 1) {
        const std::size_t half = x.size() / 2;
        for (std::size_t i = 0; i < half; ++i) x[i] = x.size() == fours ? x[2 * i] + x[2 * i + 1] : x[i] + x[i + half];
        x.resize(half);
      }
      EXPECT_EQ(sum, x[0]);
    }
  }
}

TYPED_TEST(lanes, bits_are_shifted_within_a_lane) {
  using A = typename TypeParam::value_type;
  using word = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  std::array<A, TypeParam::size> x;
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = std::bit_cast<A>(static_cast<word>(0x9e3779b97f4a7c15u * (i + 1)) & ~(word{1} << (8 * sizeof(A) - 2)));
  const auto v = simd::load<TypeParam>(x.data());
  const auto left = this->lanes_of(v.template shl<7>()), right = this->lanes_of(v.template shr<7>());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto bits = std::bit_cast<word>(x[i]);
    EXPECT_EQ(std::bit_cast<word>(left[i]), static_cast<word>(bits << 7)) << i;
    EXPECT_EQ(std::bit_cast<word>(right[i]), static_cast<word>(bits >> 7)) << i;
  }
}

TYPED_TEST(lanes, pairs_are_exchanged_doubled_and_signed) {
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

TYPED_TEST(lanes, pairs_are_taken_apart_and_put_together) {
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
