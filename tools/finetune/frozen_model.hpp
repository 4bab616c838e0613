// Models that a run reads and does not train.
#ifndef EXAMPLE_FINETUNE_FROZEN_MODEL_HPP
#define EXAMPLE_FINETUNE_FROZEN_MODEL_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "../../support/profile.hpp"
#include "checkpoint.hpp"
#include "model.hpp"

namespace example {

/// A folder's weights in T alone; in 16 bits, norms in f32 beside them.
template <tigon::element T>
struct frozen_weights {
  std::vector<T> matrices;
  std::vector<float> norms;

  frozen_weights() = default;
  frozen_weights(const std::filesystem::path& folder, const architecture& a, const weight_layout& layout)
      : matrices(layout.total) {
    if constexpr (std::same_as<T, float>) {
      read_weights(folder, a, layout, matrices);
    } else {
      norms.resize(layout.norms_total);
      std::vector<float> values;
      const auto memory = [&](const weight_tensor& t) {
        values.resize(t.size());
        return std::span(values);
      };
      read_weights(folder, a, layout, memory, [&](const weight_tensor& t, std::span<const float> from) {
        for (std::size_t i = 0; i < from.size(); ++i) matrices[t.offset + i] = static_cast<T>(from[i]);
        if (const auto norm = layout.norm_places.find(t.offset); norm != layout.norm_places.end())
          std::ranges::copy(from, norms.begin() + static_cast<std::ptrdiff_t>(norm->second));
      });
    }
  }

  model_weights<T> view(std::span<const T> adapters = {}) const {
    if constexpr (std::same_as<T, float>)
      return {matrices, matrices, adapters};
    else
      return {matrices, norms, adapters, true};
  }
  std::uint64_t hash() const {
    return hash_of(std::as_bytes(std::span(norms)), hash_of(std::as_bytes(std::span(matrices))));
  }
};

/// A folder's model that only answers: a teacher, or a reference.
template <tigon::element T>
class frozen_model {
 public:
  frozen_model(const std::filesystem::path& folder, std::size_t most_tokens, tigon::context& ctx,
               profile* timed = nullptr)
      : a_(architecture_of_folder(folder)),
        layout_(a_),
        weights_(folder, a_, layout_),
        model_(a_, layout_, none_, {most_tokens, true}, ctx, timed) {}

  const architecture& of() const { return a_; }
  typename causal_model<T>::head_layer answer(const packed_documents& documents) {
    return model_.answer(weights_.view(), documents);
  }
  std::uint64_t hash() const { return weights_.hash(); }
  std::size_t bytes() const { return model_.peak_bytes(); }

 private:
  architecture a_;
  weight_layout layout_;
  frozen_weights<T> weights_;
  lora_layout none_;
  causal_model<T> model_;
};

}  // namespace example
#endif
