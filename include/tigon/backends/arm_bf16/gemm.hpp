// op::gemm of two bf16 matrices by the matrix instruction: two rows by two columns, four elements of depth each,
// without widening. Every other combination of types is the parent's.
#ifndef TIGON_BACKENDS_ARM_BF16_GEMM_HPP
#define TIGON_BACKENDS_ARM_BF16_GEMM_HPP

#include <arm_neon.h>

#include <tigon/backends/arm_bf16/backend.hpp>
#include <tigon/backends/highway/gemm.hpp>
#include <tigon/gemm/block_panels.hpp>

namespace tigon {

namespace packed {
inline namespace TIGON_ABI {

struct bfmmla {
  using operand = bfloat16x8_t;
  using sums = float32x4_t;
  static TIGON_INLINE sums multiply_add(operand a, operand b, sums c) { return vbfmmlaq_f32(c, a, b); }
};

}  // namespace TIGON_ABI
}  // namespace packed

template <>
struct kernel<op::gemm, backends::arm_bf16> : packed::gemm_by_blocks<packed::bfmmla, backends::highway> {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ARM_BF16_GEMM_HPP
