// The helpers themselves: a helper that cannot fail makes every test that uses it worthless.
#include <gtest/gtest.h>

#include <complex>
#include <limits>

#include "central_difference.hpp"
#include "complex_step.hpp"
#include "errors.hpp"
#include "golden.hpp"
#include "guarded.hpp"
#include "threads.hpp"
#include "throws.hpp"

namespace {

using namespace tigon::test;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(guarded, faults_one_element_too_far) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  guarded<float> behind(5, guard::behind), before(5, guard::before);
  volatile float* p = behind.data();
  volatile float* q = before.data();
  p[4] = 1;
  q[0] = 1;
  EXPECT_DEATH(p[5] = 1, "");
  EXPECT_DEATH(q[-1] = 1, "");
  guarded<tigon::bfloat16> none(0);
  EXPECT_DEATH(*const_cast<volatile std::uint16_t*>(&none.data()->bits) = 1, "");
}

TEST(guarded, knows_what_was_written) {
  guarded_matrix<float> m(3, 4, 2);
  EXPECT_TRUE(m.untouched());
  EXPECT_TRUE(std::isnan(m(1, 1)));
  m.assign(std::vector<double>(12, 1.0));
  EXPECT_FALSE(m.untouched());
  EXPECT_TRUE(m.padding_intact());
  m(1, 5) = 0;
  EXPECT_FALSE(m.padding_intact());
}

TEST(close, wants_the_same_nan_and_infinities) {
  const std::vector<double> want{1, nan, infinity, -infinity};
  EXPECT_TRUE(close(want, want, 0));
  EXPECT_FALSE(close(std::vector{nan, nan, infinity, -infinity}, want, 1e9));
  EXPECT_FALSE(close(std::vector<double>{1, 1, infinity, -infinity}, want, 1e9));
  EXPECT_FALSE(close(std::vector<double>{1, nan, -infinity, -infinity}, want, 1e9));
  EXPECT_FALSE(close(std::vector<double>{1, nan, 1e300, -infinity}, want, 1e9));
}

TEST(close, bounds_by_entry_and_scale) {
  EXPECT_TRUE(close(std::vector{1e-9, 1.0}, std::vector{0.0, 1.0}, 2e-9));
  EXPECT_FALSE(close(std::vector{1e-9, 1.0}, std::vector{0.0, 1.0}, 1e-9));
  EXPECT_FALSE(close(std::vector{1e-9}, std::vector{0.0}, 1.0));
  EXPECT_TRUE(close(std::vector{1e-9}, std::vector{0.0}, 2e-9, {.scale = 1}));
  EXPECT_FALSE(close(std::vector{1.0}, std::vector{1.0, 1.0}, 1.0));
  EXPECT_FALSE(close({}, {}, 1.0));
  EXPECT_TRUE(close({}, {}, 1.0, {.may_be_empty = true}));
}

TEST(measure, follows_its_definition) {
  EXPECT_DOUBLE_EQ(measure(std::vector{3.0, 4.5}, std::vector{3.0, 4.0}).rel_l2, 0.1);
  EXPECT_EQ(measure(std::vector{1e-3}, std::vector{0.0}).rel_l2, infinity);
  EXPECT_EQ(measure(std::vector{1e-3}, std::vector{0.0}).max_abs, 1e-3);
  EXPECT_EQ(measure(std::vector{nan}, std::vector{1.0}).max_abs, infinity);
  EXPECT_EQ(ulp_distance(-0.0f, 0.0f), 0u);
  EXPECT_EQ(ulp_distance(std::nextafter(0.0f, -1.0f), std::nextafter(0.0f, 1.0f)), 2u);
  EXPECT_EQ(ulp_distance(1.0, std::nextafter(1.0, 2.0)), 1u);
}

TEST(derivatives, agree_with_calculus) {
  const auto f = [](const auto& x) { return exp(x[0]) * x[1] / x[2]; };
  const std::vector<double> x{0.3, -2.0, 1.5};
  const std::vector<double> want{-2 * std::exp(0.3) / 1.5, std::exp(0.3) / 1.5, 2 * std::exp(0.3) / 2.25};
  EXPECT_TRUE(close(complex_step(f, x, probes(3)), want, 1e-15));
  EXPECT_TRUE(close(central_difference(f, x, probes(3)), want, 1e-10));
}

TEST(refuses, sees_code_sentence_and_writes) {
  guarded<float> out(3);
  const auto fail = [] { tigon::detail::fail(tigon::error_code::alias, "tigon: op: y overlaps x"); };
  const auto write_and_fail = [&] { out[0] = 1, fail(); };
  EXPECT_TRUE(refuses(fail, tigon::error_code::alias, "y overlaps x", out));
  EXPECT_FALSE(refuses(fail, tigon::error_code::shape, "y overlaps x", out));
  EXPECT_FALSE(refuses(fail, tigon::error_code::alias, "x overlaps y", out));
  EXPECT_FALSE(refuses(write_and_fail, tigon::error_code::alias, "y overlaps x", out));
  EXPECT_FALSE(refuses([] {}, tigon::error_code::alias, "", out));
}

TEST(threads, sees_a_sum_in_the_order_of_arrival) {
  const auto run = [](bool fixed_order) {
    return [=](tigon::context& ctx) {
      guarded<std::int64_t> last_worker(1);
      ctx.executor().run(64, [&](std::size_t task, std::size_t) {
        if (fixed_order && task == 0) last_worker[0] = static_cast<std::int64_t>(7);
      });
      if (!fixed_order) last_worker[0] = static_cast<std::int64_t>(ctx.executor().workers());
      return bits_of(last_worker);
    };
  };
  EXPECT_TRUE(same_bits_for_any_threads(run(true)));
  EXPECT_FALSE(same_bits_for_any_threads(run(false)));
}

TEST(threads, sees_workers_that_share_scratch_memory) {
  const auto run = [](bool apart) {
    return [=](tigon::context& ctx) {
      guarded<int> squares(9);
      ctx.workspace().expect("test", 7 * tigon::workspace::alignment);
      tigon::workspace::frame frame(ctx.workspace());
      int* scratch = frame.take<int>(7 * 16);
      ctx.executor().run(1, [&](std::size_t, std::size_t) { std::fill_n(scratch, 7 * 16, -1); });
      ctx.executor().run(9, [&](std::size_t task, std::size_t worker) {
        int* own = scratch + (apart ? worker * 16 : task % 8 * 8);
        *own = static_cast<int>(task);
        squares[task] = *own * *own;
      });
      return bits_of(squares);
    };
  };
  EXPECT_TRUE(same_bits_for_any_threads(run(true)));
  EXPECT_FALSE(same_bits_for_any_threads(run(false)));
}

golden::verdict judged(double got, double want, std::string dtype, bool quirk, golden::liger_error bar) {
  golden::problem p;
  p.dtype = dtype, p.quirk = quirk;
  p.reference["y"] = {"f64", {1}, {want}};
  return golden::judge(p, "y", {got}, bar);
}

TEST(golden, bar_is_the_largest_of_three) {
  const golden::liger_error liger{error_measure{1e-4, 1e-4}, {1e-8, 1e-8}};
  EXPECT_TRUE(judged(1.00009, 1, "f32", false, liger).passes);
  EXPECT_FALSE(judged(1.00011, 1, "f32", false, liger).passes);
  EXPECT_FALSE(judged(1.00009, 1, "f32", true, liger).passes);
  EXPECT_TRUE(judged(1.0000002, 1, "f32", true, liger).passes);
  EXPECT_FALSE(judged(1.000001, 1, "f32", false, {std::nullopt, {}}).passes);
  EXPECT_TRUE(judged(1.003, 1, "bf16", true, liger).passes);
  EXPECT_TRUE(judged(1.00019, 1, "f32", true, {std::nullopt, {1e-4, 1e-4}}).passes);
  EXPECT_TRUE(judged(9e-5, 0, "f32", false, liger).passes);
  EXPECT_FALSE(judged(9e-5, 0, "f32", true, liger).passes);
  EXPECT_FALSE(judged(nan, 1, "f32", false, liger).passes);
}

}  // namespace
