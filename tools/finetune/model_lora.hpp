// Low-rank adapters beside frozen projections.
#ifndef EXAMPLE_FINETUNE_MODEL_LORA_HPP
#define EXAMPLE_FINETUNE_MODEL_LORA_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "adapters.hpp"
#include "weights.hpp"

namespace example {

/// y = W x + (alpha / rank) B A x (Hu et al., "LoRA", 2021), of every projection whose name ends in one of `targets`.
struct lora_options {
  std::size_t rank = 0;  ///< 0: no adapters, all weights are trained
  double alpha = 16;
  std::vector<std::string> targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};

  double scale() const { return alpha / static_cast<double>(rank); }
};

/// A [rank, in] and B [out, rank] beside the rows [first, first + out) of a projection.
struct lora_adapter {
  std::size_t a, b;  ///< offsets
  std::size_t in, out, first;
};

/// All adapters in one flat array.
struct lora_layout {
  struct layer {
    std::vector<lora_adapter> qkv, out, gate_up, down;
  };
  lora_options options;
  std::vector<weight_tensor> tensors;  ///< A, then B, of each module
  std::vector<std::string> modules;    ///< by the model's names
  std::vector<layer> layers;
  std::size_t total = 0;

  lora_layout() = default;
  lora_layout(const weight_layout& of, lora_options o) : options(std::move(o)) {
    if (options.rank == 0) return;
    std::vector<bool> used(options.targets.size());
    for (const weight_layout::layer& at : of.layers) {
      const bool dense = at.router == nowhere;
      layer out;
      add(at.qkv, out.qkv, used);
      add(at.out, out.out, used);
      if (dense) add(at.gate_up, out.gate_up, used);
      if (dense) add(at.down, out.down, used);
      layers.push_back(std::move(out));
    }
    for (std::size_t i = 0; i < used.size(); ++i)
      if (!used[i]) throw std::runtime_error("the model has no projection " + options.targets[i] + " for an adapter");
  }

  bool empty() const { return tensors.empty(); }

  /// A uniform in +-1 / sqrt(in), as PEFT begins; B is 0.
  std::vector<float> initial(std::uint64_t seed) const {
    std::vector<float> flat(total);
    std::mt19937_64 draw(seed);
    for (std::size_t i = 0; i < tensors.size(); i += 2) {
      const double bound = 1 / std::sqrt(static_cast<double>(tensors[i].cols));
      for (float& v : weight_layout::of(std::span(flat), tensors[i]))
        v = static_cast<float>(bound * (static_cast<double>(draw() >> 11) * 0x1p-52 - 1));
    }
    return flat;
  }

  /// A and B of one of the modules.
  finetune::low_rank low_rank_of(std::size_t module, std::span<const float> adapters) const {
    const weight_tensor &a = tensors[2 * module], &b = tensors[2 * module + 1];
    const auto values = [&](const weight_tensor& t) {
      const auto from = weight_layout::of(adapters, t);
      return std::vector<float>(from.begin(), from.end());
    };
    return {b.rows, a.cols, a.rows, values(a), values(b)};
  }

  /// weights += scale B A, for a folder without adapters.
  void merge(const weight_layout& of, std::span<const float> adapters, std::span<float> weights) const {
    std::size_t module = 0;
    const auto each = [&](const projection& p, const std::vector<lora_adapter>& list) {
      for (const lora_adapter& one : list)
        finetune::merge_adapter(weights.subspan(p.offset + one.first * p.cols, one.out * one.in),
                                low_rank_of(module++, adapters), options.scale());
    };
    for (std::size_t l = 0; l < layers.size(); ++l) {  // as the constructor adds them
      each(of.layers[l].qkv, layers[l].qkv), each(of.layers[l].out, layers[l].out);
      each(of.layers[l].gate_up, layers[l].gate_up), each(of.layers[l].down, layers[l].down);
    }
  }

 private:
  void add(const projection& p, std::vector<lora_adapter>& to, std::vector<bool>& used) {
    for (const projection::part& part : p.parts) {
      bool named = false;  // by several targets, perhaps
      for (std::size_t i = 0; i < used.size(); ++i)
        if (part.module.ends_with("." + options.targets[i])) named = used[i] = true;
      if (!named) continue;
      modules.push_back(part.module);
      const std::size_t a = put(part.module + ".lora_A", options.rank, p.cols);
      const std::size_t b = put(part.module + ".lora_B", part.rows, options.rank);
      to.push_back({a, b, p.cols, part.rows, part.first});
    }
  }
  std::size_t put(std::string name, std::size_t rows, std::size_t cols) {
    total = (total + 31) / 32 * 32;
    tensors.push_back({std::move(name), total, rows, cols, true});
    total += rows * cols;
    return tensors.back().offset;
  }
};

}  // namespace example
#endif
