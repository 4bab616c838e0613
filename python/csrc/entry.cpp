// The table of one instruction set. Nothing here names one.
#include <tigon/backend/default.hpp>

#include "groups.hpp"

extern "C" const tigon_torch::kernel_table* TIGON_MULTI_ARCH_ENTRY() {
  using namespace tigon_torch;
  static const kernel_table table = [] {
    kernel_table t{};
#if !TIGON_TORCH_PRODUCTS
    t.norms = norms(), t.gates = gates(), t.rotary = rotary();
#endif
#if !TIGON_TORCH_ROWS
    t.products = attention_group(), t.cross_entropies = cross_entropies();
#endif
#if !TIGON_TORCH_PRODUCTS && !TIGON_TORCH_F16
    t.losses = losses(), t.optimizers = optimizers();
#endif
#if !TIGON_TORCH_ROWS && !TIGON_TORCH_F16
    t.preferences = preferences(), t.experts = experts();
#endif
    return t;
  }();
  return &table;
}
