// The table of one instruction set, or of one element type on CUDA. Nothing here names one.
#if !TIGON_TORCH_CUDA
#include <tigon/backend/default.hpp>
#endif

#include "groups.hpp"

extern "C" const tigon_torch::kernel_table* TIGON_MULTI_ARCH_ENTRY() {
  using namespace tigon_torch;
  static const kernel_table table = [] {
    kernel_table t{};
    [[maybe_unused]] const auto declare = [&t](family of, declared_operators some) {
      t.declared[static_cast<int>(of)] = some;
    };
#if TIGON_TORCH_CUDA  // what the sources of cuda.cmake have
    t.norms = norms(), t.gates = gates(), t.rotary = rotary();
#if !TIGON_TORCH_F16
    t.losses = losses(), t.preferences = preferences(), t.optimizers = optimizers();
#endif
    declare(family::activations, declared_activations());
    declare(family::norms, declared_norms());
    declare(family::divergences, declared_divergences());
    declare(family::heads, declared_heads());
    declare(family::depth, declared_depth());
    declare(family::cross_entropies, declared_cross_entropies());
    declare(family::linear_losses, declared_linear_losses());
    declare(family::layers, declared_layers());
    declare(family::ranks, declared_ranks());
#else
#if !TIGON_TORCH_PRODUCTS
    t.norms = norms(), t.gates = gates(), t.rotary = rotary();
#endif
#if !TIGON_TORCH_ROWS
    t.products = attention_group();
    declare(family::cross_entropies, declared_cross_entropies());
#endif
#if TIGON_TORCH_BF16
    t.integers = integer_group();
#endif
#if !TIGON_TORCH_PRODUCTS && !TIGON_TORCH_F16
    t.losses = losses(), t.optimizers = optimizers();
    declare(family::activations, declared_activations());
    declare(family::norms, declared_norms());
    declare(family::divergences, declared_divergences());
    declare(family::heads, declared_heads());
    declare(family::depth, declared_depth());
#endif
#if !TIGON_TORCH_ROWS && !TIGON_TORCH_F16
    t.preferences = preferences();
    declare(family::linear_losses, declared_linear_losses());
    declare(family::layers, declared_layers());
    declare(family::experts, declared_experts());
    declare(family::ranks, declared_ranks());
#endif
#endif
    return t;
  }();
  return &table;
}
