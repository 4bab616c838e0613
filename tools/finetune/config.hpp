// A Hugging Face folder's config.json as the numbers that a model is built from.
#ifndef EXAMPLE_FINETUNE_CONFIG_HPP
#define EXAMPLE_FINETUNE_CONFIG_HPP

#include <cmath>
#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include "config_reader.hpp"
#include "rotary_config.hpp"

namespace example {

enum class activation { silu, gelu_tanh, gelu_erf };

/// What a decoder of one of the known families is made of. One model reads it: there is no class for a family.
struct architecture {
  std::string model_type;
  std::size_t vocab = 0, hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
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

namespace detail {

inline activation activation_of(const config_reader& c, const architecture& a, const char* key) {
  const std::string name = c.text(key);
  if (a.model_type == "gemma" && name == "gelu") return activation::gelu_tanh;  // what the first files mean
  if (name == "silu" || name == "swish") return activation::silu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return activation::gelu_tanh;
  if (name == "gelu") return activation::gelu_erf;
  c.fail("has the activation " + printable(name) + ", which this program does not know");
}

/// hidden_act, but hidden_activation in Gemma 2 and 3. Files of Gemma have both; they have to agree.
inline activation read_activation(const config_reader& c, const architecture& a) {
  const bool gemma = a.model_type.starts_with("gemma");
  const char* const key = a.post_norms ? "hidden_activation" : "hidden_act";
  const char* const other = a.post_norms ? "hidden_act" : "hidden_activation";
  const activation usual = gemma ? activation::gelu_tanh : activation::silu;
  const activation out = c.has(key) ? activation_of(c, a, key) : usual;
  if (c.has(other) && (!gemma || activation_of(c, a, other) != out))
    c.fail(std::string("has a ") + other + " beside its " + key + ", and they differ");
  return out;
}

/// The window of the layers that have one; 0: none.
inline std::size_t read_window(const config_reader& c, const architecture& a) {
  const std::string& family = a.model_type;
  if (family == "llama" || family == "gemma") {
    if (c.has("sliding_window")) c.fail("has a sliding_window, which " + family + " does not have");
    return 0;
  }
  if (family.starts_with("qwen") && !c.flag("use_sliding_window", false)) return 0;
  const bool usual = family != "mixtral" && !c.contains("sliding_window");
  return usual ? 4096 : c.has("sliding_window") ? c.size("sliding_window") : 0;
}

/// Whether each layer has the window: by the list of newer files, or by the rule of the family.
inline std::vector<bool> read_layer_types(const config_reader& c, const architecture& a, std::size_t window) {
  const std::string& family = a.model_type;
  std::vector<bool> out(a.layers, window != 0);
  if (family == "gemma2" || family == "gemma3_text") {
    const std::size_t pattern = family == "gemma2" ? 2 : c.size("sliding_window_pattern", 6);
    for (std::size_t i = 0; i < a.layers; ++i) out[i] = (i + 1) % pattern != 0;
  } else if (family == "qwen2" || family == "qwen3") {
    const std::size_t first = c.size_or_zero("max_window_layers", 28);
    for (std::size_t i = 0; i < a.layers; ++i) out[i] = window != 0 && i >= first;
  }
  if (!c.has("layer_types")) return out;
  const auto& list = c.at("layer_types");
  if (!list.is_array() || list.size() != a.layers) c.fail("has layer_types that are not a list of all layers");
  const bool varies = family != "llama" && family != "gemma" && family != "mixtral" && family != "qwen3_moe";
  for (std::size_t i = 0; i < a.layers; ++i) {
    const std::string type = list[i].is_string() ? list[i].get<std::string>() : list[i].dump();
    if (type != "sliding_attention" && type != "full_attention")
      c.fail("has the layer type " + printable(type) + ", which this program does not know");
    const bool slides = type == "sliding_attention";
    if (!varies && slides != out[i])
      c.fail("has the layer type " + type + ", and a model of the type " + family + " has " +
             (out[i] ? "its window" : "no window") + " in all layers");
    out[i] = slides;
  }
  return out;
}

inline void read_windows(const config_reader& c, architecture& a) {
  const std::size_t window = read_window(c, a);
  const std::vector<bool> slides = read_layer_types(c, a, window);
  for (std::size_t i = 0; i < a.layers; ++i) {
    if (slides[i] && window == 0) c.fail("has layers of the type sliding_attention, and no sliding_window");
    a.of_layer[i].window = slides[i] ? window : 0;
    a.of_layer[i].local = slides[i] && a.model_type == "gemma3_text";
  }
}

inline void read_experts(const config_reader& c, architecture& a) {
  const bool mixtral = a.model_type == "mixtral";
  if (!mixtral && a.model_type != "qwen3_moe") return;
  // Two names of one number.
  for (const char* const key : {"num_experts", "num_local_experts"}) {
    if (!c.has(key)) continue;
    if (a.experts != 0 && a.experts != c.size(key)) c.fail("has num_experts and num_local_experts, and they differ");
    a.experts = c.size(key);
  }
  if (a.experts == 0) c.fail("has no num_local_experts");
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

/// Fields of other mathematics, which are refused unless they say that there is none. Fields that transformers keeps
/// and does not compute with, for this model_type, are ignored (tests/tools/fixtures/finetune/make_fields.py).
inline void refuse_unknown(const config_reader& c, const architecture& a) {
  const auto refuse = [&](const std::string& key) {
    c.fail("has " + printable(key) + ", which this program does not know");
  };
  for (const char* const key : {"quantization_config", "compression_config", "text_config", "vision_config",
                                "sparse_pattern", "per_layer_config"})
    if (c.has(key)) refuse(key);
  for (const auto& [key, value] : c.values().items())
    for (const char* const part : {"dropout", "pdrop", "jitter"})
      if (key.find(part) != std::string::npos && c.number(key.c_str(), 0) != 0) refuse(key);
  for (const char* const key :
       {"use_bidirectional_attention", "is_encoder_decoder", "add_cross_attention", "use_qk_norm"})
    if (c.flag(key, false)) refuse(key);
  if (!c.flag("is_causal", true)) refuse("is_causal");
  const bool routed = a.model_type == "mixtral" || a.model_type == "qwen3_moe";
  if (!routed && c.flag("output_router_logits", false)) refuse("output_router_logits");
  for (const char* const key :
       {"residual_multiplier", "embedding_multiplier", "logits_scaling", "attention_multiplier"})
    if (c.number(key, 1) != 1) refuse(key);
  const bool gemma2 = a.model_type == "gemma2", gemma3 = a.model_type == "gemma3_text";
  if (!gemma2 && c.has("attn_logit_softcapping")) refuse("attn_logit_softcapping");
  for (const char* const key : {"final_logit_softcapping", "query_pre_attn_scalar"})
    if (!gemma2 && !gemma3 && c.has(key)) refuse(key);
  if (a.model_type != "llama" && c.flag("mlp_bias", false)) refuse("mlp_bias");
  const bool biased = a.model_type != "mistral" && a.model_type != "mixtral" && a.model_type != "qwen2";
  if (!biased && c.flag("attention_bias", false)) refuse("attention_bias");
}

/// Of some families it does not depend on the sizes; that of others is null, or is not there, where it follows from
/// them.
inline std::size_t read_head_dim(const config_reader& c, const architecture& a) {
  const std::string& family = a.model_type;
  const bool may_be_null = family == "llama" || family == "mistral" || family == "mixtral";
  if (may_be_null ? c.has("head_dim") : c.contains("head_dim")) return c.size("head_dim");
  if (family.starts_with("gemma")) return 256;
  if (family == "qwen3") return 128;
  if (a.hidden % a.heads != 0) c.fail("has no head_dim, and a hidden_size that is no multiple of num_attention_heads");
  return a.hidden / a.heads;
}

/// Those that a tokenizer may fall back on: a text has one begin, and may have several ends.
inline void expect_token_numbers(const config_reader& c) {
  for (const char* const key : {"bos_token_id", "eos_token_id"}) {
    if (!c.has(key)) continue;
    const auto& value = c.at(key);
    const bool several = value.is_array() && !value.empty() && std::string(key) == "eos_token_id";
    for (const auto& id : several ? value : nlohmann::json::array({value}))
      if (!id.is_number_integer()) c.fail(std::string("has a ") + key + " that is not the number of a token");
  }
}

inline void read_sizes(const config_reader& c, architecture& a) {
  const std::string& family = a.model_type;
  a.vocab = c.size("vocab_size"), a.hidden = c.size("hidden_size"), a.intermediate = c.size("intermediate_size");
  a.layers = c.size("num_hidden_layers"), a.heads = c.size("num_attention_heads");
  if (a.layers > 4096) c.fail("has more than 4096 layers");
  const bool of_qwen = (family == "qwen2" || family == "qwen3") && c.contains("num_key_value_heads");
  a.kv_heads = family == "llama" || of_qwen ? c.size("num_key_value_heads", a.heads) : c.size("num_key_value_heads");
  if (a.heads % a.kv_heads != 0) c.fail("has num_attention_heads that are no multiple of num_key_value_heads");
  a.head_dim = read_head_dim(c, a);
  if (a.head_dim % 2 != 0) c.fail("has a head_dim that is odd");
  a.padding_id = c.token_id("pad_token_id", a.vocab);
  expect_token_numbers(c);
}

inline void read_softcaps(const config_reader& c, architecture& a) {
  const double scalar = c.positive("query_pre_attn_scalar", 256);
  a.attention_scale = 1 / std::sqrt(scalar);
  const bool gemma2 = a.model_type == "gemma2";
  const auto usual = [&](const char* key, double cap) { return gemma2 && !c.contains(key) ? cap : 0; };
  a.attention_softcap = c.positive("attn_logit_softcapping", usual("attn_logit_softcapping", 50));
  a.logit_softcap = c.positive("final_logit_softcapping", usual("final_logit_softcapping", 30));
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
  detail::read_sizes(c, a);
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
  if (a.post_norms) detail::read_softcaps(c, a);
  a.of_layer.resize(a.layers);
  std::tie(a.rotary, a.local_rotary) = read_rotary(c, family, a.head_dim);
  detail::read_windows(c, a);
  detail::read_experts(c, a);
  if (a.experts != 0 && a.act != activation::silu) c.fail("has experts with another activation than silu");
  return a;
}

}  // namespace example
#endif
