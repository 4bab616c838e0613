// The comparison of fuzz programs: one that cannot fail makes every case worthless.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <numbers>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/layers.hpp"
#include "fuzz/problem.hpp"

namespace {

using namespace tigon;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Whether `got` in T is a finding, where f64 has `want`, the bound is a thousandth, and the root of its terms is
/// `root`.
template <class T>
bool is_finding(double got, double want, double root = 0) {
  using backend = backends::generic;
  fuzz::source in({});
  fuzz::problem<backend, T> p(in, "op");
  auto& a = p.matrix("a", 1, 1);
  *a.at(fuzz::on_tested<backend, T>{default_context()}).data = test::from_f64<T>(got);
  *a.at(fuzz::on_reference{default_context()}).data = want;
  try {
    p.compare(a, {.bound = 1e-3, .roots = std::span(&root, 1)});
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

TEST(fuzz_comparison, allows_as_many_bounds_as_the_margin_says) {
  const double margin = std::exchange(fuzz::margin, 4);
  EXPECT_FALSE(is_finding<float>(1.007, 1));
  EXPECT_TRUE(is_finding<float>(1.009, 1));
  fuzz::margin = margin;
  EXPECT_TRUE(is_finding<float>(1.007, 1));
}

TEST(fuzz_comparison, measures_terms_that_cancel_by_their_root) {
  EXPECT_TRUE(is_finding<float>(0.003, 0));
  EXPECT_FALSE(is_finding<float>(0.003, 0, 4));
  EXPECT_TRUE(is_finding<float>(0.005, 0, 4));
  EXPECT_FALSE(is_finding<float>(1.0019, 1, 0.5));  // not below the size of the results
}

/// A gated MLP of one token, one channel and two units, whose weights of the way back cancel.
struct units {
  static std::size_t gate(std::size_t l, std::size_t) { return l; }
  static std::size_t up(std::size_t l, std::size_t) { return l; }
  static std::size_t down(std::size_t, std::size_t l) { return l; }
};
struct two_units {
  fuzz::mlp_roots roots;
  bool fits;
};
template <class T>
two_units roots_of_two_units(double token) {
  fuzz::source in({});
  fuzz::problem<backends::generic, T> p(in, "op");
  auto &x = p.matrix("x", 1, 1), &dy = p.matrix("dy", 1, 1);
  auto &gate = p.matrix("gate", 2, 1), &up = p.matrix("up", 2, 1), &down = p.matrix("down", 1, 2);
  x.set(0, token), dy.set(0, 1);
  for (std::size_t l = 0; l < 2; ++l) gate.set(l, 1), up.set(l, 2), down.set(l, l == 0 ? 3 : -3);
  fuzz::mlp_roots of;
  double of_w = 0;
  of.add(fuzz::gated_layer<units>{1, 2, gate, up, down, nullptr, nullptr, {}}, x, dy, 0, 1, of_w);
  of.take_roots();
  return {of, of.fits(x)};
}

TEST(fuzz_mlp_roots, do_not_cancel_and_know_what_16_bits_hold) {
  const fuzz::mlp_roots of = roots_of_two_units<float16>(4).roots;
  // y = 3 a - 3 a = 0, a = silu(4) * 8; g, u and p count twice: by their value and by the root of one term.
  const double s = 1 / (1 + std::exp(-4.0)), act = 4 * s, slope = s * (1 + 4 * (1 - s));
  EXPECT_NEAR(of.y[0], 3 * std::numbers::sqrt2 * (act * 16 + slope * 8 * 8), 1e-9);
  EXPECT_NEAR(of.ddown[0], act * 16 + slope * 8 * 8, 1e-9);
  EXPECT_NEAR(of.dup[0], 4 * (6 * act + 3 * slope * 8), 1e-9);
  EXPECT_NEAR(of.largest, act * 8, 1e-9);
  EXPECT_LT(roots_of_two_units<float16>(100).roots.largest, 65504);
  EXPECT_GT(roots_of_two_units<float16>(300).roots.largest, 65504);
  EXPECT_TRUE(roots_of_two_units<float16>(100).fits);
  EXPECT_FALSE(roots_of_two_units<float16>(300).fits);
  EXPECT_TRUE(roots_of_two_units<float>(300).fits);
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

/// What a list of these lines declares.
std::set<std::string> declared(const std::string& lines) {
  const std::string name = testing::TempDir() + "tightness.txt";
  std::ofstream(name) << lines;
  const auto out = fuzz::declared_outputs(name);
  std::remove(name.c_str());
  return out;
}

TEST(fuzz_tightness, declarations_have_outputs_and_a_reason) {
  const auto all =
      declared("# A comment.\n\nop: y, of two words\nA reason.\nMore of it.\n\n\nother f64: dx\nAnother.\n");
  EXPECT_EQ(all, (std::set<std::string>{"op: y", "op: of two words", "other f64: dx"}));
  EXPECT_THROW(declared("op: y\n\nother: x\nA reason.\n"), std::runtime_error);
  EXPECT_THROW(declared("op: y\n"), std::runtime_error);
  EXPECT_THROW(declared("op\nA reason.\n"), std::runtime_error);
  EXPECT_THROW(fuzz::declared_outputs("no such file"), std::runtime_error);
}

TEST(fuzz_tightness, errors_far_below_a_bound_are_findings_unless_declared) {
  const std::map<fuzz::output_name, double> parts{{{"op", "highway", "f32", "y"}, 0.05},
                                                  {{"op", "highway", "f64", "y"}, 0.05},
                                                  {{"op", "highway", "f32", "dx"}, 0.2}};
  EXPECT_EQ(fuzz::loose_bounds(parts, {}), 2u);
  EXPECT_EQ(fuzz::loose_bounds(parts, {"op f32: y"}), 1u);
  EXPECT_EQ(fuzz::loose_bounds(parts, {"op: y"}), 0u);
  EXPECT_EQ(fuzz::loose_bounds(parts, {"op: dx", "other: y"}), 2u);
  EXPECT_EQ(fuzz::loose_bounds({{{"op", "highway", "f32", "y"}, 3.5}}, {}), 0u);  // is the margin's, and printed
}

TEST(fuzz_tightness, is_that_of_the_output_in_an_inputs_place) {
  using backend = backends::generic;
  fuzz::tightness.clear();
  fuzz::measure_tightness = true;
  const std::vector<std::uint8_t> bytes(64, 3);  // one in four: in place
  fuzz::source in(bytes);
  fuzz::problem<backend, float> p(in, "op");
  auto &x = p.matrix("x", 1, 1), &dx = p.matrix("dx", 1, 1);
  auto& to = p.in_place(dx, {&x});
  ASSERT_EQ(&to, &x);
  *to.at(fuzz::on_tested<backend, float>{default_context()}).data = 1.0005f;
  *to.at(fuzz::on_reference{default_context()}).data = 1;
  p.compare(to, {.bound = 1e-3});
  fuzz::measure_tightness = false;
  ASSERT_EQ(fuzz::tightness.size(), 1u);
  EXPECT_EQ(fuzz::tightness.begin()->first.output, "dx");
  EXPECT_NEAR(fuzz::tightness.begin()->second, 0.25, 1e-3);
}

}  // namespace
