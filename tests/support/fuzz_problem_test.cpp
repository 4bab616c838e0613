// The comparison of fuzz programs: one that cannot fail makes every case worthless.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "fuzz/problem.hpp"

namespace {

using namespace tigon;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Whether `got` in T is a finding, where f64 has `want` and the bound is a thousandth.
template <class T>
bool is_finding(double got, double want) {
  using backend = backends::generic;
  fuzz::source in({});
  fuzz::problem<backend, T> p(in, "op");
  auto& a = p.matrix("a", 1, 1);
  *a.at(fuzz::on_tested<backend, T>{default_context()}).data = test::from_f64<T>(got);
  *a.at(fuzz::on_reference{default_context()}).data = want;
  try {
    p.compare(a, {.bound = 1e-3});
  } catch (const fuzz::finding&) {
    return true;
  }
  return false;
}

TEST(fuzz_comparison, sees_errors_beyond_the_bound) {
  EXPECT_FALSE(is_finding<float>(1.001, 1));
  EXPECT_TRUE(is_finding<float>(1.003, 1));
  EXPECT_TRUE(is_finding<float>(nan, 1));
  EXPECT_TRUE(is_finding<float>(1, nan));
  EXPECT_FALSE(is_finding<float>(nan, nan));
}

TEST(fuzz_comparison, infinity_is_right_only_beyond_the_type) {
  EXPECT_FALSE(is_finding<float16>(infinity, 92685));
  EXPECT_FALSE(is_finding<float16>(-infinity, -92685));
  EXPECT_FALSE(is_finding<float16>(infinity, 65500));  // rounds up within the bound
  EXPECT_FALSE(is_finding<float16>(65504, 65600));
  EXPECT_TRUE(is_finding<float16>(-infinity, 92685));
  EXPECT_TRUE(is_finding<float16>(infinity, 60000));
  EXPECT_TRUE(is_finding<float16>(65504, 92685));
  EXPECT_TRUE(is_finding<float16>(nan, 92685));
  EXPECT_TRUE(is_finding<bfloat16>(infinity, 92685));
  EXPECT_TRUE(is_finding<float>(infinity, 92685));
}

}  // namespace
