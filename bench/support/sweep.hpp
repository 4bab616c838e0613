// Shapes of a row of cases: one model at growing numbers of tokens, one number of tokens in seven models, or one number
// of a shape alone. The words of an op's dims say which of a shape's numbers follow a model:
//
//   tokens, rows                batch times sequence length
//   batch; seq_len, positions   its two factors
//   hidden, cols, channels      width of the model
//   intermediate                of its MLP; of one expert where `experts` is among the words
//   heads, kv_heads, head_dim, vocab, experts, top_k
//
// Any other word keeps the number of the default shape.
#ifndef TIGON_BENCH_SUPPORT_SWEEP_HPP
#define TIGON_BENCH_SUPPORT_SWEEP_HPP

#include "support/registry.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tigon_bench {

/// 0: the model has none.
struct model_shape {
  std::string_view name;
  std::size_t hidden, intermediate, vocab, heads, kv_heads, max_positions;
  std::size_t experts = 0, top_k = 0, expert_intermediate = 0;
};
inline constexpr std::size_t head_dim = 128;

/// Seven, then one that is known for its experts alone: a sweep over models takes the seven.
std::span<const model_shape> models();
inline constexpr std::size_t models_of_a_sweep = 7;
/// One of these, or `small`, for digests.
const model_shape& model_named(std::string_view name);

/// The shape of a case in that model. Throws `unsupported` where the model has no such number, or where no word of dims
/// counts tokens.
extents shape_in(const model_shape& model, std::string_view dims, const extents& usual, std::size_t batch,
                 std::size_t seq_len);

enum class sweep_kind { none, token_length, model_config };
sweep_kind sweep_named(std::string_view name);

struct sweep_settings {
  sweep_kind kind = sweep_kind::none;
  std::string model = {};     ///< of token_length; empty: llama_3_8b, or qwen3_moe_30b where dims have experts
  std::size_t tokens = 2048;  ///< of model_config, at most
  std::vector<std::size_t> lengths =
      {};  ///< of token_length; empty: powers of two from 1024 to what model and memory hold
  double usable_bytes = 0;
};

struct sweep_point {
  std::string x_value;
  extents shape;
  std::string reason;  ///< why there is no shape
};

struct sweep {
  std::string x_name, x_label;
  std::string setting, value;  ///< what holds for all points: ("model", "llama_3_8b") or ("tokens", "2048")
  std::vector<sweep_point> points;
};

/// Bytes that a case of that shape takes. What it throws ends no sweep: std::bad_alloc counts as too much, anything
/// else as nothing, so that the case itself says what is wrong.
using byte_counter = std::function<double(const extents&)>;

/// Memory is extrapolated from two small cases, because all that a case takes is a constant and a part for each token.
/// At least 1024 tokens are tried; what does not fit even so is refused when its memory is asked for.
sweep make_sweep(const sweep_settings& settings, std::string_view dims, const extents& usual,
                 const byte_counter& bytes_of);

/// One number of the shape `usual` at these values; without values at a quarter, half, twice and four times what it is,
/// and as it is. `axis` is a word of dims, or another for the same: tokens, rows; hidden, cols, channels; seq_len,
/// positions, sequence; vocab, vocabulary. Where dims have none, the sweep is one point with a reason.
sweep make_axis_sweep(std::string_view axis, const std::vector<std::size_t>& values, std::string_view dims,
                      const extents& usual);

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_SWEEP_HPP
