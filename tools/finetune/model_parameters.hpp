// The parameters and gradients of a call of the model.
#ifndef EXAMPLE_FINETUNE_MODEL_PARAMETERS_HPP
#define EXAMPLE_FINETUNE_MODEL_PARAMETERS_HPP

#include <tigon/core/views.hpp>

#include <cstddef>
#include <span>
#include <vector>

#include "../../support/products.hpp"
#include "config.hpp"
#include "model_lora.hpp"
#include "weights.hpp"

namespace example {

/// The parameters as the model reads them: matrices in T, norms in f32, and the adapters in T, if there are any. Norms
/// lie in `master` where they lie among all weights, or one behind another.
template <class T>
struct model_weights {
  std::span<const T> matrices;
  std::span<const float> master;
  std::span<const T> adapters = {};
  bool norms_alone = false;
};

/// Where gradients go. Without `weights` those are frozen, and nothing is computed for them.
struct model_gradients {
  std::span<float> weights, adapters;
  tigon::gradient mode = tigon::gradient::overwrite;
};

/// Where the layout has them.
template <tigon::element T>
class model_parameters {
 protected:
  model_parameters(const architecture& a, const weight_layout& layout, const lora_layout& lora)
      : a_(a), layout_(layout), lora_(lora) {}

  matrix<const T> matrix_at(std::size_t offset, std::size_t rows, std::size_t cols) const {
    return {weights_.matrices.data() + offset, rows, cols};
  }
  matrix<float> gradient_at(std::size_t offset, std::size_t rows, std::size_t cols) const {
    return to_.weights.empty() ? matrix<float>{} : matrix<float>{to_.weights.data() + offset, rows, cols};
  }
  matrix<const T> matrix_of(const projection& p) const { return matrix_at(p.offset, p.rows, p.cols); }
  matrix<float> gradient_of(const projection& p) const { return gradient_at(p.offset, p.rows, p.cols); }
  std::span<const float> norm(std::size_t offset) const { return master(offset).first(a_.hidden); }
  std::span<const float> master(std::size_t offset) const {
    return weights_.master.subspan(weights_.norms_alone ? layout_.norm_at(offset) : offset);
  }
  std::span<float> dnorm(std::size_t offset) const {
    return to_.weights.empty() ? std::span<float>() : to_.weights.subspan(offset, a_.hidden);
  }
  std::span<const float> head_norm(std::size_t offset) const { return master(offset).first(a_.head_dim); }
  std::span<float> dhead_norm(std::size_t offset) const {
    return to_.weights.empty() ? std::span<float>() : to_.weights.subspan(offset, a_.head_dim);
  }

  matrix<const T> a_of(const lora_adapter& one) const {
    return {weights_.adapters.data() + one.a, lora_.options.rank, one.in};
  }
  matrix<const T> b_of(const lora_adapter& one) const {
    return {weights_.adapters.data() + one.b, one.out, lora_.options.rank};
  }
  matrix<float> adapter_gradient(std::size_t offset, std::size_t rows, std::size_t cols) const {
    return {to_.adapters.data() + offset, rows, cols};
  }
  const std::vector<lora_adapter>* adapters(std::size_t l, std::vector<lora_adapter> lora_layout::layer::*of) const {
    return lora_.empty() ? nullptr : &(lora_.layers[l].*of);
  }

  const architecture& a_;
  const weight_layout& layout_;
  const lora_layout& lora_;
  model_weights<T> weights_;
  model_gradients to_;
};

}  // namespace example
#endif
