// Optimizers.
#include "tensors.hpp"

namespace tigon_torch {
namespace {

/// Of one type and contiguous: the optimizer in Python sees to it.
vector part_of(const char* name, std::size_t i, const Tensor& t, const Tensor& like) {
  const char* op = "adamw";
  const std::string full = std::string(name) + "[" + std::to_string(i) + "]";
  expect_here(op, full.c_str(), t);
  expect_like(op, full.c_str(), t, "parameters of the list", like);
  if (!t.is_contiguous()) fail(op, full + " is not contiguous");
  return vector_of(t);
}

void adamw(std::vector<Tensor> w, std::vector<Tensor> g, std::vector<Tensor> m, std::vector<Tensor> v,
           double learning_rate, double beta1, double beta2, double eps, double weight_decay, int64_t step,
           bool stochastic_rounding, int64_t seed) {
  const char* op = "adamw";
  for (const auto& [name, list] : {std::pair<const char*, const std::vector<Tensor>&>("gradients", g),
                                   {"first moments", m},
                                   {"second moments", v}})
    if (list.size() != w.size())
      fail(op,
           "there are " + std::to_string(list.size()) + " " + name + " of " + std::to_string(w.size()) + " parameters");
  if (w.empty()) return;
  if (step < 1) fail(op, "step is " + std::to_string(step) + "; expected at least 1");
  std::vector<trained> list(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) {
    if (w[i].scalar_type() != w[0].scalar_type())
      fail(op, "parameters are of " + name_of(w[0].scalar_type()) + " and " + name_of(w[i].scalar_type()) +
                   "; expected one type in a call");
    list[i] = {part_of("parameters", i, w[i], w[i]), part_of("gradients", i, g[i], w[i]),
               part_of("first moments", i, m[i], w[i]), part_of("second moments", i, v[i], w[i])};
  }
  wide_table(op, list[0].w.of)
      .optimizers->adamw(call(w[0]), list.data(), list.size(),
                         {learning_rate, beta1, beta2, eps, weight_decay, static_cast<std::uint64_t>(step),
                          static_cast<std::uint64_t>(seed), stochastic_rounding});
}

}  // namespace
}  // namespace tigon_torch

#if !TIGON_TORCH_CUDA
STABLE_TORCH_LIBRARY_FRAGMENT(tigon, m) {
  m.def(
      "adamw(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] first_moments, Tensor(c!)[] second_moments,"
      " float learning_rate, float beta1, float beta2, float eps, float weight_decay, int step,"
      " bool stochastic_rounding, int seed) -> ()");
}
#endif
STABLE_TORCH_LIBRARY_IMPL(tigon, TIGON_TORCH_KEY, m) { TIGON_TORCH_IMPL(m, optimizers, adamw); }
