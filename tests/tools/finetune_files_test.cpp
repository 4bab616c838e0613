// Configurations, weights and states of a fine-tuning run: read, refused and written.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "../../tools/finetune/checkpoint.hpp"
#include "finetune_fixtures.hpp"

namespace {

using namespace example;
using json = nlohmann::json;

const std::filesystem::path fixtures = std::filesystem::path(TIGON_TOOLS_FIXTURES) / "finetune";

json config_of(const std::string& name) {
  std::ifstream in(fixtures / name / "config.json");
  return json::parse(in);
}
/// As it is read from a file: numbers that were written as whole ones are unsigned then.
architecture read(const json& config) {
  return read_architecture(config_reader(json::parse(config.dump()), "config.json"));
}

/// The sentence of a refusal, "" without one.
template <class F>
std::string refusal(const F& call) {
  try {
    call();
    return {};
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}
void expect_part(const std::string& sentence, const std::string& part) {
  EXPECT_NE(sentence.find(part), std::string::npos) << "wanted \"" << part << "\", got \"" << sentence << '"';
  EXPECT_EQ(sentence.find('\n'), std::string::npos);
}

class finetune_files : public testing::Test {
 protected:
  finetune_files() : folder_(std::filesystem::temp_directory_path() / ("tigon-finetune-" + std::to_string(getpid()))) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "model");
    std::filesystem::create_directories(folder_ / "saved");
  }
  ~finetune_files() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST(finetune_config, families_differ_where_they_should) {
  EXPECT_TRUE(read(config_of("llama")).tied);
  EXPECT_FALSE(read(config_of("llama_linear")).tied);
  const architecture mistral = read(config_of("mistral"));
  EXPECT_EQ(mistral.of_layer[0].window, 5u);
  EXPECT_EQ(mistral.of_layer[1].window, 5u);
  const architecture qwen2 = read(config_of("qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.out_bias);
  EXPECT_EQ(qwen2.of_layer[0].window, 0u);
  EXPECT_EQ(qwen2.of_layer[1].window, 6u);
  const architecture gemma3 = read(config_of("gemma3"));
  EXPECT_TRUE(gemma3.of_layer[0].local && !gemma3.of_layer[1].local);
  EXPECT_EQ(gemma3.local_rotary.theta, 100);
  EXPECT_EQ(gemma3.rotary.factor, 4);
  const architecture moe = read(config_of("qwen3_moe"));
  EXPECT_TRUE(moe.of_layer[0].sparse && !moe.of_layer[1].sparse && !moe.normalised_choices);
}

// As files of the hub have them, written by earlier releases.
TEST(finetune_config, older_files_say_the_same) {
  json c = config_of("llama_llama3");
  json scaling = c["rope_parameters"];
  scaling.erase("rope_theta");
  c["rope_scaling"] = scaling, c["rope_theta"] = 10000.0;
  c.erase("rope_parameters");
  EXPECT_EQ(read(c).rotary, read(config_of("llama_llama3")).rotary);
  c["rope_scaling"] = nullptr, c["rope_theta"] = 5e5;
  EXPECT_EQ(read(c).rotary.theta, 5e5);
  c["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(read(c).rotary.factor, 2);

  json gemma3 = config_of("gemma3");
  for (const char* const key : {"rope_parameters", "layer_types"}) gemma3.erase(key);
  gemma3["num_hidden_layers"] = 7, gemma3["rope_theta"] = 1e6, gemma3["rope_local_base_freq"] = 1e4;
  gemma3["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const architecture a = read(gemma3);
  for (std::size_t l = 0; l < 7; ++l) EXPECT_EQ(a.of_layer[l].window, l == 5 ? 0u : 6u) << l;
  EXPECT_EQ(a.rotary.factor, 8);
  EXPECT_EQ(a.local_rotary.theta, 1e4);
  EXPECT_EQ(a.local_rotary.factor, 1);
  json gemma = config_of("gemma");
  gemma["hidden_act"] = "gelu";  // of the first files
  EXPECT_EQ(read(gemma).act, activation::gelu_tanh);
}

TEST(finetune_config, what_is_not_known_is_refused_by_name) {
  const auto with = [](const char* key, const json& value, const std::string& part, const char* of = "llama") {
    json c = config_of(of);
    c[key] = value;
    expect_part(refusal([&] { read(c); }), part);
  };
  with("model_type", "gpt_neox", "model_type gpt_neox, which this program does not know");
  with("model_type", 3, "model_type that is not a string");
  with("hidden_act", "relu", "activation relu");
  with("rope_parameters", {{"rope_type", "su\n"}}, "rope scaling su\\n");
  with("rope_parameters", {{"rope_type", "linear"}}, "in rope_parameters, has no factor");
  with("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}, "partial_rotary_factor");
  with("rope_parameters", 7, "rope_parameters that is not a JSON object");
  with("attention_dropout", 0.1, "attention_dropout");
  with("quantization_config", {{"bits", 4}}, "quantization_config");
  with("output_router_logits", true, "output_router_logits");
  with("router_jitter_noise", 0.1, "router_jitter_noise", "mixtral");
  with("final_logit_softcapping", 30.0, "final_logit_softcapping");
  with("use_bidirectional_attention", true, "use_bidirectional_attention", "gemma3");
  with("layer_types", {"full_attention", "chunked_attention"}, "layer type chunked_attention", "gemma3");
  with("layer_types", {"full_attention"}, "not a list of all layers", "gemma2");
  with("mlp_only_layers", {9}, "mlp_only_layers", "qwen3_moe");
  with("num_experts_per_tok", 9, "more num_experts_per_tok than experts", "mixtral");
  with("num_key_value_heads", 3, "no multiple of num_key_value_heads");
  with("head_dim", 7, "head_dim that is odd");
  with("vocab_size", 0, "vocab_size that is not a whole number from 1");
  with("vocab_size", 1.5, "vocab_size that is not a whole number from 1");
  with("vocab_size", nullptr, "has no vocab_size");
  with("pad_token_id", 96, "pad_token_id that is not a whole number below its vocab_size of 96");
  with("pad_token_id", ~std::uint64_t{0}, "pad_token_id that is not a whole number below");
  with("pad_token_id", -97, "pad_token_id that is not a whole number below");
  with("pad_token_id", 1.5, "pad_token_id that is not a whole number below");
  with("bos_token_id", {1, 2}, "bos_token_id that is not the number of a token");
  with("eos_token_id", {1, "2"}, "eos_token_id that is not the number of a token");
  with("eos_token_id", json::array(), "eos_token_id that is not the number of a token");
  with("hidden_size", 34, "hidden_size that is no multiple of num_attention_heads", "mixtral");
  with("sliding_window", 0, "sliding_window that is not a whole number from 1", "mistral");
  with("layer_types", {"sliding_attention", "full_attention"}, "and no sliding_window", "qwen3");
  with("query_pre_attn_scalar", 0, "query_pre_attn_scalar that is not above 0", "gemma2");
  with("rms_norm_eps", "small", "rms_norm_eps that is not a number");
  with("tie_word_embeddings", 1, "tie_word_embeddings that is neither true nor false");
  expect_part(refusal([] { config_reader::of_folder("/nowhere"); }), "/nowhere is not a folder");
}

TEST(finetune_config, scalings_have_all_of_their_numbers) {
  const auto longrope = [](std::size_t pairs) { return json(std::vector<double>(pairs, 1.5)); };
  const std::map<std::string, json> whole{
      {"linear", {{"factor", 2.0}}},
      {"dynamic", {{"factor", 2.0}}},
      {"llama3",
       {{"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", 16}}},
      {"yarn", {{"factor", 4.0}, {"original_max_position_embeddings", 16}}},
      {"longrope",
       {{"short_factor", longrope(4)}, {"long_factor", longrope(4)}, {"original_max_position_embeddings", 16}}}};
  const auto expect = [&](const std::string& type, const char* key, const json& value, const std::string& part) {
    for (const char* const place : {"rope_parameters", "rope_scaling"})
      for (const char* const name : {"rope_type", "type"}) {
        SCOPED_TRACE(type + " " + key + " " + value.dump());
        json c = config_of("llama");
        c.erase("rope_parameters");
        c[place] = whole.at(type);
        c[place][name] = type;
        EXPECT_EQ(refusal([&] { read(c); }), "");
        if (value.is_null())
          c[place].erase(key);
        else
          c[place][key] = value;
        expect_part(refusal([&] { read(c); }), part);
      }
  };
  for (const auto& [type, numbers] : whole) {
    for (const auto& [key, value] : numbers.items()) {
      expect(type, key.c_str(), nullptr, ", has no " + key);
      expect(type, key.c_str(), "8", "has a " + key + " that is not");
    }
    if (type == "longrope") continue;
    expect(type, "factor", 0.5, "has a factor below 1");
    expect(type, "factor", -2, "has a factor below 1");
  }
  expect("longrope", "factor", 0.5, "has a factor below 1");
  expect("longrope", "short_factor", longrope(3), "short_factor of 3 numbers; expected half of head_dim, 4");
  expect("longrope", "long_factor", {1.0, 1.0, 0.0, 1.0}, "a number in long_factor that is not above 0");
  expect("llama3", "low_freq_factor", 0, "low_freq_factor that is not above 0");
  expect("llama3", "high_freq_factor", 1.0, "high_freq_factor that is not above its low_freq_factor");
  for (const char* const key : {"attention_factor", "beta_fast", "beta_slow"})
    expect("yarn", key, 0, std::string("has a ") + key + " that is not above 0");
  expect("yarn", "beta_fast", 0.5, "beta_fast below its beta_slow");
  expect("yarn", "mscale", -1, "mscale or mscale_all_dim below 0");
  expect("yarn", "truncate", 1, "truncate that is neither true nor false");
  for (const char* const key : {"original_max_position_embeddings", "factor"}) expect("yarn", key, 0, key);
  expect("linear", "rope_theta", 1, "rope_theta that is not above 1");
  expect("linear", "partial_rotary_factor", 0.5, "partial_rotary_factor");
  json c = config_of("llama");
  c["rope_scaling"] = {{"factor", 2.0}};
  c.erase("rope_parameters");
  expect_part(refusal([&] { read(c); }), "a factor, and no rope_type");
  c["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  c.erase("max_position_embeddings");
  expect_part(refusal([&] { read(c); }), "has no max_position_embeddings");
  c = config_of("llama");
  c["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  expect_part(refusal([&] { read(c); }), "both rope_scaling and rope_parameters, and they differ");
  c["rope_scaling"] = c["rope_parameters"];
  EXPECT_EQ(refusal([&] { read(c); }), "");
  c["pad_token_id"] = -1;  // counts from the end, as that of PyTorch's Embedding
  EXPECT_EQ(read(c).padding_id, 95);
}

TEST_F(finetune_files, weights_come_back_as_they_were_saved) {
  for (const char* const name : {"llama_biases", "gemma3", "qwen3_moe", "mixtral"}) {
    const finetune_case of(name);
    const architecture a = read(config_of(name));
    const weight_layout layout(a);
    const std::vector<float> weights = of.weights(a, layout);
    std::filesystem::copy_file(of.folder / "config.json", folder_ / "model" / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    std::ofstream(folder_ / "model" / "tokenizer.json") << "{ }";
    for (const auto& [type, bound] : {std::pair{"f32", 0.0f}, {"bf16", 0x1p-8f}, {"f16", 0x1p-11f}}) {
      save_model(folder_ / "model", folder_ / "saved", layout, weights, type);
      EXPECT_EQ(std::filesystem::file_size(folder_ / "saved" / "model.safetensors"), model_bytes(layout.tensors, type));
      std::vector<float> again(layout.total, -1.0f);
      read_weights(folder_ / "saved", a, layout, again);
      for (const weight_tensor& t : layout.tensors)
        for (std::size_t i = t.offset; i < t.offset + t.size(); ++i)
          ASSERT_LE(std::abs(again[i] - weights[i]), bound * std::abs(weights[i]) + (bound > 0 ? 0x1p-25f : 0))
              << t.name << ' ' << type;
    }
    EXPECT_EQ(finetune::read_file(folder_ / "saved" / "tokenizer.json"), "{ }");
  }
}

// transformers loads a folder in the dtype of its config.json.
TEST_F(finetune_files, the_configuration_says_what_is_saved_beside_it) {
  const auto model = folder_ / "model", saved = folder_ / "saved";
  const auto expect = [&](json config, const std::string& type, const json& changes) {
    const architecture a = read(config);
    weight_layout layout(a);
    std::ofstream(model / "config.json") << config.dump(1);
    const finetune_case of("llama");
    save_model(model, saved, layout, of.weights(a, layout), type);
    config.update(changes);
    EXPECT_EQ(json::parse(finetune::read_file(saved / "config.json")), config) << type;
  };
  json config = config_of("llama");
  for (const auto& [type, name] : {std::pair{"f32", "float32"}, {"bf16", "bfloat16"}, {"f16", "float16"}})
    for (const char* const before : {"float32", "bfloat16"}) {
      config["dtype"] = before;
      expect(config, type, {{"dtype", name}});
      config["torch_dtype"] = before;
      expect(config, type, {{"dtype", name}, {"torch_dtype", name}});
      config.erase("dtype");
      expect(config, type, {{"dtype", name}, {"torch_dtype", name}});
      config.erase("torch_dtype");
    }
  // What is so already stays as it is, to the byte.
  config["dtype"] = "float32";
  std::ofstream(model / "config.json") << config.dump(7);
  EXPECT_EQ(example::detail::saved_config(model, true, "f32"), config.dump(7));
}

TEST_F(finetune_files, a_head_of_its_own_is_used_whatever_the_configuration_says) {
  const finetune_case of("llama");
  const auto model = folder_ / "model", saved = folder_ / "saved";
  json config = config_of("llama");
  architecture untied = read(config);
  EXPECT_TRUE(untied.tied);
  untied.tied = false;
  const weight_layout layout(untied);
  std::vector<float> weights = of.weights(untied, layout);
  const auto embedding = std::span(weights).subspan(layout.embedding, untied.vocab * untied.hidden),
             head = std::span(weights).subspan(layout.head, untied.vocab * untied.hidden);
  const auto save = [&](dtype of_head) {
    std::ofstream(model / "config.json") << config.dump();
    auto views = example::detail::views_of(layout.tensors, std::span<const float>(weights), dtype::f32);
    const auto narrow = example::detail::rounded<tigon::bfloat16>(head);
    if (of_head == dtype::bf16) views["lm_head.weight"] = view_of(dtype::bf16, {untied.vocab, untied.hidden}, narrow);
    save_safetensors(model / "model.safetensors", views);
  };
  save(dtype::f32);
  const architecture a = architecture_of_folder(model);
  EXPECT_FALSE(a.tied);
  std::vector<float> again(layout.total);
  read_weights(model, a, layout, again);
  EXPECT_EQ(again, weights);
  save_model(model, saved, layout, weights, "f32");
  EXPECT_EQ(json::parse(finetune::read_file(saved / "config.json"))["tie_word_embeddings"], false);
  EXPECT_FALSE(architecture_of_folder(saved).tied);
  // One number apart, or rounded.
  std::ranges::copy(embedding, head.begin());
  save(dtype::f32);
  EXPECT_TRUE(architecture_of_folder(model).tied);
  save(dtype::bf16);
  EXPECT_FALSE(architecture_of_folder(model).tied);
  head.back() += 1;
  save(dtype::f32);
  EXPECT_FALSE(architecture_of_folder(model).tied);
  std::ofstream(model / "adapter_config.json") << "{}";
  expect_part(refusal([&] { architecture_of_folder(model); }), "holds adapters, adapter_config.json");
}

TEST_F(finetune_files, weights_that_a_type_does_not_hold_are_refused_before_the_first_file) {
  const finetune_case of("llama");
  const architecture a = read(config_of("llama"));
  const weight_layout layout(a);
  const std::vector<float> weights = of.weights(a, layout);
  std::filesystem::copy_file(of.folder / "config.json", folder_ / "model" / "config.json");
  std::ofstream(folder_ / "model" / "tokenizer.json") << "{ }";
  const weight_tensor& t = layout.tensors[3];
  const auto saved = [&](float value, const char* type) {
    std::filesystem::remove_all(folder_ / "saved");
    std::filesystem::create_directories(folder_ / "saved");
    std::vector<float> changed = weights;
    changed[t.offset + 5] = value;
    const std::string fault = refusal([&] { save_model(folder_ / "model", folder_ / "saved", layout, changed, type); });
    EXPECT_EQ(fault.empty(), !std::filesystem::is_empty(folder_ / "saved")) << fault;
    if (!fault.empty())
      expect_part(fault, std::string("cannot be saved in ") + type + ": the tensor \"" + t.name + '"');
    return fault;
  };
  EXPECT_EQ(saved(65504, "f16"), "");
  EXPECT_EQ(saved(-65519, "f16"), "");  // rounds to the largest
  expect_part(saved(-65520, "f16"),
              "has the value -65520, and the largest is 65504; expected --save-dtype bf16 or f32");
  EXPECT_EQ(saved(3.38e38f, "bf16"), "");
  expect_part(saved(3.4e38f, "bf16"), "has the value 3.4e+38; expected --save-dtype f32");
  EXPECT_EQ(saved(3.4e38f, "f32"), "");
  for (const char* const type : {"f32", "bf16", "f16"})
    for (const float value : {NAN, INFINITY, -INFINITY}) expect_part(saved(value, type), "which is no number");

  trained_parameters trained({1, 2}, {});
  EXPECT_TRUE(is_finite(trained));
  for (std::vector<float> trained_parameters::*const part :
       {&trained_parameters::values, &trained_parameters::first_moment, &trained_parameters::second_moment}) {
    trained_parameters bad = trained;
    (bad.*part)[1] = INFINITY;
    EXPECT_FALSE(is_finite(bad));
  }
}

TEST_F(finetune_files, a_save_is_not_mixed_with_another) {
  EXPECT_EQ(refusal([&] { expect_no_other_save(folder_, true); }), "");
  std::ofstream(folder_ / "adapter_config.json") << "{}";
  expect_part(refusal([&] { expect_no_other_save(folder_, true); }), "holds adapter_config.json");
  EXPECT_EQ(refusal([&] { expect_no_other_save(folder_, false); }), "");
  std::ofstream(folder_ / "model.safetensors") << "";
  expect_part(refusal([&] { expect_no_other_save(folder_, false); }), "holds model.safetensors");
  std::filesystem::remove(folder_ / "adapter_config.json");
  EXPECT_EQ(refusal([&] { expect_no_other_save(folder_, true); }), "");
  std::ofstream(folder_ / "model.safetensors.index.json") << "{}";
  expect_part(refusal([&] { expect_no_other_save(folder_, true); }), "holds model.safetensors.index.json");
}

TEST_F(finetune_files, shards_are_one_model) {
  const architecture a = read(config_of("tiny"));
  const weight_layout layout(a);
  std::vector<float> weights(layout.total);
  read_weights(fixtures / "tiny", a, layout, weights);
  save_model(fixtures / "tiny", folder_ / "saved", layout, weights, "bf16");
  const auto single = safetensors_file::map(folder_ / "saved" / "model.safetensors");
  std::size_t tensors = 0;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures / "tiny"))
    if (entry.path().extension() == ".safetensors") {
      const auto file = safetensors_file::map(entry.path());
      for (const auto& [name, tensor] : file.tensors()) {
        EXPECT_EQ(single.at(name).shape, tensor.shape);
        EXPECT_TRUE(std::ranges::equal(single.at(name).bytes, tensor.bytes)) << name;
        ++tensors;
      }
    }
  EXPECT_EQ(tensors, single.tensors().size());
}

TEST_F(finetune_files, damaged_weights_are_refused) {
  const architecture a = read(config_of("tiny"));
  const weight_layout layout(a);
  std::vector<float> weights(layout.total);
  const auto model = folder_ / "model";
  const auto refused = [&](const std::string& part) {
    expect_part(refusal([&] { read_weights(model, a, layout, weights); }), part);
  };
  refused("holds neither model.safetensors nor");
  const auto begin_again = [&] {
    std::filesystem::remove_all(model);
    std::filesystem::copy(fixtures / "tiny", model);
  };
  begin_again();
  const auto index = model / "model.safetensors.index.json";
  const std::string text = finetune::read_file(index);
  std::ofstream(index) << "[";
  refused("has no weight_map");
  for (const char* const name : {"../model.safetensors", "..", "", "a/b", "/etc/passwd"}) {
    json changed = json::parse(text);
    changed["weight_map"]["model.norm.weight"] = name;
    std::ofstream(index) << changed;
    refused("a file that is not one of its folder");
  }
  json changed = json::parse(text);
  const std::string first = changed["weight_map"]["model.embed_tokens.weight"];
  changed["weight_map"]["model.norm.weight"] = first;
  std::ofstream(index) << changed;
  refused("which it does not");
  changed = json::parse(text);
  changed["weight_map"].erase("model.norm.weight");
  std::ofstream(index) << changed;
  refused("holds a tensor \"model.norm.weight\" that");
  begin_again();
  for (const std::uintmax_t left : {0, 7, 8, 100, 6000}) {
    std::filesystem::resize_file(model / first, left);
    refused(first);
    begin_again();
  }
  // Whole files with what the model does not have, lacks, or cannot read.
  begin_again();
  read_weights(model, a, layout, weights);
  const auto save = [&](auto change) {
    std::filesystem::remove(index);
    auto views = example::detail::views_of(layout.tensors, std::span<const float>(weights), dtype::f32);
    change(views);
    save_safetensors(model / "model.safetensors", views);
  };
  const std::vector<float> more(64 * 16), more4(4);
  save([&](auto& views) { views["model.layers.2.mlp.up_proj.weight"] = view_of(dtype::f32, {64, 16}, more); });
  refused("holds a tensor \"model.layers.2.mlp.up_proj.weight\", which the model of its config.json does not have");
  save([&](auto& views) { views["model.layers.1.self_attn.rotary_emb.inv_freq"] = view_of(dtype::f32, {4}, more4); });
  EXPECT_EQ(refusal([&] { read_weights(model, a, layout, weights); }), "");  // ignored by transformers, too
  for (const char* const name : {"model.layers.1.self_attn.q_proj.bias", "model.layers.1.self_attn.attention.bias",
                                 "score.weight", "model.layers.1.mlp.up_proj.weight_scale",
                                 "model.layers.1.self_attn.q_norm.weight", "model.embed_tokens.bias"}) {
    save([&](auto& views) { views[name] = view_of(dtype::f32, {4}, more4); });
    refused(std::string("holds a tensor \"") + name + "\", which the model of its config.json does not have");
  }
  save([&](auto& views) { views["model.embed_tokens.weight"] = view_of(dtype::f32, {16, 64}, more); });
  refused("of another shape than [64, 16]");
  const std::vector<std::int32_t> whole(64 * 16);
  save([&](auto& views) { views["model.embed_tokens.weight"] = view_of(dtype::i32, {64, 16}, whole); });
  refused("of type I32, where f32, bf16 or f16 is read");
  std::vector<float> bad = more;
  bad[5] = NAN;
  save([&](auto& views) { views["model.embed_tokens.weight"] = view_of(dtype::f32, {64, 16}, bad); });
  refused("a number that is not finite");
}

TEST_F(finetune_files, states_come_back_and_damaged_ones_change_nothing) {
  trained_parameters trained({1, 2, 3, -4, 5}, {{0, 3, 1.0}, {3, 5, 0.0}});
  trained.first_moment = {0.5f, -1, 2, 0, 1e-30f}, trained.second_moment = {1, 0, 2, 3, 4};
  const auto path = folder_ / "state";
  const run_identity identity{{"seed", "3"}, {"data", "77"}};
  save_state(path, trained, {7, 1, 4, 2, 3.25}, identity);
  EXPECT_EQ(std::filesystem::file_size(path),
            state_bytes(5, {{"seed", "3"}, {"data", "77"}, {"format", "tigon finetune 1"}}));
  trained_parameters again(std::vector<float>(5), trained.groups);
  const run_position at = load_state(path, again, identity);
  EXPECT_EQ(at.step, 7);
  EXPECT_EQ(at.epoch, 1);
  EXPECT_EQ(at.taken, 4);
  EXPECT_EQ(at.evaluations_since_best, 2);
  EXPECT_EQ(at.best, 3.25);
  EXPECT_EQ(again.values, trained.values);
  EXPECT_EQ(again.first_moment, trained.first_moment);
  EXPECT_EQ(again.second_moment, trained.second_moment);

  const auto refused = [&](const run_identity& of, const std::string& part) {
    trained_parameters kept(std::vector<float>(5, 9.0f), trained.groups);
    expect_part(refusal([&] { load_state(path, kept, of); }), part);
    EXPECT_EQ(kept.values, std::vector<float>(5, 9.0f));
    EXPECT_EQ(kept.second_moment, std::vector<float>(5));
  };
  refused({{"seed", "4"}}, "is of a run with another seed: 3, not 4");
  refused({{"rank", "4"}}, "holds no metadata entry \"rank\"");
  refused({{"seed", "3"}}, "is of a run with another data: 77, not none");
  trained_parameters other({1, 2}, {});
  expect_part(refusal([&] { load_state(path, other, identity); }), "\"parameters\" of another shape or type");
  trained.second_moment[2] = -1;
  save_state(path, trained, {}, identity);
  refused(identity, "\"adam.second\" with numbers that no training leaves");
  trained.second_moment[2] = 1;
  save_state(path, trained, {.step = -1}, identity);
  refused(identity, "counts that no training leaves");
  save_state(path, trained, {}, identity);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  refused(identity, "state");
  save_safetensors(path, {}, {});
  refused(identity, "is not a state of this program");
}

TEST_F(finetune_files, adapters_have_names_that_peft_reads) {
  const architecture a = read(config_of("tiny"));
  const weight_layout layout(a);
  const lora_layout lora(layout, {.rank = 2, .alpha = 4, .targets = {"q_proj", "down_proj"}});
  const std::vector<float> values = lora.initial(1);
  save_adapters(fixtures / "tiny", folder_ / "saved", lora, values);
  const auto file = safetensors_file::load(folder_ / "saved" / "adapter_model.safetensors");
  EXPECT_EQ(file.tensors().size(), 8u);
  using shape = std::vector<std::size_t>;
  const std::string layer = "base_model.model.model.layers.1.";
  EXPECT_EQ(file.at(layer + "self_attn.q_proj.lora_A.weight").shape, (shape{2, 16}));
  EXPECT_EQ(file.at(layer + "mlp.down_proj.lora_B.weight").shape, (shape{16, 2}));
  for (const float v : file.at(layer + "self_attn.q_proj.lora_B.weight").values<float>()) EXPECT_EQ(v, 0.0f);
  const json config = json::parse(finetune::read_file(folder_ / "saved" / "adapter_config.json"));
  EXPECT_EQ(config["r"], 2);
  EXPECT_EQ(config["target_modules"], (json{"q_proj", "down_proj"}));
  const lora_layout twice(layout, {.rank = 2, .targets = {"down_proj", "q_proj", "self_attn.q_proj"}});
  EXPECT_EQ(twice.modules, lora.modules);
  expect_part(refusal([&] {
                lora_layout(layout, {.rank = 2, .targets = {"q_proj", "c_attn"}});
              }),
              "no projection c_attn");
}

}  // namespace
