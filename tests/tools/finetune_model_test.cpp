// The fine-tuned model against transformers: logits, loss and every gradient of small random models of every family.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../tools/finetune/model.hpp"
#include "finetune_fixtures.hpp"

namespace {

using namespace example;

struct problem {
  finetune_case of;
  architecture a;
  weight_layout layout;
  std::vector<float> weights;

  explicit problem(const std::string& name, const nlohmann::json& config = {})
      : of(name),
        a(read_architecture(config.is_null() ? config_reader::of_folder(of.folder)
                                             : config_reader(config, "config.json"))),
        layout(a),
        weights(of.weights(a, layout)) {}
  packed_documents documents() const { return {of.ids, of.targets, of.begins}; }
};

struct result {
  double loss = 0, again = 0;
  std::vector<float> gradients, adapter_gradients, logits;
};

struct setting {
  bool recompute = false;
  std::size_t threads = 2;
  tigon::gradient mode = tigon::gradient::overwrite;
};

result run(const problem& p, setting with = {}, const lora_layout& lora = {}, const std::vector<float>& adapters = {}) {
  tigon::thread_pool pool(with.threads);
  tigon::workspace workspace;
  tigon::context ctx(pool, workspace);
  causal_model<float> model(p.a, p.layout, lora, {p.of.ids.size(), with.recompute}, ctx);
  const model_weights<float> weights{p.weights, p.weights, adapters};
  result r;
  const float begin = with.mode == tigon::gradient::accumulate ? 0.5f : -7.0f;
  if (lora.empty())
    r.gradients.assign(p.layout.total, begin);
  else
    r.adapter_gradients.assign(lora.total, begin);
  r.loss = model.step(weights, {r.gradients, r.adapter_gradients, with.mode}, p.documents());
  r.again = model.loss(weights, p.documents());
  r.logits.resize(p.of.rows.size() * p.a.vocab);
  model.logits(weights, p.documents(), p.of.rows, {r.logits.data(), p.of.rows.size(), p.a.vocab});
  return r;
}

double loss_of(const problem& p) {
  tigon::thread_pool pool(1);
  tigon::workspace workspace;
  tigon::context ctx(pool, workspace);
  const lora_layout no_adapters;
  causal_model<float> model(p.a, p.layout, no_adapters, {p.of.ids.size()}, ctx);
  return model.loss({p.weights, p.weights}, p.documents()) / p.of.counted_targets();
}

/// Of two vectors, |a - b| / |b|.
double apart(std::span<const float> a, std::span<const float> b) {
  double square = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    square += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(square / norm);
}

void expect_agreement(const std::string& name) {
  SCOPED_TRACE(name);
  const problem p(name);
  const result r = run(p);
  const double count = p.of.counted_targets();
  EXPECT_NEAR(r.loss / count, p.of.loss, 1e-6 * p.of.loss);
  EXPECT_NEAR(r.again, r.loss, 1e-6 * r.loss);
  double largest = 0;
  for (const float v : p.of.logits) largest = std::max(largest, std::abs(static_cast<double>(v)));
  for (std::size_t i = 0; i < r.logits.size(); ++i) ASSERT_NEAR(r.logits[i], p.of.logits[i], 5e-6 * largest) << i;
  EXPECT_EQ(p.of.gradient_names(), p.of.names(p.layout));
  for (const weight_tensor& t : p.layout.tensors) {
    const auto sums = p.of.sums(t, weight_layout::of(std::span(r.gradients), t), 1 / count);
    for (const auto& [key, values] : sums) EXPECT_LT(apart(values, p.of.gradient(key)), 2e-5) << key;
  }
}

TEST(finetune_model, llama) {
  for (const char* const name : {"llama", "llama_biases"}) expect_agreement(name);
}
TEST(finetune_model, scalings_of_positions) {
  for (const char* const name : {"llama_linear", "llama_dynamic", "llama_llama3", "llama_yarn", "llama_longrope"})
    expect_agreement(name);
}
TEST(finetune_model, mistral) { expect_agreement("mistral"); }
TEST(finetune_model, qwen) {
  for (const char* const name : {"qwen2", "qwen3"}) expect_agreement(name);
}
TEST(finetune_model, gemma) {
  for (const char* const name : {"gemma", "gemma2", "gemma3"}) expect_agreement(name);
}
TEST(finetune_model, experts) {
  for (const char* const name : {"mixtral", "qwen3_moe"}) expect_agreement(name);
}
TEST(finetune_model, balance_of_routers) {
  for (const char* const name : {"mixtral_balance", "qwen3_moe_balance"}) expect_agreement(name);
}

/// fields.json: a family's configuration with another value of a field. The program has the loss of transformers, or
/// refuses it.
TEST(finetune_model, fields_of_the_configuration_mean_what_they_mean_to_transformers) {
  const auto folder = std::filesystem::path(TIGON_TOOLS_FIXTURES) / "finetune";
  const nlohmann::json cases = nlohmann::json::parse(std::ifstream(folder / "fields.json"));
  std::size_t compared = 0;
  for (const nlohmann::json& one : cases) {
    SCOPED_TRACE(one["family"].get<std::string>() + " " + one["name"].get<std::string>());
    nlohmann::json config = nlohmann::json::parse(std::ifstream(folder / one["family"] / "config.json"));
    for (const std::string key : one["without"]) config.erase(key);
    for (const auto& [key, value] : one["set"].items()) config[key] = value;
    try {
      problem p(one["family"], config);
      EXPECT_FALSE(one["refused"]) << "accepted";
      if (one["loss"].is_null()) continue;
      const double wanted = one["loss"], loss = loss_of(p);
      EXPECT_NEAR(loss, wanted, 1e-6 * wanted);
      ++compared;
    } catch (const std::runtime_error& error) {
      EXPECT_TRUE(one["refused"]) << error.what();
    }
  }
  EXPECT_GT(compared, 500u);
}

TEST(finetune_model, layers_made_again_have_the_same_gradients) {
  for (const char* const name : {"llama_biases", "gemma3", "qwen3_moe_balance"}) {
    const problem p(name);
    const result kept = run(p), again = run(p, {.recompute = true});
    EXPECT_EQ(again.loss, kept.loss) << name;
    EXPECT_LT(apart(again.gradients, kept.gradients), 1e-6) << name;
  }
}

TEST(finetune_model, gradients_add_up) {
  for (const char* const name : {"llama_biases", "gemma3", "qwen3_moe"}) {
    const problem p(name);
    const result alone = run(p), added = run(p, {.mode = tigon::gradient::accumulate});
    for (const weight_tensor& t : p.layout.tensors) {
      std::vector<float> sum;
      for (const float v : weight_layout::of(std::span(added.gradients), t)) sum.push_back(v - 0.5f);
      EXPECT_LT(apart(sum, weight_layout::of(std::span(alone.gradients), t)), 1e-5) << name << ' ' << t.name;
    }
  }
}

TEST(finetune_model, bits_do_not_depend_on_the_threads) {
  for (const char* const name : {"gemma2", "mixtral"}) {
    const problem p(name);
    const result one = run(p, {.threads = 1}), many = run(p, {.threads = 3});
    EXPECT_EQ(many.loss, one.loss) << name;
    EXPECT_EQ(many.gradients, one.gradients) << name;
  }
}

/// The gradients of adapters are those of W + scale B A, by the chain rule; a step changes nothing else.
TEST(finetune_model, adapters_differentiate_the_merged_model) {
  for (const char* const name : {"llama_biases", "gemma3", "qwen3_moe"}) {
    SCOPED_TRACE(name);
    problem p(name);
    const bool experts = p.a.experts != 0;
    lora_options options{.rank = 3, .alpha = 5};
    if (experts) options.targets = {"q_proj", "v_proj", "o_proj"};
    const lora_layout lora(p.layout, options);
    std::vector<float> adapters = lora.initial(3);
    for (std::size_t i = 1; i < lora.tensors.size(); i += 2)  // B begins at 0
      p.of.fill(lora.tensors[i].name, 0.3f, weight_layout::of(std::span(adapters), lora.tensors[i]));
    const result low = run(p, {}, lora, adapters);
    lora.merge(p.layout, adapters, p.weights);
    const result merged = run(p);
    EXPECT_NEAR(low.loss, merged.loss, 2e-6 * merged.loss);
    for (std::size_t l = 0; l < p.a.layers; ++l) {
      const auto compare = [&](const projection& of, const std::vector<lora_adapter>& list) {
        for (const lora_adapter& one : list) {
          std::vector<float> da(options.rank * one.in), db(one.out * options.rank);
          for (std::size_t i = 0; i < one.out; ++i)
            for (std::size_t r = 0; r < options.rank; ++r)
              for (std::size_t j = 0; j < one.in; ++j) {
                const auto dw =
                    static_cast<float>(options.scale()) * merged.gradients[of.offset + (one.first + i) * of.cols + j];
                db[i * options.rank + r] += dw * adapters[one.a + r * one.in + j];
                da[r * one.in + j] += dw * adapters[one.b + i * options.rank + r];
              }
          const std::span all(low.adapter_gradients);
          EXPECT_LT(apart(all.subspan(one.a, da.size()), da), 2e-5) << "layer " << l;
          EXPECT_LT(apart(all.subspan(one.b, db.size()), db), 2e-5) << "layer " << l;
        }
      };
      const auto& of = p.layout.layers[l];
      const auto& at = lora.layers[l];
      compare(of.qkv, at.qkv), compare(of.out, at.out), compare(of.gate_up, at.gate_up), compare(of.down, at.down);
    }
  }
}

}  // namespace
