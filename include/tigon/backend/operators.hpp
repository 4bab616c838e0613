// The operators of the library, once: all_ops (tigon.hpp) and the choices of backends (backend/choices.hpp) are made of
// it.
#ifndef TIGON_BACKEND_OPERATORS_HPP
#define TIGON_BACKEND_OPERATORS_HPP

// clang-format off
#define TIGON_OPERATORS(x)                                                                                          \
  x(gemm) x(matmul_int8_int2) x(embedding) x(rms_norm) x(fused_add_rms_norm) x(modulated_rms_norm) x(layer_norm)    \
  x(group_norm) x(poly_norm) x(dyt) x(swiglu) x(swiglu_fused) x(geglu) x(relu_squared) x(mlp) x(tiled_mlp)          \
  x(moe_router) x(moe_routing) x(moe_gather) x(moe_scatter) x(moe) x(expert_parallel_moe) x(rope) x(llama4_rope)    \
  x(qwen2vl_mrope) x(qk_norm_rope) x(softmax) x(sparsemax) x(attention) x(multi_token_attention)                    \
  x(neighborhood_attention) x(neighborhood_attention_layer) x(attn_res) x(mhc_coeffs) x(mhc_pre) x(mhc_post_res)    \
  x(cross_entropy) x(cross_entropy_tvd) x(cross_entropy_jsd) x(fused_linear_cross_entropy) x(scaled_cross_entropy)  \
  x(fused_linear_scaled_cross_entropy) x(vocab_parallel_cross_entropy) x(vocab_parallel_fused_linear_cross_entropy) \
  x(vocab_parallel_fused_linear_scaled_cross_entropy) x(jsd) x(kl_div) x(tvd) x(selective_log_softmax)              \
  x(selective_logprob) x(grpo_loss) x(fused_linear_grpo) x(fused_linear_preference) x(fused_linear_dpo)             \
  x(fused_linear_orpo) x(fused_linear_cpo) x(fused_linear_simpo) x(fused_linear_unpaired_preference)                \
  x(fused_linear_kto) x(distillation) x(fused_linear_distillation) x(fused_linear_jsd)                              \
  x(fused_linear_jsd_distillation) x(fused_linear_cosine_distillation) x(fused_linear_kl_div) x(adamw)
// clang-format on

#endif  // TIGON_BACKEND_OPERATORS_HPP
