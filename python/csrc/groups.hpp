// The kernels of one instruction set, a group for every source file.
#ifndef TIGON_TORCH_GROUPS_HPP
#define TIGON_TORCH_GROUPS_HPP

#include "kernels.hpp"

namespace tigon_torch {

const norm_kernels* norms();
const gate_kernels* gates();
const rotary_kernels* rotary();
const attention_kernels* attention_group();
const cross_entropy_kernels* cross_entropies();
const loss_kernels* losses();
const preference_kernels* preferences();
const moe_kernels* experts();
const optimizer_kernels* optimizers();

}  // namespace tigon_torch

#endif  // TIGON_TORCH_GROUPS_HPP
