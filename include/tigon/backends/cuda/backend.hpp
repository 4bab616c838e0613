// Backend cuda: a GPU of NVIDIA. Row programs run on groups of its threads (backends/cuda/rows.hpp).
#ifndef TIGON_BACKENDS_CUDA_BACKEND_HPP
#define TIGON_BACKENDS_CUDA_BACKEND_HPP

#include <tigon/backends/cuda/device_code.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backend/choices.hpp>
#include <tigon/backend/registry.hpp>
#include <tigon/backends/cuda/rows.hpp>
#include <tigon/backends/generic/backend.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {
struct divergence_rows;
template <class A>
struct scaled_number;
}  // namespace TIGON_ABI
}  // namespace gpu

namespace backends {
inline namespace TIGON_ABI {

/// Public functions take pointers of the device, and return when their work is in the context's queue (docs/cuda.md).
struct cuda : generic {
  using self = cuda;
  using parent = generic;
  static constexpr backend_info info{"cuda", {gpu::of_cuda}, {gpu::of_cuda}};
  using engine = simd::cuda;
  using rows = gpu::rows_on_groups<cuda>;
  static constexpr bool host_memory = false;
  static constexpr chunk_tuning chunk{.logits_bytes = std::size_t{512} << 20, .row_multiple = 128};
  using divergence_rows = gpu::divergence_rows;
  using call_of_ranks = gpu::held_reports;
  template <class A>
  using number = gpu::scaled_number<A>;
  using overrides =
      op_list<op::adamw, op::attention, op::attn_res, op::cross_entropy, op::cross_entropy_jsd, op::cross_entropy_tvd,
              op::dyt, op::embedding, op::fused_linear_cosine_distillation, op::fused_linear_cpo,
              op::fused_linear_cross_entropy, op::fused_linear_distillation, op::fused_linear_dpo,
              op::fused_linear_grpo, op::fused_linear_jsd, op::fused_linear_jsd_distillation, op::fused_linear_kl_div,
              op::fused_linear_kto, op::fused_linear_orpo, op::fused_linear_preference,
              op::fused_linear_scaled_cross_entropy, op::fused_linear_simpo, op::fused_linear_unpaired_preference,
              op::gemm, op::group_norm, op::grpo_loss, op::jsd, op::kl_div, op::llama4_rope, op::mhc_coeffs,
              op::mhc_post_res, op::mhc_pre, op::mlp, op::modulated_rms_norm, op::poly_norm, op::qk_norm_rope,
              op::qwen2vl_mrope, op::rms_norm, op::rope, op::selective_log_softmax, op::selective_logprob, op::softmax,
              op::sparsemax, op::tvd, op::vocab_parallel_cross_entropy, op::vocab_parallel_fused_linear_cross_entropy,
              op::vocab_parallel_fused_linear_scaled_cross_entropy>;
  /// Operators that are made of row programs and products alone.
  using shared = op_list<op::fused_add_rms_norm, op::geglu, op::layer_norm, op::relu_squared, op::swiglu,
                         op::swiglu_fused, op::tiled_mlp>;
  /// CUDA's default stream, with a growing workspace of the calling thread's own.
  static context& default_context() {
    thread_local workspace scratch(gpu::memory(nullptr));
    thread_local context instance(serial(), scratch, gpu::queue(nullptr));
    return instance;
  }
};

}  // namespace TIGON_ABI
}  // namespace backends
}  // namespace tigon

// Everything it overrides:
#include <tigon/backends/cuda/adamw.hpp>
#include <tigon/backends/cuda/attn_res.hpp>
#include <tigon/backends/cuda/cross_entropy.hpp>
#include <tigon/backends/cuda/divergences.hpp>
#include <tigon/backends/cuda/dyt.hpp>
#include <tigon/backends/cuda/embedding.hpp>
#include <tigon/backends/cuda/group_norm.hpp>
#include <tigon/backends/cuda/grpo_loss.hpp>
#include <tigon/backends/cuda/hyper_connections.hpp>
#include <tigon/backends/cuda/norms.hpp>
#include <tigon/backends/cuda/qk_norm_rope.hpp>
#include <tigon/backends/cuda/rotary.hpp>
#include <tigon/backends/cuda/selective_log_softmax.hpp>
#include <tigon/backends/cuda/softmax.hpp>
#include <tigon/backends/cuda/sparsemax.hpp>
#include <tigon/backends/cuda/vocab_parallel_cross_entropy.hpp>
#if __has_include(<Eigen/Core>)  // what products need on every backend (gemm/kernel.hpp)
#include <tigon/backends/cuda/cross_entropy_divergence.hpp>
#include <tigon/backends/cuda/distillation.hpp>
#include <tigon/backends/cuda/fused_linear_cross_entropy.hpp>
#include <tigon/backends/cuda/fused_linear_kl_div.hpp>
#include <tigon/backends/cuda/mhc_coeffs.hpp>
#include <tigon/backends/cuda/mlp.hpp>
#include <tigon/backends/cuda/scaled_cross_entropy.hpp>
#include <tigon/backends/cuda/sequences.hpp>
#include <tigon/backends/cuda/vocab_parallel_fused_linear_cross_entropy.hpp>
#include <tigon/backends/cuda/vocab_parallel_fused_linear_scaled_cross_entropy.hpp>
#endif

#endif  // TIGON_BACKENDS_CUDA_BACKEND_HPP
