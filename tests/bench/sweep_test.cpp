// The shapes of tigon_bench's sweeps, and the memory that decides how far they go.
#include "support/sweep.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <regex>
#include <string>
#include <vector>

#include "support/buffers.hpp"

namespace {

using namespace tigon_bench;

constexpr double GiB = 1 << 30;

std::vector<std::string> x_values(const sweep& s) {
  std::vector<std::string> all;
  for (const sweep_point& p : s.points) all.push_back(p.x_value);
  return all;
}

/// Two f32 arrays [tokens, hidden] and `fixed` bytes.
byte_counter rows_of_f32(double fixed = 0) {
  return [=](const extents& shape) { return fixed + 8.0 * static_cast<double>(shape[0] * shape[1]); };
}

std::string reason_of(const sweep_settings& settings, std::string_view dims, const extents& usual) {
  const sweep s = make_sweep(settings, dims, usual, rows_of_f32());
  for (const sweep_point& p : s.points)
    EXPECT_TRUE(p.shape.empty() != p.reason.empty()) << p.x_value << " has a shape or a reason";
  return s.points.front().reason;
}

TEST(models, are_the_seven_and_one_of_experts) {
  ASSERT_EQ(models().size(), 8u);
  const model_shape& llama = model_named("llama_3_8b");
  EXPECT_EQ((extents{llama.hidden, llama.intermediate, llama.vocab, llama.heads, llama.kv_heads, llama.max_positions}),
            (extents{4096, 14336, 128256, 32, 8, 8192}));
  const model_shape& deepseek = model_named("deepseek_v3");
  EXPECT_EQ((extents{deepseek.hidden, deepseek.experts, deepseek.top_k, deepseek.expert_intermediate}),
            (extents{7168, 256, 8, 2048}));
  EXPECT_THROW(model_named("gpt"), std::invalid_argument);
  for (const model_shape& m : models().first(models_of_a_sweep)) {
    EXPECT_EQ(m.heads % m.kv_heads, 0u) << m.name;
    EXPECT_GE(m.max_positions, 4096u) << m.name;
    EXPECT_EQ(m.experts == 0, m.expert_intermediate == 0) << m.name;
  }
}

TEST(shapes, follow_the_words_of_their_dims) {
  const model_shape& m = model_named("qwen2.5_7b");
  const auto at = [&](std::string_view dims, const extents& usual) { return shape_in(m, dims, usual, 2, 512); };
  EXPECT_EQ(at("tokens x hidden", {1, 1}), (extents{1024, 3584}));
  EXPECT_EQ(at("rows x cols", {1, 1}), (extents{1024, 3584}));
  EXPECT_EQ(at("tokens x intermediate", {1, 1}), (extents{1024, 18944}));
  EXPECT_EQ(at("vocab x hidden x tokens", {1, 1, 1}), (extents{152064, 3584, 1024}));
  EXPECT_EQ(at("batch x seq_len x heads x kv_heads x head_dim", {9, 9, 9, 9, 9}), (extents{2, 512, 28, 4, 128}));
  EXPECT_EQ(at("batch x channels x positions", {9, 9, 9}), (extents{2, 3584, 512}));
  EXPECT_EQ(at("rows x taps", {7, 5}), (extents{1024, 5})) << "an unknown word keeps its number";
  EXPECT_EQ(shape_in(model_named("deepseek_v2_lite"), "tokens x hidden x intermediate x experts x top_k",
                     {1, 1, 1, 1, 1}, 1, 64),
            (extents{64, 2048, 1408, 64, 6}));
}

TEST(shapes, say_why_there_is_none) {
  const sweep_settings lengths{.kind = sweep_kind::token_length, .lengths = {64}};
  EXPECT_EQ(reason_of(lengths, "n x m", {3, 4}), "shape (n x m) has no number of tokens to sweep over");
  EXPECT_NE(reason_of(lengths, "tokens x hidden", {3}).find("1 numbers"), std::string::npos);
  sweep_settings mixture = lengths;
  mixture.model = "llama_3_8b";
  EXPECT_EQ(reason_of(mixture, "tokens x experts", {3, 4}), "model llama_3_8b has no experts");
  mixture.model = "qwen3_moe_30b";
  EXPECT_EQ(reason_of(mixture, "tokens x vocab", {3, 4}), "model qwen3_moe_30b has no vocab");
}

TEST(token_length, goes_in_powers_of_two_as_far_as_memory_and_model_allow) {
  const auto sweep_in = [](double bytes, double fixed, const std::string& model = {}) {
    return x_values(make_sweep({.kind = sweep_kind::token_length, .model = model, .usable_bytes = bytes},
                               "tokens x hidden", {2048, 4096}, rows_of_f32(fixed)));
  };
  using names = std::vector<std::string>;
  EXPECT_EQ(sweep_in(1e15, 0), (names{"1024", "2048", "4096", "8192"}));
  EXPECT_EQ(sweep_in(1e15, 0, "llama_2_7b"), (names{"1024", "2048", "4096"}));
  EXPECT_EQ(sweep_in(1e15, 0, "deepseek_v3").back(), "131072") << "the power of two below 163840";
  // A token takes 8 * 4096 bytes.
  EXPECT_EQ(sweep_in(4096 * 32768.0, 0), (names{"1024", "2048", "4096"}));
  EXPECT_EQ(sweep_in(4096 * 32768.0 - 1, 0), (names{"1024", "2048"}));
  EXPECT_EQ(sweep_in(4096 * 32768.0 + GiB, GiB), (names{"1024", "2048", "4096"})) << "what is fixed counts once";
  EXPECT_EQ(sweep_in(100, 0), names{"1024"}) << "tried, and refused by its memory";
}

TEST(token_length, has_axis_and_setting) {
  const sweep tokens =
      make_sweep({.kind = sweep_kind::token_length, .lengths = {3, 5}}, "tokens x hidden", {2048, 4096}, rows_of_f32());
  EXPECT_EQ(tokens.x_name, "BT");
  EXPECT_EQ(tokens.setting + " " + tokens.value, "model llama_3_8b");
  EXPECT_EQ(x_values(tokens), (std::vector<std::string>{"3", "5"}));
  EXPECT_EQ(tokens.points[1].shape, (extents{5, 4096}));

  const sweep heads = make_sweep({.kind = sweep_kind::token_length, .lengths = {256}},
                                 "batch x seq_len x heads x kv_heads x head_dim", {3, 1, 1, 1, 1}, rows_of_f32());
  EXPECT_EQ(heads.x_name, "T");
  EXPECT_EQ(heads.points[0].shape, (extents{3, 256, 32, 8, 128})) << "the batch is the default shape's";

  const sweep experts =
      make_sweep({.kind = sweep_kind::token_length, .lengths = {256}}, "tokens x experts", {1, 1}, rows_of_f32());
  EXPECT_EQ(experts.value, "qwen3_moe_30b");
  EXPECT_EQ(experts.points[0].shape, (extents{256, 128}));
}

TEST(model_config, gives_every_model_the_tokens_that_fit_in_all) {
  const auto sweep_in = [](double bytes, std::size_t tokens) {
    return make_sweep({.kind = sweep_kind::model_config, .tokens = tokens, .usable_bytes = bytes},
                      "batch x seq_len x hidden", {1, 1, 1},
                      [](const extents& s) { return 8.0 * static_cast<double>(s[0] * s[1] * s[2]); });
  };
  const sweep plenty = sweep_in(1e15, 2048);
  EXPECT_EQ(plenty.x_name, "model_config");
  EXPECT_EQ(x_values(plenty), (std::vector<std::string>{"llama_2_7b", "llama_3_8b", "qwen2.5_7b", "qwen2.5_14b",
                                                        "qwen2.5_72b", "deepseek_v2_lite", "deepseek_v3"}));
  EXPECT_EQ(plenty.points[4].shape, (extents{1, 2048, 8192}));
  EXPECT_EQ(plenty.setting + " " + plenty.value, "tokens 2048");
  EXPECT_EQ(sweep_in(1e15, 40000).points[0].shape, (extents{4, 8192, 4096})) << "sequences of at most 8192";
  EXPECT_EQ(sweep_in(1e15, 3000).value, "2048");
  EXPECT_EQ(sweep_in(1e15, 100).points[0].shape, (extents{1, 64, 4096})) << "fewer than 1024 only when asked for";
  // The widest model holds 1500 tokens: 1024 for all. It holds 500: it is left to be refused, and the next counts.
  EXPECT_EQ(sweep_in(1500 * 8 * 8192.0, 8192).points[5].shape, (extents{1, 1024, 2048}));
  EXPECT_EQ(sweep_in(900 * 8 * 8192.0, 8192).points[0].shape, (extents{1, 1024, 4096}));
  EXPECT_EQ(sweep_in(10, 2048).points.size(), 7u);
}

TEST(model_config, a_counter_that_throws_ends_no_sweep) {
  const auto sweep_with = [](const byte_counter& counter) {
    return make_sweep({.kind = sweep_kind::model_config, .tokens = 4096, .usable_bytes = GiB}, "tokens x hidden",
                      {1, 1}, counter);
  };
  const sweep no_memory = sweep_with([](const extents& s) -> double {
    if (s[1] > 4096) throw std::bad_alloc();
    return 1.0;
  });
  EXPECT_EQ(no_memory.points[4].shape, (extents{4096, 8192}));
  const sweep refused = sweep_with([](const extents&) -> double { throw unsupported("no such type"); });
  EXPECT_EQ(refused.points.size(), 7u);
  EXPECT_EQ(refused.points[0].shape, (extents{4096, 4096}));
}

TEST(axis, changes_one_number_of_the_shape) {
  const sweep vocab = make_axis_sweep("vocab", {1000, 32000}, "tokens x vocab x hidden", {8, 9, 10});
  EXPECT_EQ(vocab.x_name + ", " + vocab.x_label, "vocab, tokens x vocab x hidden");
  EXPECT_EQ(vocab.setting + " " + vocab.value, "shape 8x*x10") << "what holds for all points";
  EXPECT_EQ(x_values(vocab), (std::vector<std::string>{"1000", "32000"}));
  EXPECT_EQ(vocab.points[0].shape, (extents{8, 1000, 10}));
  EXPECT_EQ(vocab.points[1].shape, (extents{8, 32000, 10}));
}

TEST(axis, has_values_around_the_usual_one_by_itself) {
  const auto values = [](std::size_t usual) {
    return x_values(make_axis_sweep("hidden", {}, "tokens x hidden", {3, usual}));
  };
  EXPECT_EQ(values(4096), (std::vector<std::string>{"1024", "2048", "4096", "8192", "16384"}));
  EXPECT_EQ(values(2), (std::vector<std::string>{"1", "2", "4", "8"})) << "never 0";
  EXPECT_EQ(values(1), (std::vector<std::string>{"1", "2", "4"}));
}

TEST(axis, is_known_by_other_words_too) {
  EXPECT_EQ(make_axis_sweep("hidden", {5}, "rows x cols", {1, 2}).points[0].shape, (extents{1, 5}));
  EXPECT_EQ(make_axis_sweep("tokens", {5}, "rows x cols", {1, 2}).points[0].shape, (extents{5, 2}));
  EXPECT_EQ(make_axis_sweep("seq_len", {5}, "batch x channels x positions", {1, 2, 3}).points[0].shape,
            (extents{1, 2, 5}));
  EXPECT_EQ(make_axis_sweep("sequence", {5}, "batch x seq_len", {1, 2}).points[0].shape, (extents{1, 5}));
  EXPECT_EQ(make_axis_sweep("vocabulary", {5}, "tokens x vocab", {1, 2}).points[0].shape, (extents{1, 5}));
  const sweep none = make_axis_sweep("experts", {5}, "rows x cols", {1, 2});
  ASSERT_EQ(none.points.size(), 1u);
  EXPECT_EQ(none.points[0].reason, "shape (rows x cols) has no experts");
  EXPECT_TRUE(none.points[0].shape.empty());
}

/// The dims of all operators, as their sources have them.
std::vector<std::string> dims_of_all_operators() {
  std::vector<std::string> all;
  const std::regex dims("dims = \"([a-z_ ]+)\"");
  for (const auto& file : std::filesystem::directory_iterator(TIGON_BENCH_FOLDER "/ops")) {
    std::ifstream in(file.path());
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    for (std::sregex_iterator at(text.begin(), text.end(), dims); at != std::sregex_iterator(); ++at)
      all.push_back((*at)[1]);
  }
  return all;
}

TEST(axis, is_found_in_every_operator_that_has_it) {
  const std::vector<std::string> all = dims_of_all_operators();
  ASSERT_GT(all.size(), 30u);
  // The axes that others sweep, and the words for them in dims; in how many operators at least.
  struct known {
    const char* axis;
    std::regex word;
    std::size_t operators;
  };
  const known axes[] = {{"batch", std::regex("\\bbatch\\b"), 7},
                        {"vocabulary", std::regex("\\bvocab\\b"), 10},
                        {"hidden", std::regex("\\b(hidden|cols|channels)\\b"), 15},
                        {"blocks", std::regex("\\bblocks\\b"), 1},
                        {"experts", std::regex("\\bexperts\\b"), 4},
                        {"sequence", std::regex("\\b(seq_len|positions)\\b"), 7}};
  for (const known& k : axes) {
    std::size_t found = 0;
    for (const std::string& dims : all) {
      extents usual(static_cast<std::size_t>(std::count(dims.begin(), dims.end(), ' ')) / 2 + 1, 8);
      const sweep s = make_axis_sweep(k.axis, {100, 200}, dims, usual);
      const bool has_it = std::regex_search(dims, k.word);
      EXPECT_EQ(s.points.front().reason.empty(), has_it) << k.axis << " of " << dims;
      if (!has_it) continue;
      ++found;
      ASSERT_EQ(s.points.size(), 2u);
      std::size_t changed = 0;
      for (std::size_t n = 0; n < usual.size(); ++n) {
        if (s.points[0].shape[n] == usual[n]) continue;
        ++changed;
        EXPECT_EQ(s.points[0].shape[n], 100u);
        EXPECT_EQ(s.points[1].shape[n], 200u);
      }
      EXPECT_EQ(changed, 1u) << k.axis << " of " << dims;
    }
    EXPECT_GE(found, k.operators) << k.axis;
  }
}

TEST(modes, have_names_and_directions) {
  for (const mode m : {mode::forward, mode::backward, mode::full, mode::no_grad_forward})
    EXPECT_EQ(mode_named(name_of(m)), m);
  EXPECT_EQ(name_of(mode::no_grad_forward), "no_grad_forward");
  EXPECT_TRUE(has_forward(mode::no_grad_forward) && !has_backward(mode::no_grad_forward));
  EXPECT_TRUE(has_forward(mode::full) && has_backward(mode::full));
  EXPECT_TRUE(!has_forward(mode::backward) && has_backward(mode::backward));
  EXPECT_THROW(mode_named("inference"), std::invalid_argument);
}

TEST(memory, is_counted_without_being_touched) {
  const counting_scope counted;
  {
    const auto a = uniform<float>(std::size_t{1} << 28, -1, 1, 1);  // 1 GiB that nobody writes
    const buffer<double> b(1000);
    EXPECT_EQ(counted.peak_bytes(), (std::size_t{1} << 30) + 8000);
    EXPECT_EQ(a[12345], 0.0f);
  }
  const buffer<char> c(10);
  EXPECT_EQ(counted.peak_bytes(), (std::size_t{1} << 30) + 8000);
}

TEST(memory, beyond_the_limit_is_unsupported_and_free_blocks_give_way) {
  constexpr std::size_t MiB = std::size_t{1} << 20;
  limit_memory(16 * MiB);
  { const buffer<char> small(4 * MiB), large(10 * MiB); }
  EXPECT_NO_THROW(buffer<char>(16 * MiB)) << "the blocks above are free";
  const buffer<char> held(8 * MiB);
  EXPECT_NO_THROW(buffer<char>(8 * MiB));
  try {
    const buffer<char> more(8 * MiB + 1);
    ADD_FAILURE() << "accepted";
  } catch (const unsupported& e) {
    EXPECT_NE(std::string(e.what()).find("too much memory: its arrays take more than 0.0156 GiB"), std::string::npos)
        << e.what();
  }
  {
    const counting_scope counted;
    EXPECT_THROW(buffer<char>(17 * MiB), std::bad_alloc);
  }
  limit_memory(std::size_t(1) << 50);
}

}  // namespace
