// The contract of include/tigon/ops/rotary_tables.hpp. Cosines and sines of the exact products are those of decimal
// arithmetic of 90 digits.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/ops/rotary_tables.hpp>

#include <array>
#include <cmath>
#include <vector>

#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::bfloat16, tigon::context, tigon::float16, tigon::matrix_view;

// In units of |factor|: half a unit in the last place, and the error of f64.
constexpr by_type bound{.f32 = 6e-8, .bf16 = 4e-3, .f16 = 5e-4, .f64 = 6e-16};

const std::vector<double> frequencies = {1.0,  0.8659643233600653, 0.1, 0.0011547819846894581, 1.0 / 3 / (1 << 20),
                                         200.1};
struct exact_row {
  std::int64_t position;
  double by[6][2];  ///< cosine and sine for each frequency
};
const exact_row exact[] = {
    {0, {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}}},
    {1,
     {{0.5403023058681398, 0.8414709848078965},
      {0.6479058722668407, 0.761720408471602},
      {0.9950041652780258, 0.09983341664682815},
      {0.999999333239358, 0.0011547817280350542},
      {0.9999999999999495, 3.1789143880207797e-07},
      {0.571938018833397, -0.820296838109796}}},
    {-1000003,
     {{-0.8779864915850029, -0.4786854087960669},
      {0.8641495520720575, 0.5032350858730564},
      {-0.9652903373108876, 0.2611791812036953},
      {0.24754817056540876, 0.9688755870852146},
      {0.9498962921858598, -0.31256524773486216},
      {-0.5703664906379943, 0.8213903252153015}}},
    {1048575,
     {{0.7880422395289275, -0.6156211730587509},
      {0.12116824886611662, 0.9926319839027548},
      {-0.8461904408088537, -0.5328806037788557},
      {-0.20694210067319022, -0.9783531913215019},
      {0.9449570503270829, 0.32719439640241244},
      {-0.9920848176207803, 0.125569560986503}}},
    {8388607,
     {{-0.12349580912475928, 0.9923450937696126},
      {0.3687162028402851, -0.9295420172122623},
      {0.4649871418866326, -0.885317433398948},
      {-0.08859081137761933, -0.996068104167308},
      {-0.8893264228499432, 0.4572729093450912},
      {0.11301552658405072, -0.993593221973122}}},
    {2147483647,
     {{-0.6888366918779438, -0.7249165551445564},
      {-0.9814920223716952, -0.19150302875077396},
      {0.08100249244477069, -0.9967138988785773},
      {-0.9116969898139292, 0.41086323608254394},
      {-0.588931262176615, -0.8081831280291981},
      {-0.8907939085088868, -0.4544075401701219}}},
    {-4294967296,
     {{-0.886886915197821, 0.4619865795138349},
      {-0.5197163443524876, -0.8543388797268251},
      {-0.9351256953574432, 0.3543161496210107},
      {0.6641112800947795, 0.7476337389730838},
      {-0.3063205420819733, -0.9519284245669976},
      {0.5566523878747608, 0.8307455200440907}}},
};

template <class T>
class rotary_tables : public testing::Test {};
using types = testing::Types<float, bfloat16, float16, double>;
TYPED_TEST_SUITE(rotary_tables, types);

TYPED_TEST(rotary_tables, are_exact_at_positions_of_billions) {
  using T = TypeParam;
  std::vector<std::int64_t> positions;
  for (const exact_row& row : exact) positions.push_back(row.position);
  for (const double factor : {1.0, 1.25, -3.0}) {
    guarded_matrix<T> cos(positions.size(), 6, 3), sin(positions.size(), 6), pairs(positions.size(), 12, 1);
    tigon::fill_rotary_tables(frequencies, tigon::positions_in{positions}, cos.view(), sin.view(), factor);
    tigon::fill_rotary_pairs(frequencies, tigon::positions_in{positions}, pairs.view(), factor);
    for (std::size_t i = 0; i < positions.size(); ++i)
      for (std::size_t j = 0; j < 6; ++j) {
        const double c = factor * exact[i].by[j][0], z = factor * exact[i].by[j][1];
        const double most = bound.of<T>() * std::abs(factor);
        EXPECT_NEAR(to_f64(cos(i, j)), c, most) << positions[i] << ", pair " << j;
        EXPECT_NEAR(to_f64(sin(i, j)), z, most) << positions[i] << ", pair " << j;
        EXPECT_NEAR(to_f64(pairs(i, 2 * j)), c, most) << positions[i] << ", pair " << j;
        EXPECT_NEAR(to_f64(pairs(i, 2 * j + 1)), z, most) << positions[i] << ", pair " << j;
      }
    EXPECT_TRUE(cos.padding_intact() && pairs.padding_intact());
  }
}

TEST(rotary_tables_of, consecutive_positions_are_a_list_of_them) {
  const std::vector<std::int64_t> list = {-2, -1, 0, 1, 2};
  guarded_matrix<float> cos(5, 6), sin(5, 6), list_cos(5, 6), list_sin(5, 6);
  tigon::fill_rotary_tables(frequencies, tigon::positions_from{-2}, cos.view(), sin.view());
  tigon::fill_rotary_tables(frequencies, tigon::positions_in{list}, list_cos.view(), list_sin.view());
  EXPECT_EQ(bits_of(cos, sin), bits_of(list_cos, list_sin));
  EXPECT_EQ(cos(2, 1), 1.0f);
  EXPECT_EQ(sin(3, 0), static_cast<float>(std::sin(1.0)));
  tigon::fill_rotary_tables(frequencies, tigon::positions_from{}, matrix_view<float>(nullptr, 0, 6), {nullptr, 0, 6});
  tigon::fill_rotary_tables({}, tigon::positions_from{}, matrix_view<float>(nullptr, 5, 0), {nullptr, 5, 0});
}

/// Of three positions each pair has that of its section.
TEST(rotary_tables_of, three_positions_are_put_together_by_sections) {
  const std::vector<double> f = {1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3};
  const std::vector<std::int64_t> of = {3, 4, 5, 30, 40, 50, 300, 400, 500};  // time, height, width of three tokens
  const std::size_t halves[8] = {0, 0, 1, 1, 1, 2, 2, 2}, woven[8] = {0, 1, 2, 0, 1, 2, 0, 0};
  guarded_matrix<double> cos(3, 8), sin(3, 8), one_cos(9, 8), one_sin(9, 8);
  tigon::fill_rotary_tables(f, tigon::positions_in{of}, one_cos.view(), one_sin.view());
  tigon::multimodal_positions positions{{of.data(), 3, 3}, {2, 3, 3}};
  const auto expect = [&](const std::size_t(&axis)[8]) {
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < 8; ++j) {
        EXPECT_EQ(cos(i, j), one_cos(3 * axis[j] + i, j)) << i << ", " << j;
        EXPECT_EQ(sin(i, j), one_sin(3 * axis[j] + i, j)) << i << ", " << j;
      }
  };
  tigon::fill_rotary_tables(f, positions, cos.view(), sin.view());
  expect(halves);
  positions.sections = {4, 2, 2}, positions.interleaved = true;
  tigon::fill_rotary_tables(f, positions, cos.view(), sin.view());
  expect(woven);
}

TEST(rotary_tables_of, any_number_of_threads_have_the_same_bits) {
  guarded_matrix<float> cos(3000, 6), sin(3000, 6);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    cos.clear(), sin.clear();
    tigon::fill_rotary_tables(frequencies, tigon::positions_from{1 << 20}, cos.view(), sin.view(), 1, ctx);
    return bits_of(cos, sin);
  }));
}

TEST(rotary_tables_doors, refuse_before_the_first_write) {
  guarded_matrix<float> cos(3, 6), sin(3, 6);
  const auto refused = [&](tigon::error_code code, const char* part, const auto& positions, auto to_cos, auto to_sin,
                           double factor = 1, std::span<const double> f = frequencies) {
    EXPECT_TRUE(refuses([&] { tigon::fill_rotary_tables(f, positions, to_cos, to_sin, factor); }, code,
                        std::string("fill_rotary_tables: ") + part, cos, sin));
  };
  using enum tigon::error_code;
  using tigon::positions_from, tigon::positions_in;
  const auto c = cos.view(), z = sin.view();
  refused(shape, "cos is 3 x 5; expected 3 x 6", positions_from{}, c.cols_from(0, 5), z);
  refused(shape, "sin is 2 x 6; expected 3 x 6", positions_from{}, c, z.rows_from(0, 2));
  refused(alias, "sin overlaps cos", positions_from{}, c, c);
  const std::int64_t two[] = {1, 2}, far[] = {0, 1, (std::int64_t{1} << 32) + 1},
                     before[] = {0, 1, -(std::int64_t{1} << 32) - 1};
  refused(shape, "positions is of 2 elements; expected 3", positions_in{two}, c, z);
  refused(index, "a position is beyond 2^32", positions_in{far}, c, z);
  refused(index, "a position is beyond 2^32", positions_in{before}, c, z);
  refused(index, "a position is beyond 2^32", positions_from{(std::int64_t{1} << 32) - 1}, c, z);
  refused(argument, "factor is nan", positions_from{}, c, z, NAN);
  const std::vector<double> infinite(6, INFINITY);
  refused(argument, "a frequency is inf", positions_from{}, c, z, 1, infinite);
  refused(argument, "a frequency is -257", positions_from{}, c, z, 1, std::vector<double>(6, -257));
  const std::vector<std::int64_t> of(9, 1);
  tigon::multimodal_positions three{{of.data(), 3, 3}, {2, 2, 1}};
  refused(argument, "sum of the sections is not r / 2", three, c, z);
  for (const std::size_t time : {2, 7}) {  // the sum is right after it has passed 2^64
    three.sections = {time, 6, 0 - time};
    refused(argument, "sum of the sections is not r / 2", three, c, z);
  }
  three.interleaved = true;
  for (const auto& too_long : {std::array<std::size_t, 3>{1, 2, 3}, {1, 3, 2}}) {
    three.sections = too_long;
    refused(argument, "a section is too long to be interleaved", three, c, z);
  }
  three.sections = {2, 2, 2}, three.of = {of.data(), 2, 3};
  refused(shape, "positions is 2 x 3; expected 3 x 3", three, c, z);
  guarded_matrix<float> pairs(3, 12);
  EXPECT_TIGON_ERROR(tigon::fill_rotary_pairs(frequencies, positions_from{}, pairs.view().cols_from(0, 6)), shape,
                     "fill_rotary_pairs: freqs is 3 x 6; expected 3 x 12", pairs);
}

}  // namespace
