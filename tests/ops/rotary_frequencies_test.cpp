// The contract of include/tigon/ops/rotary_frequencies.hpp. The reference values are those of the functions in
// ROPE_INIT_FUNCTIONS of Hugging Face transformers 5.24.0 (modeling_rope_utils.py), run in f64.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/ops/rotary_frequencies.hpp>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "support/throws.hpp"

namespace {

using namespace tigon;

using values = std::vector<std::pair<std::size_t, double>>;

/// Frequencies of r columns, with this scaling, against (j, f[j]); returns the attention factor.
template <class... Scaling>
double expect_frequencies(std::size_t r, double theta, const values& wanted, Scaling... scaling) {
  std::vector<double> f(r / 2, -1);
  const double attention = rotary_frequencies(f, theta, scaling...);
  for (const auto& [j, value] : wanted) EXPECT_NEAR(f[j], value, 4e-15 * value) << "frequency " << j;
  return attention;
}

const values plain = {{0, 1.0},
                      {1, 0.8659643233600653},
                      {13, 0.1539926526059492},
                      {31, 0.011547819846894583},
                      {63, 0.00011547819846894582}};

TEST(rotary_frequencies, without_scaling) {
  EXPECT_EQ(expect_frequencies(128, 1e4, plain), 1);
  EXPECT_EQ(expect_frequencies(0, 1e4, {}), 1);
  EXPECT_EQ(expect_frequencies(2, 1e4, {{0, 1.0}}), 1);
}

TEST(rotary_frequencies, of_a_part_of_a_head) {
  EXPECT_EQ(partial_rotary_dim(96, 0.25), 24u);
  EXPECT_EQ(partial_rotary_dim(96, 1), 96u);
  EXPECT_EQ(partial_rotary_dim(96, 0), 0u);
  expect_frequencies(24, 1e4, {{0, 1.0}, {5, 0.021544346900318832}, {11, 0.00021544346900318845}});
}

TEST(rotary_frequencies, linear) {
  const double attention = expect_frequencies(128, 1e4,
                                              {{0, 0.125},
                                               {1, 0.10824554042000817},
                                               {13, 0.01924908157574365},
                                               {31, 0.0014434774808618229},
                                               {63, 1.4434774808618228e-05}},
                                              linear_rotary{8});
  EXPECT_EQ(attention, 1);
}

TEST(rotary_frequencies, dynamic_ntk) {
  const double attention = expect_frequencies(128, 1e4,
                                              {{0, 1.0},
                                               {1, 0.8396257425643113},
                                               {13, 0.10306582647009778},
                                               {31, 0.0044325955619802185},
                                               {63, 1.649688549556369e-05}},
                                              dynamic_ntk_rotary{2, 2048, 8192});
  EXPECT_EQ(attention, 1);
  for (const std::size_t seq_len : {0u, 100u, 2048u})
    expect_frequencies(128, 1e4, plain, dynamic_ntk_rotary{2, 2048, seq_len});
}

TEST(rotary_frequencies, yarn_of_deepseek) {
  const values wanted = {{0, 1.0},
                         {9, 0.07498942093324558},
                         {10, 0.056234132519034905},
                         {14, 0.01244795587027246},
                         {20, 0.0007905694150420945},
                         {23, 3.33380358040831e-05},
                         {31, 3.33380358040831e-06}};
  const yarn_rotary v3{.factor = 40, .original_positions = 4096, .mscale = 1, .mscale_all_dim = 1};
  EXPECT_EQ(expect_frequencies(64, 1e4, wanted, v3), 1);
  const yarn_rotary v2_lite{.factor = 40, .original_positions = 4096, .mscale = 0.707, .mscale_all_dim = 1};
  EXPECT_NEAR(expect_frequencies(64, 1e4, wanted, v2_lite), 0.9210423553163399, 4e-15);
}

TEST(rotary_frequencies, yarn_that_is_not_truncated) {
  const double attention = expect_frequencies(64, 150000,
                                              {{0, 1.0},
                                               {9, 0.03170569618466377},
                                               {10, 0.019335001126540362},
                                               {14, 0.0020937923789696887},
                                               {20, 1.818833668168956e-05},
                                               {23, 5.950239261491605e-06},
                                               {31, 3.0235114281192144e-07}},
                                              yarn_rotary{.factor = 32, .original_positions = 4096, .truncate = false});
  EXPECT_NEAR(attention, 1.3465735902799727, 4e-15);
}

TEST(rotary_frequencies, yarn_of_a_large_base) {
  const double attention = expect_frequencies(128, 1e6,
                                              {{0, 1.0},
                                               {20, 0.01333521432163324},
                                               {24, 0.005375321490790102},
                                               {30, 0.0010643609812470017},
                                               {40, 4.445698525097307e-05},
                                               {63, 3.102344401879299e-07}},
                                              yarn_rotary{.factor = 4, .original_positions = 32768});
  EXPECT_NEAR(attention, 1.138629436111989, 4e-15);
}

TEST(rotary_frequencies, yarn_with_bounds_and_attention_of_its_own) {
  const yarn_rotary own{
      .factor = 16, .original_positions = 4096, .beta_fast = 16, .beta_slow = 2, .attention_factor = 1.5};
  const double attention = expect_frequencies(64, 1e4,
                                              {{0, 1.0},
                                               {9, 0.07498942093324558},
                                               {10, 0.056234132519034905},
                                               {14, 0.014078045329474808},
                                               {20, 0.0005270462766947299},
                                               {23, 8.334508951020775e-05},
                                               {31, 8.334508951020775e-06}},
                                              own);
  EXPECT_EQ(attention, 1.5);
}

TEST(rotary_frequencies, yarn_of_a_training_that_turns_no_pair) {
  const double attention = expect_frequencies(8, 1e4, {{0, 1.0}, {1, 0.00625}, {2, 0.000625}, {3, 6.25e-05}},
                                              yarn_rotary{.factor = 16, .original_positions = 4});
  EXPECT_NEAR(attention, 1.2772588722239782, 4e-15);
  EXPECT_EQ(expect_frequencies(8, 1e4, {{0, 1.0}}, yarn_rotary{.factor = 0.5, .original_positions = 4}), 1);
}

TEST(rotary_frequencies, llama3) {
  const double attention = expect_frequencies(128, 5e5,
                                              {{0, 1.0},
                                               {20, 0.016560440080994446},
                                               {28, 0.0032114459947525913},
                                               {29, 0.002166570763503359},
                                               {33, 0.00031269375038406517},
                                               {36, 7.78465527393245e-05},
                                               {37, 6.341514345777615e-05},
                                               {63, 3.068925988914511e-07}},
                                              llama3_rotary{});
  EXPECT_EQ(attention, 1);
  expect_frequencies(64, 5e5,
                     {{0, 1.0},
                      {13, 0.004839421345719893},
                      {14, 0.0032114459947525913},
                      {16, 0.00042955679655936815},
                      {18, 1.9461638184831125e-05},
                      {19, 1.291476718704739e-05},
                      {31, 9.418306725434909e-08}},
                     llama3_rotary{.factor = 32});
}

TEST(rotary_frequencies, long_rope) {
  std::vector<double> by(8), far(8);
  for (std::size_t j = 0; j < 8; ++j)
    by[j] = 1 + 0.05 * static_cast<double>(j), far[j] = 1 + 0.75 * static_cast<double>(j * j);
  long_rotary s{by, far, 32, 4096, 4096};
  const values of_short = {{0, 1.0}, {1, 0.30116930096841704}, {4, 0.008333333333333333}, {7, 0.00023424278964210215}};
  EXPECT_NEAR(expect_frequencies(16, 1e4, of_short, s), 1.1902380714238083, 4e-15);
  s.seq_len = 4097;
  EXPECT_NEAR(
      expect_frequencies(
          16, 1e4, {{0, 1.0}, {1, 0.18070158058105024}, {4, 0.0007692307692307692}, {7, 8.376894464022197e-06}}, s),
      1.1902380714238083, 4e-15);
  s.seq_len = 0, s.attention_factor = 1.19;
  EXPECT_EQ(expect_frequencies(16, 1e4, of_short, s), 1.19);
  s.factor = 1, s.attention_factor = 0;
  EXPECT_EQ(expect_frequencies(16, 1e4, of_short, s), 1);
}

TEST(rotary_frequencies, proportional) {
  EXPECT_EQ(
      expect_frequencies(128, 1e6, {{0, 0.5}, {7, 0.1103367034542295}, {15, 0.01962094879242268}, {16, 0.0}, {63, 0.0}},
                         proportional_rotary{0.25, 2}),
      1);
}

template <class... Scaling>
void expect_refused(const char* part, error_code code, std::size_t r, double theta, Scaling... scaling) {
  std::vector<double> f(r / 2, -1);
  try {
    (void)rotary_frequencies(f, theta, scaling...);
    FAIL() << "accepted: " << part;
  } catch (const error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
  for (const double v : f) EXPECT_EQ(v, -1);
}

TEST(rotary_frequencies, refuse_what_has_no_meaning) {
  using enum error_code;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double theta : {1.0, 0.0, -2.0, infinity, nan})
    expect_refused("rotary_frequencies: theta is", argument, 8, theta);
  expect_refused("theta is nan", argument, 8, nan, llama3_rotary{});
  expect_refused("factor is 0; expected a positive number", argument, 8, 1e4, linear_rotary{0});
  expect_refused("factor is 0.5; expected a number of at least 1", argument, 8, 1e4, dynamic_ntk_rotary{0.5, 8});
  expect_refused("original_positions is 1; expected at least 2", argument, 8, 1e4, dynamic_ntk_rotary{2, 1});
  expect_refused("r is 2; expected more columns", argument, 2, 1e4, dynamic_ntk_rotary{2, 8});
  expect_refused("factor is nan", argument, 8, 1e4, yarn_rotary{nan, 8});
  expect_refused("beta_slow is 0", argument, 8, 1e4, yarn_rotary{.factor = 2, .original_positions = 8, .beta_slow = 0});
  expect_refused("beta_fast is 0.5; expected at least beta_slow", argument, 8, 1e4,
                 yarn_rotary{.factor = 2, .original_positions = 8, .beta_fast = 0.5});
  expect_refused("mscale is nan", argument, 8, 1e4, yarn_rotary{.factor = 2, .original_positions = 8, .mscale = nan});
  expect_refused("high_freq_factor is 1; expected above low_freq_factor", argument, 8, 1e4,
                 llama3_rotary{.high_freq_factor = 1});
  expect_refused("factor is inf", argument, 8, 1e4, linear_rotary{infinity});
  expect_refused("factor is inf", argument, 8, 1e4, dynamic_ntk_rotary{infinity, 8});
  expect_refused("beta_fast is inf", argument, 8, 1e4,
                 yarn_rotary{.factor = 2, .original_positions = 8, .beta_fast = infinity});
  expect_refused("high_freq_factor is inf", argument, 8, 1e4, llama3_rotary{.high_freq_factor = infinity});
  const std::vector<double> four(4, 1.0), three(3, 1.0), bad(4, 0.0), endless(4, infinity);
  expect_refused("short_factors is of 3 elements; expected 4", shape, 8, 1e4, long_rotary{three, four, 2, 8});
  expect_refused("long_factors is of 3 elements; expected 4", shape, 8, 1e4, long_rotary{four, three, 2, 8});
  expect_refused("a factor of a pair is 0", argument, 8, 1e4, long_rotary{four, bad, 2, 8});
  expect_refused("a factor of a pair is inf", argument, 8, 1e4, long_rotary{endless, four, 2, 8});
  for (const double share : {-0.5, 1.5, nan}) expect_refused("share is", argument, 8, 1e4, proportional_rotary{share});
  EXPECT_THROW(partial_rotary_dim(10, 0.5), error);
  EXPECT_THROW(partial_rotary_dim(10, -0.5), error);
  EXPECT_THROW(partial_rotary_dim(10, nan), error);
}

}  // namespace
