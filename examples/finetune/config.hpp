// A Hugging Face folder's config.json as the numbers that a model is built from.
#ifndef EXAMPLE_FINETUNE_CONFIG_HPP
#define EXAMPLE_FINETUNE_CONFIG_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../support/safetensors.hpp"
#include "rotary.hpp"

namespace example {

enum class activation { silu, gelu_tanh, gelu_erf };

/// What a decoder of one of the known families is made of. One model reads it: there is no class for a family.
struct architecture {
  std::string model_type;
  std::size_t vocab = 0, hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::size_t positions = 0;  ///< that the model was made for
  double norm_eps = 1e-6;
  double norm_offset = 0;    ///< added to the norms' weights: 1 for Gemma
  bool gemma_norms = false;  ///< rounded once, as Gemma's
  bool tied = false;         ///< the head's matrix is the embedding's
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool head_norms = false;  ///< each head of q and k is normed before its rotation
  bool post_norms = false;  ///< what attention and MLP write is normed before it is added
  activation act = activation::silu;
  double embedding_scale = 1;
  double attention_scale = 0;    ///< 0: 1 / sqrt(head_dim)
  double attention_softcap = 0;  ///< 0: none
  double logit_softcap = 0;
  std::size_t experts = 0, top_k = 0, expert_intermediate = 0;
  bool normalised_choices = true;
  double balance = 0;              ///< weight of the routers' balance loss
  std::ptrdiff_t padding_id = -1;  ///< whose row of the embedding gets no gradient from lookups
  rotary_scaling rotary, local_rotary;

  struct layer_kind {
    std::size_t window = 0;  ///< keys that a query sees, its own among them; 0: all before it
    bool local = false;      ///< turns by local_rotary
    bool sparse = false;     ///< has experts
  };
  std::vector<layer_kind> of_layer;

  std::size_t q_width() const { return heads * head_dim; }
  std::size_t kv_width() const { return kv_heads * head_dim; }
  std::size_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

/// The file, with sentences for what is missing or of another kind. null counts as missing, as it does for its readers.
class config_reader {
 public:
  using json = nlohmann::json;

  config_reader(json values, std::string name) : values_(std::move(values)), name_(std::move(name)) {}

  static config_reader of_folder(const std::filesystem::path& folder) {
    const std::filesystem::path path = folder / "config.json";
    const std::string name = path.string();
    std::error_code code;
    if (!std::filesystem::is_directory(folder, code)) throw std::runtime_error(folder.string() + " is not a folder");
    if (!std::filesystem::is_regular_file(path, code)) throw std::runtime_error(name + " cannot be opened");
    if (std::filesystem::file_size(path, code) > (std::size_t{1} << 24) || code)
      throw std::runtime_error(name + " is too long for a configuration");
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    json values = json::parse(text.str(), depth_limit, /*allow_exceptions=*/false);
    if (!values.is_object()) throw std::runtime_error(name + " is not a JSON object");
    return {std::move(values), name};
  }

  [[noreturn]] void fail(const std::string& what) const { throw std::runtime_error(name_ + " " + what); }

  bool has(const char* key) const {
    const auto found = values_.find(key);
    return found != values_.end() && !found->is_null();
  }
  /// Also where it is null.
  bool contains(const char* key) const { return values_.contains(key); }
  const json& at(const char* key) const {
    if (!has(key)) fail(std::string("has no ") + key);
    return *values_.find(key);
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) fail(std::string("has a ") + key + " that is not a string");
    return at(key).get<std::string>();
  }
  std::string text(const char* key, std::string otherwise) const { return has(key) ? text(key) : otherwise; }
  /// From 1 to 2^31 - 1.
  std::size_t size(const char* key) const {
    const json& v = at(key);
    const std::size_t n = v.is_number_unsigned() ? v.get<std::size_t>() : 0;
    if (n == 0 || n > 0x7fffffff) fail(std::string("has a ") + key + " that is not a whole number from 1 to 2^31 - 1");
    return n;
  }
  std::size_t size(const char* key, std::size_t otherwise) const { return has(key) ? size(key) : otherwise; }
  std::size_t size_or_zero(const char* key, std::size_t otherwise) const {
    return has(key) && at(key).is_number_unsigned() && at(key).get<std::size_t>() == 0 ? 0 : size(key, otherwise);
  }
  double number(const char* key) const {
    const json& v = at(key);
    if (!v.is_number() || !std::isfinite(v.get<double>())) fail(std::string("has a ") + key + " that is not a number");
    return v.get<double>();
  }
  double number(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!at(key).is_boolean()) fail(std::string("has a ") + key + " that is neither true nor false");
    return at(key).get<bool>();
  }
  std::vector<double> numbers(const char* key) const {
    const json& list = at(key);
    std::vector<double> out;
    for (const json& v : list) {
      if (!list.is_array() || !v.is_number()) fail(std::string("has a ") + key + " that is not a list of numbers");
      out.push_back(v.get<double>());
    }
    return out;
  }
  /// A part of the file that is an object of its own.
  config_reader part(const char* key) const {
    if (!at(key).is_object()) fail(std::string("has a ") + key + " that is not a JSON object");
    return {at(key), name_ + ", in " + key + ","};
  }

 private:
  static bool depth_limit(int depth, json::parse_event_t, const json&) { return depth < 32; }

  json values_;
  std::string name_;
};

namespace detail {

/// rope_parameters of newer files; rope_theta and rope_scaling of older ones.
inline rotary_scaling read_rotary(const config_reader& c, const config_reader& r, double theta, std::size_t positions) {
  rotary_scaling out;
  out.theta = r.number("rope_theta", theta);
  if (!(out.theta > 1 && out.theta <= 1e300)) r.fail("has a rope_theta that is not above 1");
  if (r.number("partial_rotary_factor", c.number("partial_rotary_factor", 1)) != 1)
    r.fail("has a partial_rotary_factor, which this program does not know");
  const std::string type = r.text("rope_type", r.text("type", "default"));
  const std::size_t original = r.size("original_max_position_embeddings", positions);
  out.original_positions = c.size("original_max_position_embeddings", original);
  const auto factor_or_ratio = [&] {
    return r.number("factor", static_cast<double>(positions) / static_cast<double>(out.original_positions));
  };
  using enum rotary_scaling::kind;
  if (type == "default") {
    out.type = none;
  } else if (type == "linear") {
    out.type = linear, out.factor = r.number("factor");
  } else if (type == "dynamic") {
    out.type = dynamic, out.factor = r.number("factor"), out.original_positions = positions;
  } else if (type == "llama3") {
    out.type = llama3, out.factor = r.number("factor");
    out.low_freq_factor = r.number("low_freq_factor"), out.high_freq_factor = r.number("high_freq_factor");
  } else if (type == "yarn") {
    out.type = yarn, out.factor = factor_or_ratio();
    out.beta_fast = r.number("beta_fast", 32), out.beta_slow = r.number("beta_slow", 1);
    out.attention_factor = r.number("attention_factor", 0);
    out.mscale = r.number("mscale", 0), out.mscale_all_dim = r.number("mscale_all_dim", 0);
    out.truncate = r.flag("truncate", true);
  } else if (type == "longrope") {
    out.type = longrope, out.factor = factor_or_ratio();
    out.attention_factor = r.number("attention_factor", 0);
    out.short_factors = r.numbers("short_factor"), out.long_factors = r.numbers("long_factor");
  } else {
    r.fail("has the rope scaling " + printable(type) + ", which this program does not know");
  }
  return out;
}

inline void read_rotary(const config_reader& c, architecture& a) {
  const bool gemma3 = a.model_type == "gemma3_text";
  const double theta = gemma3 || a.model_type == "mixtral" ? 1e6 : 1e4;
  const double of_file = c.number("rope_theta", theta);
  // In older files rope_scaling has the scaling alone.
  const char* const key = c.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!c.has(key)) {
    a.rotary = read_rotary(c, config_reader(nlohmann::json::object(), "config.json"), of_file, a.positions);
    if (gemma3) a.local_rotary = {.theta = c.number("rope_local_base_freq", 1e4)};
    return;
  }
  const config_reader r = c.part(key);
  if (r.has("full_attention") || r.has("sliding_attention")) {
    a.rotary = read_rotary(c, r.part("full_attention"), of_file, a.positions);
    a.local_rotary = read_rotary(c, r.part("sliding_attention"), gemma3 ? 1e4 : of_file, a.positions);
    return;
  }
  a.rotary = read_rotary(c, r, of_file, a.positions);
  a.local_rotary = a.rotary;
  if (gemma3) a.local_rotary = {.theta = c.number("rope_local_base_freq", 1e4)};
}

inline activation read_activation(const config_reader& c, const architecture& a) {
  const bool gemma = a.model_type.starts_with("gemma");
  const char* const key = gemma && c.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string name = c.text(key, gemma ? "gelu_pytorch_tanh" : "silu");
  if (a.model_type == "gemma" && name == "gelu") return activation::gelu_tanh;  // what the first files mean
  if (name == "silu" || name == "swish") return activation::silu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return activation::gelu_tanh;
  if (name == "gelu") return activation::gelu_erf;
  c.fail("has the activation " + printable(name) + ", which this program does not know");
}

/// Which layers have a window, by the list of newer files or the rule of the family.
inline void read_windows(const config_reader& c, architecture& a) {
  const std::string& family = a.model_type;
  const bool qwen = family.starts_with("qwen");
  const bool has_layers = family == "gemma2" || family == "gemma3_text" || family == "qwen2" || family == "qwen3";
  std::size_t window = 0;
  if (has_layers || family == "mistral" || family == "mixtral" || family == "qwen3_moe") {
    if (c.has("sliding_window"))
      window = c.size("sliding_window");
    else if (family == "mistral" && !c.contains("sliding_window"))
      window = 4096;
    else if (family.starts_with("gemma") && !c.contains("sliding_window"))
      window = 4096;
    if (qwen && !c.flag("use_sliding_window", false)) window = 0;
  }
  if (has_layers && c.has("layer_types")) {
    const auto& list = c.at("layer_types");
    if (!list.is_array() || list.size() != a.layers) c.fail("has layer_types that are not a list of all layers");
    for (std::size_t i = 0; i < a.layers; ++i) {
      const std::string type = list[i].is_string() ? list[i].get<std::string>() : list[i].dump();
      if (type != "sliding_attention" && type != "full_attention")
        c.fail("has the layer type " + printable(type) + ", which this program does not know");
      a.of_layer[i].local = type == "sliding_attention";
    }
  } else if (has_layers) {
    const std::size_t pattern = family == "gemma2" ? 2 : c.size("sliding_window_pattern", 6);
    const std::size_t first = qwen ? c.size_or_zero("max_window_layers", 28) : 0;
    for (std::size_t i = 0; i < a.layers; ++i)
      a.of_layer[i].local = qwen ? window != 0 && i >= first : (i + 1) % pattern != 0;
  }
  for (auto& l : a.of_layer) l.window = !has_layers || l.local ? window : 0;
  if (family != "gemma3_text")
    for (auto& l : a.of_layer) l.local = l.local && !a.rotary.same_as(a.local_rotary);
}

inline void read_experts(const config_reader& c, architecture& a) {
  const bool mixtral = a.model_type == "mixtral";
  if (!mixtral && a.model_type != "qwen3_moe") return;
  a.experts = c.size(mixtral || !c.has("num_experts") ? "num_local_experts" : "num_experts");
  a.top_k = c.size("num_experts_per_tok");
  if (a.experts > 4096) c.fail("has more than 4096 experts");
  if (a.top_k > a.experts) c.fail("has more num_experts_per_tok than experts");
  a.expert_intermediate = mixtral ? a.intermediate : c.size("moe_intermediate_size");
  a.normalised_choices = mixtral || c.flag("norm_topk_prob", false);
  if (c.flag("output_router_logits", false)) a.balance = c.number("router_aux_loss_coef", 0.001);
  if (!(a.balance >= 0)) c.fail("has a negative router_aux_loss_coef");
  for (auto& l : a.of_layer) l.sparse = true;
  if (mixtral) return;
  const std::size_t step = c.size("decoder_sparse_step", 1);
  for (std::size_t i = 0; i < a.layers; ++i) a.of_layer[i].sparse = (i + 1) % step == 0;
  if (c.has("mlp_only_layers"))
    for (const double i : c.numbers("mlp_only_layers")) {
      if (!(i >= 0 && i < static_cast<double>(a.layers))) c.fail("names a layer in mlp_only_layers that is not there");
      a.of_layer[static_cast<std::size_t>(i)].sparse = false;
    }
}

/// Fields of other mathematics, which are refused unless they say that there is none.
inline void refuse_unknown(const config_reader& c, const architecture& a) {
  const auto refuse = [&](const char* key) {
    c.fail(std::string("has ") + key + ", which this program does not know");
  };
  for (const char* const key : {"quantization_config", "text_config", "vision_config", "sparse_pattern"})
    if (c.has(key)) refuse(key);
  for (const char* const key : {"attention_dropout", "hidden_dropout", "router_jitter_noise", "embd_pdrop"})
    if (c.number(key, 0) != 0) refuse(key);
  for (const char* const key :
       {"use_bidirectional_attention", "is_encoder_decoder", "add_cross_attention", "use_qk_norm"})
    if (c.flag(key, false)) refuse(key);
  const bool routed = a.model_type == "mixtral" || a.model_type == "qwen3_moe";
  if (!routed && c.flag("output_router_logits", false)) refuse("output_router_logits");
  for (const char* const key :
       {"residual_multiplier", "embedding_multiplier", "logits_scaling", "attention_multiplier"})
    if (c.number(key, 1) != 1) refuse(key);
  const bool gemma = a.model_type == "gemma2" || a.model_type == "gemma3_text";
  for (const char* const key : {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"})
    if (!gemma && c.has(key)) refuse(key);
  if (a.model_type != "llama" && c.flag("mlp_bias", false)) refuse("mlp_bias");
  const bool biased = a.model_type != "mistral" && a.model_type != "mixtral" && a.model_type != "qwen2";
  if (!biased && c.flag("attention_bias", false)) refuse("attention_bias");
}

}  // namespace detail

/// Throws a sentence that names the file and what in it is unknown, missing or wrong.
inline architecture read_architecture(const config_reader& c) {
  architecture a;
  a.model_type = c.text("model_type");
  const std::string& family = a.model_type;
  const bool gemma = family.starts_with("gemma");
  bool known = false;
  for (const char* const name :
       {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "mixtral", "qwen3_moe"})
    known = known || family == name;
  if (!known)
    c.fail("has the model_type " + printable(family) +
           ", which this program does not know: it knows llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3_text, "
           "mixtral and qwen3_moe");
  detail::refuse_unknown(c, a);
  a.vocab = c.size("vocab_size"), a.hidden = c.size("hidden_size"), a.intermediate = c.size("intermediate_size");
  a.layers = c.size("num_hidden_layers"), a.heads = c.size("num_attention_heads");
  if (a.layers > 4096) c.fail("has more than 4096 layers");
  if (family != "llama" && !c.contains("num_key_value_heads")) (void)c.at("num_key_value_heads");
  a.kv_heads = c.size("num_key_value_heads", a.heads);
  if (a.heads % a.kv_heads != 0) c.fail("has num_attention_heads that are no multiple of num_key_value_heads");
  const std::size_t usual = family == "qwen3" && !c.contains("head_dim") ? 128
                            : gemma && !c.contains("head_dim")           ? 256
                                                                         : a.hidden / a.heads;
  a.head_dim = c.size("head_dim", usual);
  if (a.head_dim == 0 || a.head_dim % 2 != 0) c.fail("has a head_dim that is odd or 0");
  a.positions = c.size("max_position_embeddings", 2048);
  a.norm_eps = c.number("rms_norm_eps", family == "mixtral" ? 1e-5 : 1e-6);
  if (!(a.norm_eps >= 0)) c.fail("has a negative rms_norm_eps");
  a.tied = c.flag("tie_word_embeddings", gemma);
  a.norm_offset = gemma ? 1 : 0, a.gemma_norms = gemma;
  a.head_norms = family == "qwen3" || family == "qwen3_moe" || family == "gemma3_text";
  a.post_norms = family == "gemma2" || family == "gemma3_text";
  a.out_bias = c.flag("attention_bias", false);
  a.qkv_bias = a.out_bias || family == "qwen2", a.mlp_bias = c.flag("mlp_bias", false);
  a.act = detail::read_activation(c, a);
  if (gemma) a.embedding_scale = std::sqrt(static_cast<double>(a.hidden));
  if (a.post_norms) {
    const double scalar = c.number("query_pre_attn_scalar", 256);
    if (!(scalar > 0)) c.fail("has a query_pre_attn_scalar that is not above 0");
    a.attention_scale = 1 / std::sqrt(scalar);
    const bool gemma2 = family == "gemma2";
    a.attention_softcap = c.number("attn_logit_softcapping", gemma2 && !c.contains("attn_logit_softcapping") ? 50 : 0);
    a.logit_softcap = c.number("final_logit_softcapping", gemma2 && !c.contains("final_logit_softcapping") ? 30 : 0);
    if (!(a.attention_softcap >= 0 && a.logit_softcap >= 0)) c.fail("has a negative soft cap");
  }
  if (c.has("pad_token_id") && c.at("pad_token_id").is_number_integer())
    a.padding_id = static_cast<std::ptrdiff_t>(c.at("pad_token_id").get<std::int64_t>());
  a.of_layer.resize(a.layers);
  detail::read_rotary(c, a);
  detail::read_windows(c, a);
  detail::read_experts(c, a);
  if (a.experts != 0 && a.act != activation::silu) c.fail("has experts with another activation than silu");
  return a;
}

}  // namespace example
#endif
