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

namespace detail {
template <class, class... Op>
using op_list_behind = op_list<Op...>;
}  // namespace detail

/// Every operator there is (backend/operators.hpp), for audit and coverage.
#define TIGON_NEXT_OP(name) , op::name
using all_ops = detail::op_list_behind<void TIGON_OPERATORS(TIGON_NEXT_OP)>;
#undef TIGON_NEXT_OP

}  // namespace tigon

#endif  // TIGON_TIGON_HPP
