// The parts of the training example around its model: generator, optimizer, schedule, picture, progress.
#include <gtest/gtest.h>
#include <unistd.h>
#include <tigon/comm/threads.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../../examples/train_llama/checkpoint.hpp"
#include "../../examples/train_llama/optimizer.hpp"
#include "../../examples/train_llama/options.hpp"
#include "../../examples/train_llama/parameters.hpp"
#include "../../examples/train_llama/rng.hpp"
#include "../../support/option_value.hpp"
#include "../../support/options.hpp"
#include "../../support/progress.hpp"
#include "../../support/ranks.hpp"
#include "../../support/svg.hpp"
#include "../../tools/finetune/options.hpp"

namespace {

tigon::context& serial() { return tigon::default_context(); }

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
  void step(double g, double rate, double decay, const tigon::adamw_options& o) {
    ++t;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double mhat = m / (1 - std::pow(o.beta1, t)), vhat = v / (1 - std::pow(o.beta2, t));
    w = w - rate * (mhat / (std::sqrt(vhat) + o.eps) + decay * w);
  }
};

TEST(optimizer, follows_the_paper) {
  const tigon::adamw_options o{.beta2 = 0.95, .weight_decay = 0.3, .max_norm = 1};
  example::optimizer optimizer(5, {{0, 3, 1}, {3, 5, 0}}, o);
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
    EXPECT_NEAR(optimizer.step(weights, gradient, 0.01f, serial()), norm, 1e-12 * norm);
    for (std::size_t i = 0; i < 5; ++i) {
      expected[i].step(gradient[i] / std::max(norm, 1.0), 0.01f, i < 3 ? o.weight_decay : 0, o);
      EXPECT_NEAR(weights[i], expected[i].w, 2e-6) << step << ' ' << i;
    }
  }
}

TEST(optimizer, leaves_rounded_weights) {
  const std::size_t n = 100;
  example::rng draw(5);
  std::vector<float> weights(n), gradient(n), plain;
  for (auto* values : {&weights, &gradient})
    for (float& x : *values) x = static_cast<float>(draw.normal());
  plain = weights;
  std::vector<tigon::bfloat16> rounded(n);
  example::optimizer with(n, {{0, 64, 1}, {64, n, 0}}, {}), without(n, {{0, 64, 1}, {64, n, 0}}, {});
  with.step(weights, gradient, 0.1f, serial(), std::span(rounded));
  without.step(plain, gradient, 0.1f, serial());
  EXPECT_EQ(weights, plain);
  for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(rounded[i].bits, tigon::bfloat16(weights[i]).bits) << i;
}

TEST(optimizer, resumes_with_the_same_bits) {
  std::vector<float> weights(100, 1.0f), gradient(100);
  std::iota(gradient.begin(), gradient.end(), -50.0f);
  example::optimizer whole(100, {{0, 100, 1}}, {}), second(100, {{0, 100, 1}}, {});
  whole.step(weights, gradient, 0.1f, serial());
  std::vector<float> resumed = weights;
  second.first_moment() = whole.first_moment();
  second.second_moment() = whole.second_moment();
  second.set_steps(whole.steps());
  whole.step(weights, gradient, 0.1f, serial());
  second.step(resumed, gradient, 0.1f, serial());
  EXPECT_EQ(resumed, weights);
}

/// A model of two tensors, and a file that holds its state after a step.
class checkpoint : public testing::Test {
 protected:
  checkpoint() : path_(std::filesystem::temp_directory_path() / ("tigon-checkpoint-" + std::to_string(getpid()))) {
    weights_ = example::initial_weights(layout_, 1);
    optimizer_.step(weights_, std::vector<float>(layout_.total, 0.5f), 0.1f, serial());
    example::save_checkpoint(path_, layout_, state(), {{"hidden", "4"}});
  }
  ~checkpoint() override { std::filesystem::remove(path_); }

  example::training_state state() { return {weights_, optimizer_, batches_, step_}; }

  /// The sentence with which the file is refused after a change to its tensors, and the state is as it was.
  std::string refusal(const std::function<void(std::map<std::string, example::tensor_view>&)>& change) {
    const auto file = example::safetensors_file::load(path_);
    auto tensors = file.tensors();
    change(tensors);
    const std::filesystem::path changed = path_.string() + "-changed";
    example::save_safetensors(changed, tensors, file.metadata());
    const auto before = weights_;
    std::string sentence;
    try {
      example::load_checkpoint(changed, layout_, state(), {{"hidden", "4"}});
    } catch (const std::runtime_error& error) {
      sentence = error.what();
      EXPECT_EQ(weights_, before);
    }
    std::filesystem::remove(changed);
    return sentence;
  }

  example::parameter_layout layout_{{6, 1, 4, 2, 1, 1}};
  std::vector<float> weights_;
  example::optimizer optimizer_{layout_.total, layout_.groups(), {}};
  example::rng batches_{3};
  std::size_t step_ = 7;
  std::filesystem::path path_;
};

TEST_F(checkpoint, comes_back) {
  const auto weights = weights_, first = optimizer_.first_moment(), second = optimizer_.second_moment();
  const auto draws = batches_.state();
  weights_.assign(layout_.total, 0), optimizer_ = {layout_.total, layout_.groups(), {}}, batches_ = example::rng(4);
  step_ = 0;
  example::load_checkpoint(path_, layout_, state(), {{"hidden", "4"}});
  EXPECT_EQ(weights_, weights);
  EXPECT_EQ(optimizer_.first_moment(), first);
  EXPECT_EQ(optimizer_.second_moment(), second);
  EXPECT_EQ(optimizer_.steps(), 7u);
  EXPECT_EQ(batches_.state(), draws);
  EXPECT_EQ(step_, 7u);
  EXPECT_GE(std::filesystem::file_size(path_), example::checkpoint_bytes(layout_));
  EXPECT_LT(std::filesystem::file_size(path_), example::checkpoint_bytes(layout_) + 8192);
}

TEST_F(checkpoint, that_no_training_leaves_is_refused) {
  const auto holds = [](const std::string& sentence, const std::string& part) {
    EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  std::vector<float> numbers(24, 1.0f);
  const auto put = [&](const char* name) {
    return [&, name](auto& tensors) { tensors.at(name).bytes = std::as_bytes(std::span(numbers)); };
  };
  for (const float wrong : {std::nanf(""), std::numeric_limits<float>::infinity(), -1.0f}) {
    numbers[5] = wrong;
    if (wrong != -1) holds(refusal(put("weights.head")), "weights.head\" with numbers that no training leaves");
    if (wrong != -1) holds(refusal(put("adam.first.head")), "adam.first.head\" with numbers");
    holds(refusal(put("adam.second.head")), "adam.second.head\" with numbers");
  }
  EXPECT_EQ(refusal(put("weights.head")), "");
  holds(refusal([](auto& tensors) { tensors.at("weights.head").shape = {4, 6}; }), "another shape or type");
  holds(refusal([](auto& tensors) { tensors.at("weights.head").type = example::dtype::i32; }), "another shape or type");
  holds(refusal([](auto& tensors) { tensors.erase("weights.head"); }), "holds no tensor");
  const std::array<std::uint64_t, 4> zeros{};
  holds(refusal([&](auto& tensors) { tensors.at("rng").bytes = std::as_bytes(std::span(zeros)); }), "zeros alone");
  const std::array<std::int64_t, 1> back{-1};
  holds(refusal([&](auto& tensors) { tensors.at("step").bytes = std::as_bytes(std::span(back)); }), "negative step");
}

TEST(options, that_f32_cannot_hold_are_refused) {
  const auto refused = [](example::bound kind, std::string text) { return example::real(kind)(text); };
  using enum example::bound;
  for (const auto kind : {positive, from_zero}) {
    for (const char* good : {"1e-8", "1", "1.5", "3.4e38", "1.2e-38", "0.99999999"}) EXPECT_EQ(refused(kind, good), "");
    for (const char* small : {"1e-50", "1e-46", "1e-40", "4.9e-324"})
      EXPECT_NE(refused(kind, small).find("rounds away in f32"), std::string::npos) << small;
    for (const char* large : {"1e39", "1e300"})
      EXPECT_NE(refused(kind, large).find("is infinite in f32"), std::string::npos) << large;
  }
  for (const auto kind : {positive, from_zero, below_one, from_zero_to_one})
    for (const char* bad : {"nan", "inf", "-inf", "-1", "-1e-50", "1e400", "1e-400", "", "1x", " 1", "0x1p3", "one"})
      EXPECT_NE(refused(kind, bad).find(" is not a number "), std::string::npos) << bad;
  for (const auto kind : {below_one, from_zero_to_one}) {
    EXPECT_NE(refused(kind, "0.99999999").find("is 1 in f32"), std::string::npos);
    EXPECT_EQ(refused(kind, "0.9999999"), "");
    EXPECT_EQ(refused(kind, "0"), "");
  }
  EXPECT_NE(refused(positive, "0"), "");
  EXPECT_NE(refused(below_one, "1"), "");
  EXPECT_EQ(refused(from_zero_to_one, "1"), "");
  std::string nan = "nan", half = "0.5";
  EXPECT_NE(example::between(0.01, 600)(nan), "");
  EXPECT_EQ(example::between(0.01, 600)(half), "");
  std::string many = "99999999999999999999", three = "3", four = "4";
  EXPECT_NE(example::whole(1, 3)(many), "");
  EXPECT_EQ(example::whole(1, 3)(three), "");
  EXPECT_NE(example::whole(1, 3)(four), "");
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

TEST(progress, tells_the_time_of_a_very_long_run) {
  std::ostringstream out;
  example::progress bar("train", 1'000'000'000'000'000, 1024, out, true);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  bar.update(1, 5.0);
  // At least 20 ms a step, in minutes.
  const std::string text = out.str(), left = text.substr(text.find("left ") + 5);
  EXPECT_GT(std::stod(left), 3e11) << text;
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

// Options.

/// The values after `words`; empty if they are refused.
template <class Line>
std::map<std::string, std::string> values_after(std::vector<std::string> words) {
  Line line;
  std::ranges::reverse(words);
  try {
    line.app.parse(words);
  } catch (const CLI::ParseError&) {
    return {};
  }
  std::map<std::string, std::string> out;
  for (const example::option_value& one : line.table.values()) out[one.name] = one.value;
  return out;
}

/// Each option that CLI11 has says what it decides, and its value is known with all digits: no other value is the same.
template <class Line>
void expect_values_of_all_options(const std::vector<std::string>& base) {
  using texts = std::vector<std::string>;
  Line line;
  std::map<std::string, example::option_value> known;
  for (const auto& one : line.table.values()) known[one.name] = one;
  const auto numbers = example::numbers_of(line.table.values());
  for (const CLI::Option* const option : line.app.get_options()) {
    const std::string name = option->get_name();
    if (option == line.app.get_help_ptr()) continue;
    ASSERT_TRUE(known.contains(name)) << name << " is in no set";
    if (known[name].what == example::decides::own) continue;
    std::string key = name.substr(2);
    std::ranges::replace(key, '-', '_');
    EXPECT_EQ(numbers.contains(key), known[name].what == example::decides::numbers) << name;

    // The first two words that the option takes.
    bool found = false;
    for (const auto& [one, other] :
         std::vector<std::pair<texts, texts>>{{{name, "0.25"}, {name, "0.25000000000000006"}},
                                              {{name, "16"}, {name, "17"}},
                                              {{name, "f32"}, {name, "bf16"}},
                                              {{name, "cosine"}, {name, "linear"}},
                                              {{name, "kl"}, {name, "jsd"}},
                                              {{name, "ipo"}, {name, "orpo"}},
                                              {{name, "q_proj"}, {name, "q_proj,v_proj"}},
                                              {{}, {name}}}) {
      texts a = base, b = base;
      a.insert(a.end(), one.begin(), one.end()), b.insert(b.end(), other.begin(), other.end());
      auto of_one = values_after<Line>(a), of_other = values_after<Line>(b);
      if (of_one.empty() || of_other.empty()) continue;
      EXPECT_NE(of_one[name], of_other[name]) << name;
      of_one.erase(name), of_other.erase(name);
      EXPECT_EQ(of_one, of_other) << name;
      found = true;
      break;
    }
    EXPECT_TRUE(found) << "no two values of " << name;
  }
  texts seeded = base;
  seeded.insert(seeded.end(), {"--seed", "18446744073709551615"});
  EXPECT_EQ(values_after<Line>(seeded)["--seed"], "18446744073709551615");
}

TEST(options, of_programs_have_values_that_no_other_value_has) {
  expect_values_of_all_options<example::train_llama_command_line>({});
  expect_values_of_all_options<example::finetune_command_line>(
      {"folder", "--data", "x.ids", "--preference", "dpo", "--teacher", "other"});
}

TEST(ranks, of_other_kernels_are_refused) {
  const std::string here = example::kernels_of_program();
  const auto accepted = [&](const std::string& other) {
    bool out = true;
    tigon::comm::threads::run(2, [&](const tigon::comm::threads& c) {
      try {
        example::same_kernels_on_all_ranks(c, c.rank() == 0 ? here : other);
      } catch (const example::shared_fault& fault) {
        EXPECT_STREQ(fault.what(), "the ranks are built for different backends or instruction sets");
        if (c.rank() == 0) out = false;
      }
    });
    return out;
  };
  EXPECT_TRUE(accepted(here));
  EXPECT_FALSE(accepted("generic baseline"));
  EXPECT_NE(here.find(TIGON_STRING(TIGON_TARGET)), std::string::npos);
}

TEST(options, lists_have_no_empty_item_no_blank_and_none_twice) {
  const auto refused = [](const std::vector<std::string>& words) {
    CLI::App app;
    std::vector<std::string> names{"before"};
    std::vector<std::size_t> sizes;
    example::add_list(app, "--names", names, "");
    example::add_list(app, "--sizes", sizes, "", CLI::Range(1, 9));
    std::vector<std::string> reversed(words.rbegin(), words.rend());
    try {
      app.parse(reversed);
      std::string all;
      for (const auto& name : names) all += name + ' ';
      for (const auto size : sizes) all += std::to_string(size) + ' ';
      return all;
    } catch (const CLI::ParseError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refused({}), "before ");
  EXPECT_EQ(refused({"--names", "a,b", "--names", "c", "--sizes", "4,2"}), "a b c 4 2 ");
  EXPECT_EQ(refused({"--names", "a", "b"}), "a b ");
  EXPECT_EQ(refused({"--names", "a,b,a"}), "--names: a is given twice");
  EXPECT_EQ(refused({"--names", "a", "--names", "a"}), "--names: a is given twice");
  EXPECT_EQ(refused({"--sizes", "2,02"}), "--sizes: 02 is given twice");
  for (const char* const text : {"a,", ",a", "a,,b", ","})
    EXPECT_EQ(refused({"--names", text}), "--names: \"" + std::string(text) + "\" has an empty item");
  EXPECT_NE(refused({"--names", ""}).find("--names"), std::string::npos);
  EXPECT_EQ(refused({"--names", "a, b"}), "--names: the item \" b\" has a blank");
  EXPECT_EQ(refused({"--names", "a b"}), "--names: the item \"a b\" has a blank");
  EXPECT_NE(refused({"--sizes", "4,12"}).find("--sizes: "), std::string::npos);
  EXPECT_EQ(refused({"--sizes", "4x"}).find("--sizes: "), 0u);
}

}  // namespace
