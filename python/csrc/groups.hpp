// The kernels of one instruction set, a group for every source file.
#ifndef TIGON_TORCH_GROUPS_HPP
#define TIGON_TORCH_GROUPS_HPP

#include "kernels.hpp"

namespace tigon_torch {

const norm_kernels* norms();
const gate_kernels* gates();
const rotary_kernels* rotary();
const attention_kernels* attention_group();
const integer_kernels* integer_group();
const loss_kernels* losses();
const preference_kernels* preferences();
const optimizer_kernels* optimizers();

declared_operators declared_activations();
declared_operators declared_norms();
declared_operators declared_divergences();
declared_operators declared_heads();
declared_operators declared_depth();
declared_operators declared_cross_entropies();
declared_operators declared_linear_losses();
declared_operators declared_layers();
declared_operators declared_experts();
declared_operators declared_ranks();

}  // namespace tigon_torch

#endif  // TIGON_TORCH_GROUPS_HPP
