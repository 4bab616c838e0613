// An NPU modelled on the CPU: vector cores with a unified buffer each, through which every tile of an adapted operator
// passes. Products and all other operators are the parent's.
#ifndef TIGON_BACKENDS_ASCEND_BACKEND_HPP
#define TIGON_BACKENDS_ASCEND_BACKEND_HPP

#include <tigon/backends/ascend/rules.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/backends/highway/backend.hpp>

namespace tigon::backends {
inline namespace TIGON_ABI {

/// A child that restates a number here changes tiles and grids, and no code. Reasons: docs/lab/ascend.md.
struct ascend : highway {
  using self = ascend;
  using parent = highway;
  static constexpr backend_info info{"ascend", {device::npu}, {device::npu}};
  using overrides = op_list<op::geglu, op::swiglu, op::rms_norm, op::fused_add_rms_norm, op::layer_norm, op::rope,
                            op::softmax, op::cross_entropy, op::fused_linear_cross_entropy, op::dyt, op::poly_norm,
                            op::qwen2vl_mrope, op::sparsemax, op::attn_res, op::embedding, op::group_norm,
                            op::llama4_rope, op::kl_div, op::jsd, op::tvd, op::distillation, op::grpo_loss,
                            op::moe_gather, op::moe_scatter, op::mhc_coeffs, op::mhc_pre, op::mhc_post_res>;
  static constexpr std::size_t tile_capacity_bits = 192 * 8192;  ///< one core's unified buffer
  static constexpr std::size_t tile_buffers = 1;                 ///< places of a tile; 2: double buffering
  static constexpr std::size_t vector_cores = 20;
  /// A partial row for every program.
  static constexpr row_tuning row{.partials = 2 * (TIGON_VECTOR_CORES != 0 ? TIGON_VECTOR_CORES : vector_cores)};
  using ledger = unified_buffer::abort_on_damage;  ///< records what every program did with its buffer
  using copier = unified_buffer::plain_copies;     ///< copies to the buffer and from it, with a hint of eviction
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

// Everything it overrides:
#include <tigon/backends/ascend/attn_res.hpp>
#include <tigon/backends/ascend/cross_entropy.hpp>
#include <tigon/backends/ascend/divergences.hpp>
#include <tigon/backends/ascend/dyt.hpp>
#include <tigon/backends/ascend/embedding.hpp>
#include <tigon/backends/ascend/fused_add_rms_norm.hpp>
#include <tigon/backends/ascend/gates.hpp>
#include <tigon/backends/ascend/group_norm.hpp>
#include <tigon/backends/ascend/grpo_loss.hpp>
#include <tigon/backends/ascend/hyper_connections.hpp>
#include <tigon/backends/ascend/layer_norm.hpp>
#include <tigon/backends/ascend/llama4_rope.hpp>
#include <tigon/backends/ascend/poly_norm.hpp>
#include <tigon/backends/ascend/qwen2vl_mrope.hpp>
#include <tigon/backends/ascend/rms_norm.hpp>
#include <tigon/backends/ascend/rope.hpp>
#include <tigon/backends/ascend/softmax.hpp>
#include <tigon/backends/ascend/sparsemax.hpp>
// Products of any backend need Eigen, and the headers of these operators say so; the others need none.
#if __has_include(<Eigen/Core>)
#include <tigon/backends/ascend/distillation.hpp>
#include <tigon/backends/ascend/fused_linear_cross_entropy.hpp>
#include <tigon/backends/ascend/mhc_coeffs.hpp>
#include <tigon/backends/ascend/moe.hpp>
#endif

#endif  // TIGON_BACKENDS_ASCEND_BACKEND_HPP
