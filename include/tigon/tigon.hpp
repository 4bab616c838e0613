// Everything: all operators, losses and the product, on the default backend. A program that counts its compile time
// includes the headers of the operators that it calls instead.
#ifndef TIGON_TIGON_HPP
#define TIGON_TIGON_HPP

#include <tigon/comm/threads.hpp>
#include <tigon/gemm/gemm.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/cross_entropy_divergence.hpp>
#include <tigon/losses/fused_linear_cosine_distillation.hpp>
#include <tigon/losses/fused_linear_cpo.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/losses/fused_linear_distillation.hpp>
#include <tigon/losses/fused_linear_dpo.hpp>
#include <tigon/losses/fused_linear_grpo.hpp>
#include <tigon/losses/fused_linear_jsd.hpp>
#include <tigon/losses/fused_linear_jsd_distillation.hpp>
#include <tigon/losses/fused_linear_kl_div.hpp>
#include <tigon/losses/fused_linear_kto.hpp>
#include <tigon/losses/fused_linear_orpo.hpp>
#include <tigon/losses/fused_linear_preference.hpp>
#include <tigon/losses/fused_linear_scaled_cross_entropy.hpp>
#include <tigon/losses/fused_linear_simpo.hpp>
#include <tigon/losses/fused_linear_unpaired_preference.hpp>
#include <tigon/losses/grpo_loss.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/kl_div.hpp>
#include <tigon/losses/selective_log_softmax.hpp>
#include <tigon/losses/selective_logprob.hpp>
#include <tigon/losses/tvd.hpp>
#include <tigon/losses/vocab_parallel_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp>
#include <tigon/ops/adamw.hpp>
#include <tigon/ops/attention.hpp>
#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/expert_parallel_moe.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/llama4_rope.hpp>
#include <tigon/ops/matmul_int8_int2.hpp>
#include <tigon/ops/mhc.hpp>
#include <tigon/ops/mhc_coeffs.hpp>
#include <tigon/ops/mhc_post_res.hpp>
#include <tigon/ops/mhc_pre.hpp>
#include <tigon/ops/mlp.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/moe.hpp>
#include <tigon/ops/moe_router.hpp>
#include <tigon/ops/moe_routing.hpp>
#include <tigon/ops/multi_token_attention.hpp>
#include <tigon/ops/neighborhood_attention.hpp>
#include <tigon/ops/neighborhood_attention_layer.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/rotary_tables.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/sparsemax.hpp>
#include <tigon/ops/swiglu.hpp>
#include <tigon/ops/swiglu_fused.hpp>
#include <tigon/ops/tiled.hpp>
#include <tigon/ops/tiled_mlp.hpp>

namespace tigon {

/// Every operator there is, for audit and coverage.
using all_ops =
    op_list<op::gemm, op::matmul_int8_int2, op::embedding, op::rms_norm, op::fused_add_rms_norm, op::modulated_rms_norm,
            op::layer_norm, op::group_norm, op::poly_norm, op::dyt, op::swiglu, op::swiglu_fused, op::geglu,
            op::relu_squared, op::mlp, op::tiled_mlp, op::moe_router, op::moe_routing, op::moe_gather, op::moe_scatter,
            op::moe, op::expert_parallel_moe, op::rope, op::llama4_rope, op::qwen2vl_mrope, op::qk_norm_rope,
            op::softmax, op::sparsemax, op::attention, op::multi_token_attention, op::neighborhood_attention,
            op::neighborhood_attention_layer, op::attn_res, op::mhc_coeffs, op::mhc_pre, op::mhc_post_res,
            op::cross_entropy, op::cross_entropy_tvd, op::cross_entropy_jsd, op::fused_linear_cross_entropy,
            op::scaled_cross_entropy, op::fused_linear_scaled_cross_entropy, op::vocab_parallel_cross_entropy,
            op::vocab_parallel_fused_linear_cross_entropy, op::vocab_parallel_fused_linear_scaled_cross_entropy,
            op::jsd, op::kl_div, op::tvd, op::selective_log_softmax, op::selective_logprob, op::grpo_loss,
            op::fused_linear_grpo, op::fused_linear_preference, op::fused_linear_dpo, op::fused_linear_orpo,
            op::fused_linear_cpo, op::fused_linear_simpo, op::fused_linear_unpaired_preference, op::fused_linear_kto,
            op::distillation, op::fused_linear_distillation, op::fused_linear_jsd, op::fused_linear_jsd_distillation,
            op::fused_linear_cosine_distillation, op::fused_linear_kl_div, op::adamw>;

}  // namespace tigon

#endif  // TIGON_TIGON_HPP
