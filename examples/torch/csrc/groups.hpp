// The kernels of one instruction set, a group for every source file.
#ifndef TIGON_TORCH_GROUPS_HPP
#define TIGON_TORCH_GROUPS_HPP

#include "kernels.hpp"

namespace tigon_torch {

const norm_kernels* norms();
const gate_kernels* gates();
const rotary_kernels* rotary();

}  // namespace tigon_torch

#endif  // TIGON_TORCH_GROUPS_HPP
