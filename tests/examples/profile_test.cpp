// The profile of the training example: what it records, how it adds up, and the trace that it leaves.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>

#include "../../support/profile.hpp"

namespace {

using example::profile, example::profile_row, example::profile_summary;

void work_for(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

/// A step of two passes, and calls before and behind it that are nobody's.
void take_step(profile* to) {
  {
    const auto step = profile::step(to);
    {
      const auto pass = profile::part(to, "forward");
      for (int i = 0; i < 2; ++i) {
        const auto call = profile::call(to, "gemm", {.flops = 1e6, .bytes = 1e3});
        work_for(2);
      }
    }
    const auto pass = profile::part(to, "backward");
    const auto call = profile::call(to, "gemm", {.flops = 0, .bytes = 4e6});
    work_for(3);
  }
  const auto part = profile::part(to, "forward");
  const auto call = profile::call(to, "sampled", {});
}

TEST(profile, adds_up_to_the_steps) {
  tigon::thread_pool pool(2);
  profile p(pool);
  for (int i = 0; i < 6; ++i) take_step(&p);
  EXPECT_EQ(p.steps(), 6u);
  EXPECT_EQ(p.events().size(), 6u * 6);
  for (const std::size_t threads : {1u, 2u}) {
    const profile_summary s(p, threads, {.flops = 1e9, .bytes = 1e9});
    ASSERT_EQ(s.rows.size(), 3u);
    EXPECT_EQ(s.rows[0].name, "gemm");
    EXPECT_EQ(s.rows[0].pass, "forward");
    EXPECT_EQ(s.rows[1].name, "gemm");
    EXPECT_EQ(s.rows[1].pass, "backward");
    EXPECT_NEAR(s.rows[0].calls, 2, 1e-9);
    EXPECT_NEAR(s.rows[1].calls, 1, 1e-9);
    EXPECT_GE(s.rows[0].seconds, 4e-3);
    EXPECT_GE(s.rows[1].seconds, 3e-3);
    // The larger of what its products and its bytes take: a millisecond each, and four.
    EXPECT_NEAR(s.rows[0].least_seconds, 2e-3, 1e-9);
    EXPECT_NEAR(s.rows[1].least_seconds, 4e-3, 1e-9);
    double sum = 0;
    for (const profile_row& row : s.rows) sum += row.seconds;
    EXPECT_NEAR(sum, s.step_seconds, 1e-9);
    EXPECT_TRUE(s.rows[2].pass.empty());
  }
}

TEST(profile, runs_steps_on_all_threads_and_on_one) {
  tigon::thread_pool pool(3), single(1);
  profile p(pool), alone(single);
  for (const std::size_t threads : {3u, 1u, 3u}) {
    const auto step = profile::step(&p);
    EXPECT_EQ(p.workers(), threads);
    std::atomic<int> sum = 0;
    p.run(5, [&](std::size_t task, std::size_t worker) {
      EXPECT_LT(worker, threads);
      sum += static_cast<int>(task);
    });
    EXPECT_EQ(sum, 10);
  }
  EXPECT_FALSE(p.counts(1));
  EXPECT_TRUE(p.counts(2));
  take_step(&alone);
  EXPECT_TRUE(alone.counts(0));
  EXPECT_EQ(alone.threads(0), 1u);
  take_step(&alone);
  EXPECT_FALSE(alone.counts(0));
}

TEST(profile, without_one_nothing_is_recorded) { take_step(nullptr); }

TEST(profile, leaves_a_trace_of_nested_events) {
  tigon::thread_pool pool(2);
  profile p(pool);
  for (int i = 0; i < 2; ++i) take_step(&p);
  const auto events = nlohmann::json::parse(p.trace());
  ASSERT_TRUE(events.is_array());
  ASSERT_EQ(events.size(), 12u);
  const auto end = [](const auto& e) { return double{e["ts"]} + double{e["dur"]}; };
  const auto within = [&](const auto& inner, const auto& outer) {
    return double{inner["ts"]} >= double{outer["ts"]} && end(inner) <= end(outer) + 2e-3 &&
           inner["tid"] == outer["tid"];
  };
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto& e = events[i];
    EXPECT_EQ(e["ph"], "X");
    EXPECT_EQ(e["pid"], 1);
    const std::size_t in_step = i % 6, first = i - in_step;
    constexpr std::string_view names[] = {"step", "forward", "gemm", "gemm", "backward", "gemm"};
    EXPECT_EQ(std::string(e["name"]), names[in_step]);
    EXPECT_EQ(e["tid"], i < 6 ? 1 : 2);  // on all threads, and on one
    EXPECT_EQ(e["args"]["threads"], i < 6 ? 2 : 1);
    EXPECT_TRUE(within(e, events[first]));
    EXPECT_TRUE((in_step != 2 && in_step != 3) || within(e, events[first + 1]));
    EXPECT_TRUE(in_step != 5 || within(e, events[first + 4]));
    EXPECT_EQ(e["cat"], in_step == 2 || in_step == 3 ? "forward" : in_step == 5 ? "backward" : "");
  }
  EXPECT_EQ(events[2]["args"]["flops"], 1e6);
  EXPECT_GE(double{events[2]["dur"]}, 2000);
}

}  // namespace
