// The comparison of fuzz programs: one that cannot fail makes every case worthless.
#include <gtest/gtest.h>

#include <limits>
#include <utility>
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

/// Whether a call that writes value(context, number of the call) is a finding, with so many more calls.
template <class F>
bool is_finding_of_calls(std::size_t repeats, F value) {
  using backend = backends::generic;
  const std::size_t repeats_before = std::exchange(fuzz::repeats, repeats);
  fuzz::source in({});
  fuzz::problem<backend, float> p(in, "op");
  auto& a = p.matrix("a", 1, 1);
  std::size_t calls = 0;
  bool found = false;
  try {
    p.call({&a}, [&](auto s) { *a.at(s).data = value(s.ctx, ++calls); });
  } catch (const fuzz::finding&) {
    found = true;
  }
  fuzz::repeats = repeats_before;
  return found;
}

TEST(fuzz_calls, have_to_give_the_same_bits) {
  EXPECT_FALSE(is_finding_of_calls(9, [](context&, std::size_t) { return 1; }));
  // The second call is that of generic, one more repeats the first.
  EXPECT_TRUE(is_finding_of_calls(9, [](context&, std::size_t call) { return call == 12 ? 2 : 1; }));
}

TEST(fuzz_calls, have_to_give_the_same_bits_with_any_number_of_threads) {
  for (const std::size_t wrong : {3, 4, 5, 7, 16})
    EXPECT_TRUE(is_finding_of_calls(1, [=](context& ctx, std::size_t) {
      return ctx.executor().workers() == wrong ? 2 : 1;
    })) << wrong;
}

}  // namespace
