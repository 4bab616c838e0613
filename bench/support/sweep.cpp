#include "support/sweep.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <new>
#include <stdexcept>

namespace tigon_bench {
namespace {

// Published configurations of the models.
constexpr std::array model_table{
    model_shape{"llama_2_7b", 4096, 11008, 32000, 32, 32, 4096},
    model_shape{"llama_3_8b", 4096, 14336, 128256, 32, 8, 8192},
    model_shape{"qwen2.5_7b", 3584, 18944, 152064, 28, 4, 32768},
    model_shape{"qwen2.5_14b", 5120, 13824, 152064, 40, 8, 32768},
    model_shape{"qwen2.5_72b", 8192, 29568, 152064, 64, 8, 32768},
    model_shape{"deepseek_v2_lite", 2048, 10944, 102400, 16, 16, 163840, 64, 6, 1408},
    model_shape{"deepseek_v3", 7168, 18432, 129280, 128, 128, 163840, 256, 8, 2048},
    model_shape{"qwen3_moe_30b", 2048, 0, 0, 0, 0, 8192, 128, 8, 768},
};
static_assert(model_table.size() == models_of_a_sweep + 1);

// Not a published one: small, and no width is a multiple of 64, so that every loop has a remainder.
constexpr model_shape small_model{"small", 608, 1112, 4099, 4, 2, 4096, 8, 2, 200};

constexpr std::size_t fewest_tokens = 1024, longest_sequence = 8192, most_batch = 32;

std::vector<std::string_view> words_of(std::string_view dims) {
  std::vector<std::string_view> words;
  constexpr std::string_view between = " x ";
  for (std::size_t begin = 0;;) {
    const std::size_t end = dims.find(between, begin);
    words.push_back(dims.substr(begin, end - begin));
    if (end == std::string_view::npos) return words;
    begin = end + between.size();
  }
}

bool has(const std::vector<std::string_view>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Of the default shape, within bounds.
std::size_t batch_of(const std::vector<std::string_view>& words, const extents& usual) {
  for (std::size_t k = 0; k < std::min(words.size(), usual.size()); ++k)
    if (words[k] == "batch") return std::clamp<std::size_t>(usual[k], 1, most_batch);
  return 1;
}

/// Tokens of `model` that fit into `usable` bytes.
double tokens_that_fit(const model_shape& model, std::string_view dims, const extents& usual, std::size_t batch,
                       double usable, const byte_counter& bytes_of) {
  constexpr std::size_t few = 64;
  try {
    const double small = bytes_of(shape_in(model, dims, usual, batch, few)),
                 twice = bytes_of(shape_in(model, dims, usual, batch, 2 * few));
    const double per_token = std::max(1.0, (twice - small) / static_cast<double>(few * batch));
    const double fixed = small - per_token * static_cast<double>(few * batch);
    return std::max(0.0, (usable - fixed) / per_token);
  } catch (const std::bad_alloc&) {
    return 0;
  } catch (const std::exception&) {
    return std::numeric_limits<double>::infinity();
  }
}

/// Power of two below, and within the bounds.
std::size_t power_of_two(double tokens, std::size_t least, std::size_t most) {
  return std::max(least, std::bit_floor(static_cast<std::size_t>(std::clamp(tokens, 1.0, static_cast<double>(most)))));
}

sweep_point point_in(const model_shape& model, std::string x_value, std::string_view dims, const extents& usual,
                     std::size_t batch, std::size_t seq_len) {
  try {
    return {std::move(x_value), shape_in(model, dims, usual, batch, seq_len), {}};
  } catch (const unsupported& e) {
    return {std::move(x_value), {}, e.what()};
  }
}

sweep over_lengths(const sweep_settings& s, std::string_view dims, const extents& usual, const byte_counter& bytes_of) {
  const std::vector<std::string_view> words = words_of(dims);
  const bool sequences = has(words, "seq_len") || has(words, "positions");
  const std::string name = !s.model.empty() ? s.model : has(words, "experts") ? "qwen3_moe_30b" : "llama_3_8b";
  const model_shape& model = model_named(name);
  const std::size_t batch = sequences ? batch_of(words, usual) : 1;
  std::vector<std::size_t> lengths = s.lengths;
  if (lengths.empty()) {
    const double fit = tokens_that_fit(model, dims, usual, batch, s.usable_bytes, bytes_of);
    const std::size_t longest = power_of_two(fit / static_cast<double>(batch), fewest_tokens, model.max_positions);
    for (std::size_t length = fewest_tokens; length <= longest; length *= 2) lengths.push_back(length);
  }
  sweep result{sequences ? "T" : "BT", sequences ? "sequence length" : "tokens", "model", name, {}};
  for (const std::size_t length : lengths)
    result.points.push_back(point_in(model, std::to_string(length), dims, usual, batch, length));
  return result;
}

sweep over_models(const sweep_settings& s, std::string_view dims, const extents& usual, const byte_counter& bytes_of) {
  const std::span<const model_shape> all = models().first(models_of_a_sweep);
  const std::size_t least = std::min(s.tokens, fewest_tokens);
  // As many tokens as fit in every model, of those that hold the fewest.
  double safe = static_cast<double>(s.tokens);
  for (const model_shape& model : all) {
    const double fit = tokens_that_fit(model, dims, usual, 1, s.usable_bytes, bytes_of);
    if (fit >= static_cast<double>(least)) safe = std::min(safe, fit);
  }
  const std::size_t seq_len = power_of_two(safe, std::bit_floor(least), longest_sequence);
  const std::size_t batch = std::max<std::size_t>(1, static_cast<std::size_t>(safe) / seq_len);
  sweep result{"model_config", "model", "tokens", std::to_string(batch * seq_len), {}};
  for (const model_shape& model : all)
    result.points.push_back(point_in(model, std::string(model.name), dims, usual, batch, seq_len));
  return result;
}

/// Words of dims that mean the same axis.
constexpr std::array<std::array<std::string_view, 3>, 4> synonyms{{{"tokens", "rows", ""},
                                                                   {"hidden", "cols", "channels"},
                                                                   {"seq_len", "positions", "sequence"},
                                                                   {"vocab", "vocabulary", ""}}};

bool same_axis(std::string_view a, std::string_view b) {
  const auto among = [](const auto& words, std::string_view w) {
    return std::find(words.begin(), words.end(), w) != words.end();
  };
  return a == b || std::any_of(synonyms.begin(), synonyms.end(),
                               [&](const auto& words) { return among(words, a) && among(words, b); });
}

}  // namespace

std::span<const model_shape> models() { return model_table; }

const model_shape& model_named(std::string_view name) {
  if (name == small_model.name) return small_model;
  for (const model_shape& m : model_table)
    if (m.name == name) return m;
  std::string known;
  for (const model_shape& m : model_table) known += (known.empty() ? "" : ", ") + std::string(m.name);
  throw std::invalid_argument("model is " + std::string(name) + "; expected one of " + known);
}

extents shape_in(const model_shape& model, std::string_view dims, const extents& usual, std::size_t batch,
                 std::size_t seq_len) {
  const std::vector<std::string_view> words = words_of(dims);
  if (words.size() != usual.size())
    throw unsupported("shape has " + std::to_string(usual.size()) + " numbers, and its words are " + std::string(dims));
  const bool mixture = has(words, "experts");
  bool counts_tokens = false;
  extents shape = usual;
  for (std::size_t k = 0; k < words.size(); ++k) {
    const std::string_view word = words[k];
    const auto from_model = [&](std::size_t number) {
      if (number == 0) throw unsupported("model " + std::string(model.name) + " has no " + std::string(word));
      return number;
    };
    const bool product = word == "tokens" || word == "rows", length = word == "seq_len" || word == "positions";
    counts_tokens = counts_tokens || product || length;
    if (product) shape[k] = batch * seq_len;
    if (word == "batch") shape[k] = batch;
    if (length) shape[k] = seq_len;
    if (word == "hidden" || word == "cols" || word == "channels") shape[k] = from_model(model.hidden);
    if (word == "intermediate") shape[k] = from_model(mixture ? model.expert_intermediate : model.intermediate);
    if (word == "vocab") shape[k] = from_model(model.vocab);
    if (word == "heads") shape[k] = from_model(model.heads);
    if (word == "kv_heads") shape[k] = from_model(model.kv_heads);
    if (word == "head_dim") shape[k] = head_dim;
    if (word == "experts") shape[k] = from_model(model.experts);
    if (word == "top_k") shape[k] = from_model(model.top_k);
  }
  if (!counts_tokens) throw unsupported("shape (" + std::string(dims) + ") has no number of tokens to sweep over");
  return shape;
}

sweep_kind sweep_named(std::string_view name) {
  if (name == "token_length") return sweep_kind::token_length;
  if (name == "model_config") return sweep_kind::model_config;
  throw std::invalid_argument("sweep is " + std::string(name) + "; expected token_length or model_config");
}

sweep make_sweep(const sweep_settings& settings, std::string_view dims, const extents& usual,
                 const byte_counter& bytes_of) {
  switch (settings.kind) {
    case sweep_kind::token_length: return over_lengths(settings, dims, usual, bytes_of);
    case sweep_kind::model_config: return over_models(settings, dims, usual, bytes_of);
    case sweep_kind::none: break;
  }
  throw std::invalid_argument("no sweep is requested");
}

sweep make_axis_sweep(std::string_view axis, const std::vector<std::size_t>& values, std::string_view dims,
                      const extents& usual) {
  const std::vector<std::string_view> words = words_of(dims);
  sweep result{std::string(axis), std::string(dims), "shape", {}, {}};
  const auto word = std::find_if(words.begin(), words.end(), [&](std::string_view w) { return same_axis(w, axis); });
  const auto k = static_cast<std::size_t>(word - words.begin());
  if (k >= usual.size()) {
    result.value = text_of(usual);
    result.points.push_back({"", {}, "shape (" + std::string(dims) + ") has no " + std::string(axis)});
    return result;
  }
  for (std::size_t n = 0; n < usual.size(); ++n)
    result.value += (n == 0 ? "" : "x") + (n == k ? "*" : std::to_string(usual[n]));
  std::vector<std::size_t> at = values;
  if (at.empty())
    for (const std::size_t quarters : {1, 2, 4, 8, 16})
      if (const std::size_t value = usual[k] * quarters / 4; value > 0 && !(!at.empty() && at.back() == value))
        at.push_back(value);
  for (const std::size_t value : at) {
    extents shape = usual;
    shape[k] = value;
    result.points.push_back({std::to_string(value), shape, {}});
  }
  return result;
}

}  // namespace tigon_bench
