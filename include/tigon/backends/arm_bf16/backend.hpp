// Child of highway for 64-bit ARM with the matrix instruction of bf16: products of bf16 operands, nothing else. The
// default where the flags have the instruction.
#ifndef TIGON_BACKENDS_ARM_BF16_BACKEND_HPP
#define TIGON_BACKENDS_ARM_BF16_BACKEND_HPP

#if !defined(__aarch64__) || !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#error "tigon: backend arm_bf16 needs a 64-bit ARM CPU with bf16; compile with -march=armv8.2-a+bf16 or armv8.6-a"
#include <the_error_above_ends_compilation>
#endif

#include <tigon/backends/highway/backend.hpp>

namespace tigon::backends {
inline namespace TIGON_ABI {

struct arm_bf16 : highway {
  using self = arm_bf16;
  using parent = highway;
  static constexpr backend_info info{"arm_bf16", {device::cpu}, {device::cpu}};
  using overrides = op_list<op::gemm>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

// Everything it overrides:
#include <tigon/backends/arm_bf16/gemm.hpp>

#endif  // TIGON_BACKENDS_ARM_BF16_BACKEND_HPP
