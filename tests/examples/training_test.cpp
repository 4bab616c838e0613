// The parts of the training example that need no kernel: generator, optimizer, schedule, picture, progress.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../../examples/support/svg.hpp"
#include "../../examples/train_llama/adamw.hpp"
#include "../../examples/train_llama/progress.hpp"
#include "../../examples/train_llama/rng.hpp"

namespace {

const auto serial = [](std::size_t count, const auto& fn) {
  for (std::size_t i = 0; i < count; ++i) fn(i);
};
const auto backwards = [](std::size_t count, const auto& fn) {
  for (std::size_t i = count; i-- > 0;) fn(i);
};

TEST(rng, follows_its_publication) {
  // First outputs of xoshiro256** from the state {1, 2, 3, 4}, by hand from the definition.
  example::rng draw(example::rng::state_type{1, 2, 3, 4});
  EXPECT_EQ(draw.next(), 11520u);
  EXPECT_EQ(draw.next(), 0u);
  EXPECT_EQ(draw.next(), 1509978240u);
}

TEST(rng, goes_on_from_a_saved_state) {
  example::rng draw(7);
  for (int i = 0; i < 5; ++i) draw.normal();
  example::rng resumed(draw.state());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(draw.below(1000), resumed.below(1000));
    EXPECT_EQ(std::bit_cast<std::uint64_t>(draw.normal()), std::bit_cast<std::uint64_t>(resumed.normal()));
  }
  EXPECT_NE(example::rng(1).next(), example::rng(2).next());
}

TEST(rng, draws_what_it_promises) {
  example::rng draw(3);
  double sum = 0, square = 0, cube = 0;
  constexpr int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double x = draw.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x, square += x * x, cube += x * x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(square / n, 1, 0.02);
  EXPECT_NEAR(cube / n, 0, 0.05);
  std::set<std::size_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(draw.below(7));
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(*seen.rbegin(), 6u);
}

TEST(schedule, warms_up_and_ends_at_the_lowest_rate) {
  EXPECT_FLOAT_EQ(example::cosine_rate(0, 100, 10, 1.0f, 0.1f), 0.1f);
  EXPECT_FLOAT_EQ(example::cosine_rate(9, 100, 10, 1.0f, 0.1f), 1.0f);
  EXPECT_FLOAT_EQ(example::cosine_rate(10, 100, 10, 1.0f, 0.1f), 1.0f);
  EXPECT_FLOAT_EQ(example::cosine_rate(99, 100, 10, 1.0f, 0.1f), 0.1f);
  EXPECT_NEAR(example::cosine_rate(54, 100, 10, 1.0f, 0.0f) + example::cosine_rate(55, 100, 10, 1.0f, 0.0f), 1.0, 1e-6);
  EXPECT_FLOAT_EQ(example::cosine_rate(0, 1, 0, 1.0f, 0.1f), 1.0f);
  for (std::size_t step = 11; step < 100; ++step)
    EXPECT_LT(example::cosine_rate(step, 100, 10, 1.0f, 0.1f), example::cosine_rate(step - 1, 100, 10, 1.0f, 0.1f));
}

/// AdamW in double as the paper writes it, one element.
struct reference_adamw {
  double w, m = 0, v = 0;
  int t = 0;
  void step(double g, double rate, double decay, const example::adamw_options& o) {
    ++t;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double mhat = m / (1 - std::pow(double{o.beta1}, t)), vhat = v / (1 - std::pow(double{o.beta2}, t));
    w = w - rate * (mhat / (std::sqrt(vhat) + o.eps) + decay * w);
  }
};

TEST(adamw, follows_the_paper) {
  const example::adamw_options o{.weight_decay = 0.3f, .grad_clip = 1.0f};
  example::adamw optimizer(5, {{0, 3, 1.0f}, {3, 5, 0.0f}}, o);
  std::vector<float> weights{1.0f, -2.0f, 0.5f, 1.0f, 1.0f};
  std::vector<reference_adamw> expected;
  for (const float w : weights) expected.push_back({w});
  example::rng draw(1);
  for (int step = 0; step < 50; ++step) {
    std::vector<float> gradient(5);
    // From far below to far above the clipping norm.
    for (float& g : gradient) g = static_cast<float>(draw.normal() * (step % 5 + 0.01));
    const double norm = std::sqrt(std::transform_reduce(gradient.begin(), gradient.end(), gradient.begin(), 0.0,
                                                        std::plus<>(), [](double a, double b) { return a * b; }));
    EXPECT_NEAR(optimizer.step(weights, gradient, 0.01f, serial), norm, 1e-12 * norm);
    for (std::size_t i = 0; i < 5; ++i) {
      expected[i].step(gradient[i] / std::max(norm, 1.0), 0.01f, i < 3 ? o.weight_decay : 0.0f, o);
      EXPECT_NEAR(weights[i], expected[i].w, 2e-6) << step << ' ' << i;
    }
  }
}

TEST(adamw, bits_do_not_depend_on_who_runs_the_chunks) {
  const std::size_t n = 3 * example::adamw_chunk + 17;
  example::rng draw(5);
  std::vector<float> start(n), gradient(n);
  for (auto* values : {&start, &gradient})
    for (float& x : *values) x = static_cast<float>(draw.normal());
  const auto threaded = [](std::size_t count, const auto& fn) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back([&fn, i] { fn(i); });
    for (auto& thread : threads) thread.join();
  };
  const auto run = [&](const auto& parallel_for) {
    std::vector<float> weights = start;
    example::adamw optimizer(n, {{0, n - 100, 1.0f}, {n - 100, n, 0.0f}}, {});
    for (int step = 0; step < 3; ++step) optimizer.step(weights, gradient, 0.1f, parallel_for);
    return weights;
  };
  const auto expected = run(serial);
  EXPECT_NE(expected, start);
  EXPECT_EQ(run(backwards), expected);
  EXPECT_EQ(run(threaded), expected);
  // The clipping factor is rounded to f32 and may hide a difference in the norm; many chunks do not.
  std::vector<float> many;
  for (int i = 0; i < 15; ++i) many.insert(many.end(), gradient.begin() + i * 100, gradient.end());
  EXPECT_EQ(example::global_norm(many, serial), example::global_norm(many, backwards));
  EXPECT_EQ(example::global_norm(many, serial), example::global_norm(many, threaded));
}

TEST(adamw, resumes_with_the_same_bits) {
  std::vector<float> weights(100, 1.0f), gradient(100);
  std::iota(gradient.begin(), gradient.end(), -50.0f);
  example::adamw whole(100, {{0, 100, 1.0f}}, {}), second(100, {{0, 100, 1.0f}}, {});
  whole.step(weights, gradient, 0.1f, serial);
  std::vector<float> resumed = weights;
  second.first_moment() = whole.first_moment();
  second.second_moment() = whole.second_moment();
  second.set_steps(whole.steps());
  whole.step(weights, gradient, 0.1f, serial);
  second.step(resumed, gradient, 0.1f, serial);
  EXPECT_EQ(resumed, weights);
}

TEST(svg, ticks_are_round_and_enclose) {
  for (const auto& [low, high] :
       {std::pair{0.0, 1.0}, {0.0, 6.0}, {3.1, 9.04}, {-2e-5, 7e-5}, {1e6, 1.7e7}, {5.0, 5.0}, {0.0, 0.0}}) {
    const auto ticks = example::axis_ticks::enclosing(low, high, 6);
    EXPECT_LE(ticks.first, low + 1e-12);
    EXPECT_GE(ticks.last(), high - 1e-9 * std::abs(high));
    EXPECT_GE(ticks.count, 1);
    EXPECT_LE(ticks.count, 9);
    std::set<std::string> labels;
    for (int i = 0; i <= ticks.count; ++i) labels.insert(ticks.label(i));
    EXPECT_EQ(labels.size(), static_cast<std::size_t>(ticks.count) + 1) << "labels repeat";
    char digits[16];
    std::snprintf(digits, sizeof digits, "%.6e", ticks.step);
    EXPECT_TRUE(std::string("125").find(digits[0]) != std::string::npos && std::string(digits).find(".000000") == 1)
        << digits;
  }
  const auto ticks = example::axis_ticks::enclosing(0, 100, 8);
  EXPECT_EQ(ticks.label(0), "0");
  EXPECT_EQ(ticks.label(ticks.count), "100");
}

TEST(svg, draws_every_series_and_escapes_names) {
  const example::line_chart chart{
      "a < b & c", "step", "loss", {{"fused", {{0, 9}, {1, std::nan("")}, {2, 4}}}, {"plain", {{0, 8}, {2, 5}}}}};
  const std::string svg = example::to_svg(chart);
  EXPECT_EQ(svg, example::to_svg(chart));
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_NE(svg.find(">fused<"), std::string::npos);
  EXPECT_NE(svg.find(">plain<"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_NE(example::to_svg({"empty", "x", "y", {}}).find("</svg>"), std::string::npos);
}

TEST(progress, writes_ten_lines_where_there_is_no_terminal) {
  std::ostringstream out;
  example::progress bar("train", 200, 1024, out, false);
  for (std::size_t step = 1; step <= 200; ++step) bar.update(step, 5.0);
  const std::string text = out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_NE(text.find("200/200  loss 5.0000"), std::string::npos);
}

TEST(progress, draws_over_one_line_on_a_terminal) {
  std::ostringstream out;
  example::progress bar("train", 50, 1024, out, true);
  for (std::size_t step = 1; step <= 50; ++step) bar.update(step, 5.0);
  const std::string text = out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.front(), '\r');
  EXPECT_EQ(text.back(), '\n');
}

}  // namespace
