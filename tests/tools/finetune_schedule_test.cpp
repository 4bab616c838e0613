#include "../../tools/finetune/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace {

using namespace example::finetune;

TEST(finetune_schedule, rates_are_those_of_transformers) {
  std::ifstream in(std::filesystem::path(TIGON_TOOLS_FIXTURES) / "finetune_text" / "rates.txt");
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

}  // namespace
