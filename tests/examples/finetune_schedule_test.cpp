#include "../../examples/finetune/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

using namespace example::finetune;

TEST(finetune_schedule, rates_are_those_of_transformers) {
  std::ifstream in(std::filesystem::path(__FILE__).parent_path() / "fixtures" / "finetune_text" / "rates.txt");
  std::string line, name;
  int schedules = 0;
  for (; std::getline(in, line); ++schedules) {
    std::istringstream words(line);
    schedule rates;
    rates.peak = 0.003;
    words >> name >> rates.steps >> rates.warmup >> rates.least;
    rates.shape = name.starts_with("constant") ? schedule::kind::constant
                  : name == "linear"           ? schedule::kind::linear
                                               : schedule::kind::cosine;
    std::size_t step = 0;
    // A few roundings and one cosine apart.
    for (double expected = 0; words >> expected; ++step)
      EXPECT_NEAR(rates(step), expected, 1e-17) << name << ' ' << rates.steps << ", step " << step;
    EXPECT_EQ(step, rates.steps);
  }
  EXPECT_EQ(schedules, 10);
}

TEST(finetune_schedule, the_least_rate_is_reached_at_the_end) {
  for (const auto shape : {schedule::kind::linear, schedule::kind::cosine}) {
    const schedule rates{shape, 2.0, 100, 10, 0.25};
    EXPECT_EQ(rates(10), 2.0);
    EXPECT_NEAR(rates(100), 0.5, 1e-15);
    for (std::size_t step = 10; step < 100; ++step) EXPECT_GT(rates(step), rates(step + 1));
  }
  EXPECT_EQ((schedule{schedule::kind::linear, 2.0, 100, 10, 0.25}(5000)), 0.5);
}

TEST(finetune_schedule, warm_up_by_share_is_rounded_up) {
  EXPECT_EQ(warmup_steps(100, 0.0), 0u);
  EXPECT_EQ(warmup_steps(101, 0.03), 4u);
  EXPECT_EQ(warmup_steps(10, 1.0), 10u);
  EXPECT_THROW(warmup_steps(10, -0.1), std::runtime_error);
  EXPECT_THROW(warmup_steps(10, 1.5), std::runtime_error);
  EXPECT_THROW(warmup_steps(10, std::nan("")), std::runtime_error);
}

TEST(finetune_schedule, a_run_ends_after_evaluations_that_are_no_better) {
  early_stop stop(2, 0.1);
  EXPECT_FALSE(stop(3.0));
  EXPECT_TRUE(stop.better());
  EXPECT_FALSE(stop(2.95));  // not by more than the margin
  EXPECT_FALSE(stop.better());
  EXPECT_FALSE(stop(2.5));
  EXPECT_TRUE(stop.better());
  EXPECT_EQ(stop.best(), 2.5);
  EXPECT_FALSE(stop(2.4));
  EXPECT_TRUE(stop(2.45));

  early_stop never(0);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(never(1.0));

  early_stop lost(2);
  EXPECT_FALSE(lost(std::nan("")));
  EXPECT_FALSE(lost.better());
  EXPECT_TRUE(lost(std::nan("")));
  EXPECT_FALSE(lost(5.0));
  EXPECT_FALSE(lost(std::nan("")));
  EXPECT_EQ(lost.best(), 5.0);
  early_stop infinite(1);
  EXPECT_FALSE(infinite(std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(infinite(std::numeric_limits<double>::infinity()));
}

TEST(finetune_schedule, an_early_stop_goes_on_from_its_text) {
  const double losses[] = {3.1, 2.0 / 3, 0.7, 0.66, 0.9, 0.8, 0.7, 0.6};
  for (std::size_t cut = 0; cut < std::size(losses); ++cut) {
    early_stop whole(3), first(3), second(3);
    for (std::size_t i = 0; i < cut; ++i) whole(losses[i]), first(losses[i]);
    second.from_text(first.to_text());
    for (std::size_t i = cut; i < std::size(losses); ++i) {
      EXPECT_EQ(whole(losses[i]), second(losses[i])) << cut << ' ' << i;
      EXPECT_EQ(whole.best(), second.best());
      EXPECT_EQ(whole.better(), second.better());
    }
  }
  early_stop any(3);
  for (const char* bad : {"", "1", "1 2", "1 2 3", "a b c", "1 2 1 4", "0x1p0 2 1x"})
    EXPECT_THROW(any.from_text(bad), std::runtime_error) << bad;
}

}  // namespace
