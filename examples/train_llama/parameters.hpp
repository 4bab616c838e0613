#ifndef EXAMPLE_TRAIN_LLAMA_PARAMETERS_HPP
#define EXAMPLE_TRAIN_LLAMA_PARAMETERS_HPP

#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "optimizer.hpp"
#include "rng.hpp"

namespace example {

/// What makes a Llama a Llama of some size.
struct model_config {
  std::size_t vocab, layers, hidden, intermediate, heads, kv_heads;
  float norm_eps = 1e-5f;
  float rope_theta = 10000.0f;
  std::size_t experts = 0;  ///< MLPs of a layer, of which a token uses top_k; 0: one MLP for all tokens
  std::size_t top_k = 0;
  float balance = 0;  ///< weight of the routers' balance loss
  bool tied = false;  ///< the head is the embedding

  std::size_t head_dim() const { return hidden / heads; }
  std::size_t kv_hidden() const { return kv_heads * head_dim(); }
  std::size_t qkv() const { return hidden + 2 * kv_hidden(); }
  std::size_t mlps() const { return experts != 0 ? experts : 1; }
  std::size_t mlps_of_token() const { return experts != 0 ? top_k : 1; }
};

/// A matrix [rows, cols] in the flat array of parameters; a vector has rows = 1.
struct parameter_tensor {
  std::string name;
  std::size_t offset, rows, cols;

  std::size_t size() const { return rows * cols; }
};

/// All parameters in one flat array, so that the optimizer, the checkpoint and the conversion to bf16 see a
/// single stretch. The tensors of layers come first, in the order of layers. Matrices are [out, in]; projections of one
/// input lie under one another: q, k and v in `qkv`, gate and up in `gate_up`. The experts of a layer lie under one
/// another in `gate_up` and in `down`.
struct parameter_layout {
  struct layer {
    std::size_t attention_norm, qkv, attention_out, mlp_norm, router, gate_up, down;  ///< indices into tensors
  };
  std::vector<parameter_tensor> tensors;
  std::vector<layer> layers;
  std::size_t embedding = 0, final_norm = 0, head = 0;
  std::size_t total = 0;

  explicit parameter_layout(const model_config& c) {
    embedding = add("embedding", c.vocab, c.hidden);
    for (std::size_t l = 0; l < c.layers; ++l) {
      const std::string prefix = "layers." + std::to_string(l) + ".";
      layer out{};
      out.attention_norm = add(prefix + "attention_norm", 1, c.hidden);
      out.qkv = add(prefix + "qkv", c.qkv(), c.hidden);
      out.attention_out = add(prefix + "attention_out", c.hidden, c.hidden);
      out.mlp_norm = add(prefix + "mlp_norm", 1, c.hidden);
      if (c.experts != 0) out.router = add(prefix + "router", c.experts, c.hidden);
      out.gate_up = add(prefix + "gate_up", c.mlps() * 2 * c.intermediate, c.hidden);
      out.down = add(prefix + "down", c.mlps() * c.hidden, c.intermediate);
      layers.push_back(out);
    }
    final_norm = add("final_norm", 1, c.hidden);
    head = c.tied ? embedding : add("head", c.vocab, c.hidden);
    for (std::size_t i = layers.front().attention_norm; i < final_norm; ++i) place(tensors[i]);
    place(tensors[embedding]), place(tensors[final_norm]);
    if (!tied()) place(tensors[head]);
  }

  bool tied() const { return head == embedding; }

  template <class T>
  std::span<T> of(std::span<T> flat, std::size_t tensor) const {
    return flat.subspan(tensors[tensor].offset, tensors[tensor].size());
  }

  /// Matrices decay, norms do not.
  std::vector<parameter_group> groups() const {
    std::vector<parameter_group> out;
    for (const auto& t : tensors) out.push_back({t.offset, t.offset + t.size(), t.rows == 1 ? 0.0 : 1.0});
    return out;
  }

 private:
  std::size_t add(std::string name, std::size_t rows, std::size_t cols) {
    tensors.push_back({std::move(name), 0, rows, cols});
    return tensors.size() - 1;
  }
  void place(parameter_tensor& t) {
    t.offset = total;
    // Each tensor begins on a cache line, in f32 and in bf16.
    total += (t.size() + 31) / 32 * 32;
  }
};

/// The parameters as a model reads them: matrices in T, norms in S.
template <class T, class S = float>
struct weight_views {
  std::span<const T> matrices;
  std::span<const S> master;
};

/// Norms are 1, matrices normal with deviation 0.02; those that write into the residual stream are smaller by
/// the root of the number of their summands (as in GPT-2), so that its variance does not grow with depth.
inline std::vector<float> initial_weights(const parameter_layout& layout, std::uint64_t seed) {
  std::vector<float> flat(layout.total);
  std::vector<double> deviation(layout.tensors.size(), 0.02);
  for (const auto& layer : layout.layers)
    for (const std::size_t tensor : {layer.attention_out, layer.down})
      deviation[tensor] /= std::sqrt(2.0 * static_cast<double>(layout.layers.size()));
  rng draw(seed);
  for (std::size_t i = 0; i < layout.tensors.size(); ++i)
    for (float& w : layout.of(std::span(flat), i))
      w = layout.tensors[i].rows == 1 ? 1.0f : static_cast<float>(deviation[i] * draw.normal());
  return flat;
}

}  // namespace example
#endif
