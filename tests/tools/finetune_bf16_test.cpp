// The fine-tuned model in bf16, near what transformers computes in f64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../../tools/finetune/model.hpp"
#include "finetune_fixtures.hpp"

namespace {

using namespace example;
using tigon::bfloat16;

// Of two families that use nearly all operators. Routers are left out: where scores are rounded, another expert is
// chosen.
TEST(finetune_bf16, gradients_are_near) {
  for (const char* const name : {"llama_biases", "gemma3"}) {
    SCOPED_TRACE(name);
    const finetune_case of(name);
    const architecture a = read_architecture(config_reader::of_folder(of.folder));
    const weight_layout layout(a);
    const std::vector<float> weights = of.weights(a, layout);
    std::vector<bfloat16> rounded;
    for (const float w : weights) rounded.emplace_back(w);
    tigon::workspace workspace;
    tigon::context ctx(tigon::serial(), workspace);
    const lora_layout none;
    causal_model<bfloat16> model(a, layout, none, {of.ids.size(), false}, ctx);
    std::vector<float> gradients(layout.total, 7.0f);
    const double count = of.counted_targets();
    const double loss =
        model.step({rounded, weights}, {gradients, {}, tigon::gradient::overwrite}, {of.ids, of.targets, of.begins});
    EXPECT_NEAR(loss / count, of.loss, 1e-2 * of.loss);
    for (const weight_tensor& t : layout.tensors)
      for (const auto& [key, values] : of.sums(t, weight_layout::of(std::span<const float>(gradients), t), 1 / count)) {
        const std::vector<float> exact = of.gradient(key);
        double square = 0, norm = 0;
        for (std::size_t i = 0; i < exact.size(); ++i) {
          square += std::pow(static_cast<double>(values[i]) - static_cast<double>(exact[i]), 2);
          norm += std::pow(static_cast<double>(exact[i]), 2);
        }
        EXPECT_LT(std::sqrt(square / norm), 6e-2) << key;
      }
  }
}

}  // namespace
