// LoRA adapters in the two files that PEFT has for them: adapter_config.json and adapter_model.safetensors.
#ifndef EXAMPLE_FINETUNE_ADAPTERS_HPP
#define EXAMPLE_FINETUNE_ADAPTERS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../support/output_file.hpp"
#include "../../support/safetensors.hpp"
#include "f32_values.hpp"
#include "json_file.hpp"

namespace example::finetune {

/// W + scale B A takes the place of W [out, in]: A is [rank, in], B is [out, rank], row-major.
struct low_rank {
  std::size_t out = 0, in = 0, rank = 0;
  std::vector<float> a, b;

  bool operator==(const low_rank&) const = default;
};

struct adapter {
  std::size_t rank = 8;
  double alpha = 16;
  bool rank_stabilised = false;                  ///< scale is alpha / sqrt(rank), not alpha / rank
  std::vector<std::string> targets;              ///< last parts of the modules' names, as q_proj
  std::string base_model;                        ///< its folder or name
  std::map<std::string, low_rank> modules = {};  ///< by the model's names, as model.layers.0.self_attn.q_proj

  double scale() const {
    const auto r = static_cast<double>(rank);
    return alpha / (rank_stabilised ? std::sqrt(r) : r);
  }
};

namespace detail {

inline constexpr std::string_view peft_prefix = "base_model.model.";
inline constexpr std::string_view peft_a = ".lora_A.weight", peft_b = ".lora_B.weight";

/// Options of PEFT that would make something else of the tensors.
inline void check_adapter_config(const json_source& source, const nlohmann::json& config) {
  const std::string type = source.text(config, "peft_type");
  if (type != "LORA") source.fail("has the peft_type " + json_source::quoted(type) + ", which is not known here");
  const auto off = [](const nlohmann::json* value) {
    return value == nullptr || *value == false || ((value->is_object() || value->is_array()) && value->empty());
  };
  for (const char* key :
       {"use_dora", "use_qalora", "use_bdlora", "lora_bias", "fan_in_fan_out", "modules_to_save", "rank_pattern",
        "alpha_pattern", "trainable_token_indices", "target_parameters", "layer_replication", "alora_invocation_tokens",
        "arrow_config", "velora_config", "monteclora_config", "kasa_config"})
    if (!off(json_source::find(config, key)))
      source.fail("sets " + json_source::quoted(key) + ", which is not known here");
  if (const auto* bias = json_source::find(config, "bias"); bias != nullptr && *bias != "none")
    source.fail("sets \"bias\", which is not known here");
}

/// A list of names, or one expression for them.
inline std::vector<std::string> adapter_targets(const json_source& source, const nlohmann::json& config) {
  const nlohmann::json* targets = json_source::find(config, "target_modules");
  if (targets == nullptr) return {};
  if (targets->is_string()) return {targets->get<std::string>()};
  std::vector<std::string> out;
  if (!targets->is_array()) source.fail("has \"target_modules\" that are not a list");
  for (const nlohmann::json& name : *targets) {
    if (!name.is_string()) source.fail("has \"target_modules\" that are not names");
    out.push_back(name.get<std::string>());
  }
  return out;
}

inline adapter adapter_config(const std::filesystem::path& path) {
  const json_source source("the adapter " + path.string());
  const nlohmann::json config = source.parse_object(read_file(path));
  check_adapter_config(source, config);
  adapter out;
  out.rank = source.whole(source.at(config, "r"), "r", 1u << 20);
  const nlohmann::json& alpha = source.at(config, "lora_alpha");
  if (!alpha.is_number() || !std::isfinite(alpha.get<double>())) source.fail("has a \"lora_alpha\" that is no number");
  if (out.rank == 0) source.fail("has the rank 0");
  out.alpha = alpha.get<double>();
  out.rank_stabilised = source.flag(config, "use_rslora", false);
  out.targets = adapter_targets(source, config);
  if (json_source::find(config, "base_model_name_or_path") != nullptr)
    out.base_model = source.text(config, "base_model_name_or_path");
  return out;
}

}  // namespace detail

/// Throws std::runtime_error: a file that is missing or damaged, options that are not known, a matrix without the
/// other, shapes that do not fit. f32, bf16 and f16 are read.
inline adapter load_adapter(const std::filesystem::path& folder) {
  adapter out = detail::adapter_config(folder / "adapter_config.json");
  const auto file = safetensors_file::load(folder / "adapter_model.safetensors");
  const auto quoted = [](std::string_view name) { return json_source::quoted(name); };
  for (const auto& [name, tensor] : file.tensors()) {
    const bool is_a = name.ends_with(detail::peft_a), is_b = name.ends_with(detail::peft_b);
    if (!name.starts_with(detail::peft_prefix) || (!is_a && !is_b) ||
        name.size() <= detail::peft_prefix.size() + detail::peft_a.size())
      file.fail("holds " + quoted(name) + ", which is no part of an adapter that is known here");
    if (tensor.shape.size() != 2) file.fail("holds " + quoted(name) + ", which is no matrix");
    std::vector<float> values(tensor.shape[0] * tensor.shape[1]);
    if (!read_f32(tensor, values))
      file.fail("holds " + quoted(name) + " of the type " + std::string(info(tensor.type).name));
    const std::size_t rank = tensor.shape[is_a ? 0 : 1], width = tensor.shape[is_a ? 1 : 0];
    if (rank != out.rank || width == 0)
      file.fail("holds " + quoted(name) + " of " + std::to_string(tensor.shape[0]) + " x " +
                std::to_string(tensor.shape[1]) + ", which does not fit the rank " + std::to_string(out.rank));
    std::string module = name.substr(detail::peft_prefix.size());
    module.resize(module.size() - detail::peft_a.size());
    low_rank& both = out.modules[module];
    both.rank = rank;
    (is_a ? both.in : both.out) = width;
    (is_a ? both.a : both.b) = std::move(values);
  }
  for (const auto& [module, both] : out.modules)
    if (both.a.empty() || both.b.empty()) file.fail("holds only one of the two matrices of " + quoted(module));
  if (out.modules.empty()) file.fail("holds no adapter");
  return out;
}

/// Both files, in f32; each replaces an older one as a whole. The folder is made.
inline void save_adapter(const std::filesystem::path& folder, const adapter& saved) {
  std::map<std::string, tensor_view> tensors;
  for (const auto& [module, both] : saved.modules) {
    if (both.rank != saved.rank || both.a.size() != both.rank * both.in || both.b.size() != both.out * both.rank)
      throw std::runtime_error("the adapter of " + module + " cannot be saved: its shapes do not fit");
    const std::string name = std::string(detail::peft_prefix) + module;
    tensors[name + std::string(detail::peft_a)] = view_of(dtype::f32, {both.rank, both.in}, both.a);
    tensors[name + std::string(detail::peft_b)] = view_of(dtype::f32, {both.out, both.rank}, both.b);
  }
  nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                   {"task_type", "CAUSAL_LM"},
                                   {"base_model_name_or_path", saved.base_model},
                                   {"r", saved.rank},
                                   {"lora_alpha", saved.alpha},
                                   {"lora_dropout", 0.0},
                                   {"target_modules", saved.targets},
                                   {"bias", "none"},
                                   {"fan_in_fan_out", false},
                                   {"use_rslora", saved.rank_stabilised},
                                   {"use_dora", false},
                                   {"inference_mode", true}};
  if (saved.base_model.empty()) config["base_model_name_or_path"] = nullptr;
  // PEFT writes whole numbers as such.
  if (saved.alpha == std::floor(saved.alpha) && std::abs(saved.alpha) < 1e9)
    config["lora_alpha"] = static_cast<std::int64_t>(saved.alpha);
  std::filesystem::create_directories(folder);
  save_safetensors(folder / "adapter_model.safetensors", tensors, {{"format", "pt"}});
  replace_file(folder / "adapter_config.json",
               config.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

/// w += scale B A, w [out, in].
inline void merge_adapter(std::span<float> w, const low_rank& both, double scale) {
  if (w.size() != both.out * both.in)
    throw std::runtime_error("an adapter of " + std::to_string(both.out) + " x " + std::to_string(both.in) +
                             " does not fit a matrix of " + std::to_string(w.size()) + " elements");
  std::vector<double> sum(both.in);
  for (std::size_t i = 0; i < both.out; ++i) {
    std::ranges::fill(sum, 0.0);
    for (std::size_t k = 0; k < both.rank; ++k) {
      const double b = scale * double{both.b[i * both.rank + k]};
      for (std::size_t j = 0; j < both.in; ++j) sum[j] += b * double{both.a[k * both.in + j]};
    }
    for (std::size_t j = 0; j < both.in; ++j) {
      float& to = w[i * both.in + j];
      to = static_cast<float>(double{to} + sum[j]);
    }
  }
}

}  // namespace example::finetune
#endif
