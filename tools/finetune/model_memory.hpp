// What a call of the model takes, and the memory of its activations.
#ifndef EXAMPLE_FINETUNE_MODEL_MEMORY_HPP
#define EXAMPLE_FINETUNE_MODEL_MEMORY_HPP

#include <tigon/core/views.hpp>
#include <tigon/ops/moe.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../../support/memory.hpp"
#include "../../support/products.hpp"
#include "config.hpp"

namespace example {

/// Documents one behind another: token i of document d, begins[d] <= i < begins[d + 1], is asked for targets[i], the
/// id that follows it, or for nothing where that is -100; so a document has one token more than its ids. Documents do
/// not see one another.
struct packed_documents {
  std::span<const std::int32_t> ids, targets, begins;
};

struct model_options {
  std::size_t most_tokens = 0;  ///< of a call
  bool recompute = false;       ///< keep each layer's input alone and make the rest again in backward
};

/// Of the activations of a model, all in one arena.
template <tigon::element T>
class model_memory {
 public:
  /// Which experts the tokens chose, and with which weights.
  struct routing {
    matrix<float> logits;         ///< [tokens, experts]
    matrix<std::int32_t> chosen;  ///< [tokens, top_k]
    matrix<float> weights;        ///< [tokens, top_k]

    routing first(std::size_t rows) const {
      return {logits.rows_from(0, rows), chosen.rows_from(0, rows), weights.rows_from(0, rows)};
    }
    tigon::moe_choices<std::int32_t, float> choices() const { return {chosen, weights}; }
  };
  /// What a layer's backward reads.
  struct layer_saved {
    matrix<T> stream;  ///< [tokens, hidden], what the attention's norm reads
    matrix<T> qkv;     ///< q and k after the rotation, or before their norms
    matrix<T> attention;
    matrix<T> middle;             ///< [tokens, hidden], what the MLP's norm reads
    matrix<T> gate_up;            ///< of every choice with experts
    matrix<T> attended, mlp_out;  ///< what the post norms read
    float *rstd1, *rstd2, *post_rstd1, *post_rstd2;
    float* lse;  ///< [tokens * heads]
    routing routes;
  };

  model_memory(const architecture& a, model_options options, std::size_t rank) : a_(a), options_(options), rank_(rank) {
    lay_out();
    arena_.allocate();
    lay_out();
  }
  std::size_t bytes() const { return arena_.bytes(); }

  std::vector<layer_saved> saved;
  routing droutes;
  matrix<T> last, y, update, dy, dstream, dupdate, product, dattention, turned, low, dlow;
  matrix<float> wide;  ///< in 16 bits: the gradient of the embedding's rows
  struct {
    matrix<float> cos, sin;
  } tables[2];  ///< of full and of local attention
  float* last_rstd = nullptr;

 private:
  void lay_out() {
    const std::size_t tokens = options_.most_tokens;
    saved.resize(a_.layers);
    for (std::size_t l = 0; l < a_.layers; ++l) {
      layer_saved& s = saved[l];
      if (l == 0 || !options_.recompute)
        lay_out(s, tokens, l);
      else
        s = saved[0];
      s.stream = arena_.matrix<T>(tokens, a_.hidden);
    }
    for (matrix<T>* m : {&last, &y, &update, &dy, &dstream}) *m = arena_.matrix<T>(tokens, a_.hidden);
    if (a_.post_norms) dupdate = arena_.matrix<T>(tokens, a_.hidden);
    last_rstd = arena_.take<float>(tokens);
    product = arena_.matrix<T>(tokens, std::max(a_.intermediate, a_.qkv_width()));
    dattention = arena_.matrix<T>(tokens, a_.q_width());
    if (a_.head_norms) turned = arena_.matrix<T>(tokens, a_.q_width() + a_.kv_width());
    if (a_.experts != 0) droutes = make_routes(tokens);
    low = arena_.matrix<T>(tokens, rank_), dlow = arena_.matrix<T>(tokens, 3 * rank_);
    if (!std::same_as<T, float>) wide = arena_.matrix<float>(tokens, a_.hidden);
    for (auto& table : tables)
      for (matrix<float>* m : {&table.cos, &table.sin}) *m = arena_.matrix<float>(tokens, a_.head_dim / 2);
  }
  /// Where layers share their memory, of the widest.
  void lay_out(layer_saved& s, std::size_t tokens, std::size_t l) {
    bool sparse = a_.of_layer[l].sparse, dense = !sparse;
    if (options_.recompute)
      for (const auto& of : a_.of_layer) sparse = sparse || of.sparse, dense = dense || !of.sparse;
    s.qkv = arena_.matrix<T>(tokens, a_.qkv_width());
    s.attention = arena_.matrix<T>(tokens, a_.q_width());
    s.middle = arena_.matrix<T>(tokens, a_.hidden);
    s.gate_up = arena_.matrix<T>(
        tokens, std::max(dense ? 2 * a_.intermediate : 0, sparse ? 2 * a_.expert_intermediate * a_.top_k : 0));
    if (a_.post_norms)
      s.attended = arena_.matrix<T>(tokens, a_.hidden), s.mlp_out = arena_.matrix<T>(tokens, a_.hidden);
    for (float** rstd : {&s.rstd1, &s.rstd2, &s.post_rstd1, &s.post_rstd2}) *rstd = arena_.take<float>(tokens);
    s.lse = arena_.take<float>(tokens * a_.heads);
    if (sparse) s.routes = make_routes(tokens);
  }
  routing make_routes(std::size_t tokens) {
    return {arena_.matrix<float>(tokens, a_.experts), arena_.matrix<std::int32_t>(tokens, a_.top_k),
            arena_.matrix<float>(tokens, a_.top_k)};
  }

  const architecture& a_;
  model_options options_;
  std::size_t rank_;
  arena arena_;
};

}  // namespace example
#endif
