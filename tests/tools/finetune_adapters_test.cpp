#include "../../tools/finetune/adapters.hpp"
#include "../examples/refusals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace {

using namespace example::finetune;
using example::dtype;
using example::tensor_view;
using nlohmann::json;
using tigon::test::refusal;

const std::filesystem::path fixtures = std::filesystem::path(TIGON_TOOLS_FIXTURES) / "finetune_text";

testing::AssertionResult says(const std::string& sentence, const std::string& part) {
  if (sentence.find(part) != std::string::npos && sentence.find('\n') == std::string::npos)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << sentence << "\" does not say \"" << part << '"';
}

class finetune_adapters : public testing::Test {
 protected:
  finetune_adapters() {
    folder_ = std::filesystem::temp_directory_path() / ("tigon-finetune-adapters-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(fixtures / "adapter", folder_);
    // FINETUNE_ADAPTER_OUT keeps what is saved, for make_training.py check.
    if (const char* out = std::getenv("FINETUNE_ADAPTER_OUT")) kept_ = out;
  }
  ~finetune_adapters() override { std::filesystem::remove_all(folder_); }

  /// The sentence that PEFT's adapter with a changed configuration is refused with.
  std::string with(const std::function<void(json&)>& change) {
    json config = json::parse(read_file(fixtures / "adapter" / "adapter_config.json"));
    change(config);
    example::replace_file(folder_ / "adapter_config.json", config.dump());
    return refusal([&] { load_adapter(folder_); });
  }
  std::string with_tensors(const std::function<void(std::map<std::string, tensor_view>&)>& change) {
    const auto file = example::safetensors_file::load(fixtures / "adapter" / "adapter_model.safetensors");
    auto tensors = file.tensors();
    change(tensors);
    example::save_safetensors(folder_ / "adapter_model.safetensors", tensors);
    return refusal([&] { load_adapter(folder_); });
  }

  std::filesystem::path folder_, kept_;
};

constexpr auto name_of_a = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
constexpr auto name_of_b = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

TEST_F(finetune_adapters, one_that_peft_saved_is_read) {
  const adapter read = load_adapter(folder_);
  EXPECT_EQ(read.rank, 4u);
  EXPECT_EQ(read.alpha, 10);
  EXPECT_EQ(read.scale(), 2.5);
  EXPECT_EQ(std::set<std::string>(read.targets.begin(), read.targets.end()),
            (std::set<std::string>{"q_proj", "down_proj"}));
  ASSERT_EQ(read.modules.size(), 4u);
  const low_rank& q = read.modules.at("model.layers.1.self_attn.q_proj");
  EXPECT_EQ(q.in, 16u);
  EXPECT_EQ(q.out, 16u);
  EXPECT_EQ(read.modules.at("model.layers.0.mlp.down_proj").in, 24u);
  EXPECT_EQ(q.a.size(), 64u);
}

TEST_F(finetune_adapters, merged_weights_are_those_of_peft) {
  const json merged = json::parse(read_file(fixtures / "merged.json"));
  auto w = merged["before"].get<std::vector<float>>();
  const auto expected = merged["after"].get<std::vector<float>>();
  const adapter read = load_adapter(folder_);
  merge_adapter(w, read.modules.at(merged["module"]), read.scale());
  ASSERT_EQ(w.size(), expected.size());
  // PEFT's product of rank 4 is rounded as f32 a few times; elements are below 1.
  for (std::size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(w[i], expected[i], 5e-7) << i;
  EXPECT_NE(w, merged["before"].get<std::vector<float>>());
  w.pop_back();
  EXPECT_TRUE(says(refusal([&] { merge_adapter(w, read.modules.at(merged["module"]), 1); }), "does not fit a matrix"));
}

TEST_F(finetune_adapters, one_that_is_saved_comes_back) {
  const adapter read = load_adapter(folder_);
  const auto out = folder_ / "deep" / "saved";
  save_adapter(out, read);
  adapter again = load_adapter(out);
  EXPECT_EQ(again.modules, read.modules);
  EXPECT_EQ(again.targets, read.targets);
  EXPECT_EQ(again.rank, read.rank);
  EXPECT_EQ(again.alpha, read.alpha);
  EXPECT_EQ(again.base_model, "");
  if (!kept_.empty()) save_adapter(kept_, read);
  // The tensors are the bytes that PEFT saved.
  const auto ours = example::safetensors_file::load(out / "adapter_model.safetensors");
  const auto theirs = example::safetensors_file::load(fixtures / "adapter" / "adapter_model.safetensors");
  ASSERT_EQ(ours.tensors().size(), theirs.tensors().size());
  for (const auto& [name, tensor] : theirs.tensors()) {
    EXPECT_EQ(ours.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(ours.at(name).values<float>(), tensor.values<float>()) << name;
  }

  again.alpha = 0.375, again.rank_stabilised = true, again.base_model = "some/\"model";
  save_adapter(out, again);
  EXPECT_EQ(load_adapter(out).scale(), 0.375 / 2);
  EXPECT_EQ(load_adapter(out).base_model, "some/\"model");
  again.modules.begin()->second.a.pop_back();
  EXPECT_TRUE(says(refusal([&] { save_adapter(out, again); }), "shapes do not fit"));
  EXPECT_EQ(load_adapter(out).modules, read.modules);
}

TEST_F(finetune_adapters, half_precision_is_read) {
  const std::vector<std::uint16_t> f16{0x3c00, 0xc000, 0x0001, 0x7bff, 0x8000, 0x3555, 0x0400, 0x03ff};
  const float expected[] = {1, -2, 0x1p-24f, 65504, -0.0f, 0.333251953125f, 0x1p-14f, 0x1.ff8p-15f};
  const std::vector<std::uint16_t> bf16{0x3f80, 0xc000, 0x0001, 0x7f7f, 0x8000, 0x3eab, 0x0080, 0x4049};
  std::vector<std::uint16_t> a(64), b(64);
  std::copy(f16.begin(), f16.end(), a.begin());
  std::copy(bf16.begin(), bf16.end(), b.begin());
  EXPECT_EQ(with_tensors([&](auto& tensors) {
              tensors[name_of_a] = view_of(dtype::f16, {4, 16}, a);
              tensors[name_of_b] = view_of(dtype::bf16, {16, 4}, b);
            }),
            "");
  const low_rank read = load_adapter(folder_).modules.at("model.layers.0.self_attn.q_proj");
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(read.a[i], expected[i]) << i;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(read.b[i]), std::uint32_t{bf16[i]} << 16) << i;
  }
  EXPECT_TRUE(std::signbit(read.a[4]));
  const std::vector<std::uint16_t> not_finite{0xfc00, 0x7c01};
  float wide[2] = {};
  EXPECT_TRUE(example::read_f32(view_of(dtype::f16, {2}, not_finite), wide));
  EXPECT_EQ(wide[0], -INFINITY);
  EXPECT_TRUE(std::isnan(wide[1]));
}

TEST_F(finetune_adapters, what_is_not_known_is_refused_by_name) {
  const auto set = [](const char* key, json value) { return [=](json& config) { config[key] = value; }; };
  EXPECT_TRUE(says(with(set("peft_type", "LOHA")), R"(has the peft_type "LOHA", which is not known here)"));
  EXPECT_TRUE(says(with(set("use_dora", true)), R"(sets "use_dora")"));
  EXPECT_TRUE(says(with(set("bias", "all")), R"(sets "bias")"));
  EXPECT_TRUE(says(with(set("rank_pattern", {{"q_proj", 2}})), R"(sets "rank_pattern")"));
  EXPECT_TRUE(says(with(set("modules_to_save", {"lm_head"})), R"(sets "modules_to_save")"));
  EXPECT_TRUE(says(with(set("r", 0)), "has the rank 0"));
  EXPECT_TRUE(says(with(set("r", -4)), R"(has a "r" that is not a whole number)"));
  EXPECT_TRUE(says(with(set("r", 1u << 30)), R"(has a "r" that is not a whole number)"));
  EXPECT_TRUE(says(with(set("r", nullptr)), R"(has no "r")"));
  EXPECT_TRUE(says(with(set("r", 8)), "does not fit the rank 8"));
  EXPECT_TRUE(says(with(set("lora_alpha", "16")), R"(has a "lora_alpha" that is no number)"));
  EXPECT_TRUE(says(with(set("target_modules", 5)), R"(has "target_modules" that are not a list)"));
  EXPECT_TRUE(says(with(set("target_modules", {5})), R"(has "target_modules" that are not names)"));
  EXPECT_EQ(with(set("target_modules", "all-linear")), "");
  EXPECT_TRUE(says(with(set("base_model_name_or_path", 5)), "is not a string"));
  EXPECT_EQ(with(set("base_model_name_or_path", "a/b")), "");
  EXPECT_EQ(load_adapter(folder_).base_model, "a/b");
}

TEST_F(finetune_adapters, damaged_files_are_refused) {
  const auto a = tensor_view(example::safetensors_file::load(folder_ / "adapter_model.safetensors").at(name_of_a));
  const std::vector<float> values(64);
  EXPECT_TRUE(
      says(with_tensors([](auto& t) { t.erase(name_of_a); }), "only one of the two matrices of \"model.layers.0"));
  EXPECT_TRUE(says(with_tensors([](auto& t) { t.clear(); }), "holds no adapter"));
  EXPECT_TRUE(says(with_tensors([&](auto& t) { t["other\n"] = view_of(dtype::f32, {64}, values); }),
                   R"(holds "other\n", which is no part of an adapter)"));
  EXPECT_TRUE(says(with_tensors([&](auto& t) { t["base_model.model.lora_A.weight"] = t[name_of_a]; }), "is no part"));
  EXPECT_TRUE(says(with_tensors([&](auto& t) { t[name_of_a] = view_of(dtype::f32, {64}, values); }), "is no matrix"));
  EXPECT_TRUE(says(with_tensors([&](auto& t) { t[name_of_a] = view_of(dtype::i32, {4, 16}, values); }), "type I32"));
  EXPECT_TRUE(says(with_tensors([&](auto& t) {
                     t[name_of_a] = view_of(dtype::f32, {16, 4}, values);
                   }),
                   "16 x 4, which does not fit the rank 4"));
  EXPECT_TRUE(says(with_tensors([&](auto& t) { t[name_of_a] = tensor_view{dtype::f32, {4, 0}, {}}; }), "4 x 0"));

  const std::string config = read_file(fixtures / "adapter" / "adapter_config.json");
  for (std::size_t length = 0; length + 2 < config.size(); length += 67) {
    example::replace_file(folder_ / "adapter_config.json", config.substr(0, length));
    EXPECT_TRUE(says(refusal([&] { load_adapter(folder_); }), "is not JSON"));
  }
  example::replace_file(folder_ / "adapter_config.json", std::string(100000, '['));
  EXPECT_TRUE(says(refusal([&] { load_adapter(folder_); }), "nests its JSON too deeply"));
  std::filesystem::remove(folder_ / "adapter_config.json");
  EXPECT_TRUE(says(refusal([&] { load_adapter(folder_); }), "adapter_config.json cannot be opened"));
}

}  // namespace
