// A choice for single operators: TIGON_BACKEND_OF_<op>, the name of a backend, as TIGON_BACKEND is one for all. The
// default backend is then a mix (backend/mix.hpp), so that calls stay as they are and symbols name the choice.
//
//   -DTIGON_BACKEND_OF_softmax=xsimd -DTIGON_BACKEND_OF_gemm=generic
//
// The names are those of the registry, whose headers select.hpp brings, or of TIGON_BACKEND_HEADER. What is set to
// nothing is not set. Every operator of all_ops (tigon.hpp) stands in both lists here; tests/backend/registry_test.cpp
// and .ci/greps compare them.
#ifndef TIGON_BACKEND_CHOICES_HPP
#define TIGON_BACKEND_CHOICES_HPP

#include <tigon/config.hpp>

#include <string_view>
#include <type_traits>

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

#if defined(TIGON_BACKEND_OF_gemm) || defined(TIGON_BACKEND_OF_matmul_int8_int2) || \
    defined(TIGON_BACKEND_OF_embedding) || defined(TIGON_BACKEND_OF_rms_norm) || \
    defined(TIGON_BACKEND_OF_fused_add_rms_norm) || defined(TIGON_BACKEND_OF_modulated_rms_norm) || \
    defined(TIGON_BACKEND_OF_layer_norm) || defined(TIGON_BACKEND_OF_group_norm) || \
    defined(TIGON_BACKEND_OF_poly_norm) || defined(TIGON_BACKEND_OF_dyt) || defined(TIGON_BACKEND_OF_swiglu) || \
    defined(TIGON_BACKEND_OF_swiglu_fused) || defined(TIGON_BACKEND_OF_geglu) || \
    defined(TIGON_BACKEND_OF_relu_squared) || defined(TIGON_BACKEND_OF_mlp) || \
    defined(TIGON_BACKEND_OF_tiled_mlp) || defined(TIGON_BACKEND_OF_moe_router) || \
    defined(TIGON_BACKEND_OF_moe_routing) || defined(TIGON_BACKEND_OF_moe_gather) || \
    defined(TIGON_BACKEND_OF_moe_scatter) || defined(TIGON_BACKEND_OF_moe) || \
    defined(TIGON_BACKEND_OF_expert_parallel_moe) || defined(TIGON_BACKEND_OF_rope) || \
    defined(TIGON_BACKEND_OF_llama4_rope) || defined(TIGON_BACKEND_OF_qwen2vl_mrope) || \
    defined(TIGON_BACKEND_OF_qk_norm_rope) || defined(TIGON_BACKEND_OF_softmax) || \
    defined(TIGON_BACKEND_OF_sparsemax) || defined(TIGON_BACKEND_OF_attention) || \
    defined(TIGON_BACKEND_OF_multi_token_attention) || defined(TIGON_BACKEND_OF_neighborhood_attention) || \
    defined(TIGON_BACKEND_OF_neighborhood_attention_layer) || defined(TIGON_BACKEND_OF_attn_res) || \
    defined(TIGON_BACKEND_OF_mhc_coeffs) || defined(TIGON_BACKEND_OF_mhc_pre) || \
    defined(TIGON_BACKEND_OF_mhc_post_res) || defined(TIGON_BACKEND_OF_cross_entropy) || \
    defined(TIGON_BACKEND_OF_cross_entropy_tvd) || defined(TIGON_BACKEND_OF_cross_entropy_jsd) || \
    defined(TIGON_BACKEND_OF_fused_linear_cross_entropy) || defined(TIGON_BACKEND_OF_scaled_cross_entropy) || \
    defined(TIGON_BACKEND_OF_fused_linear_scaled_cross_entropy) || \
    defined(TIGON_BACKEND_OF_vocab_parallel_cross_entropy) || \
    defined(TIGON_BACKEND_OF_vocab_parallel_fused_linear_cross_entropy) || \
    defined(TIGON_BACKEND_OF_vocab_parallel_fused_linear_scaled_cross_entropy) || defined(TIGON_BACKEND_OF_jsd) || \
    defined(TIGON_BACKEND_OF_kl_div) || defined(TIGON_BACKEND_OF_tvd) || \
    defined(TIGON_BACKEND_OF_selective_log_softmax) || defined(TIGON_BACKEND_OF_selective_logprob) || \
    defined(TIGON_BACKEND_OF_grpo_loss) || defined(TIGON_BACKEND_OF_fused_linear_grpo) || \
    defined(TIGON_BACKEND_OF_fused_linear_preference) || defined(TIGON_BACKEND_OF_fused_linear_dpo) || \
    defined(TIGON_BACKEND_OF_fused_linear_orpo) || defined(TIGON_BACKEND_OF_fused_linear_cpo) || \
    defined(TIGON_BACKEND_OF_fused_linear_simpo) || defined(TIGON_BACKEND_OF_fused_linear_unpaired_preference) || \
    defined(TIGON_BACKEND_OF_fused_linear_kto) || defined(TIGON_BACKEND_OF_distillation) || \
    defined(TIGON_BACKEND_OF_fused_linear_distillation) || defined(TIGON_BACKEND_OF_fused_linear_jsd) || \
    defined(TIGON_BACKEND_OF_fused_linear_jsd_distillation) || \
    defined(TIGON_BACKEND_OF_fused_linear_cosine_distillation) || defined(TIGON_BACKEND_OF_fused_linear_kl_div) || \
    defined(TIGON_BACKEND_OF_adamw)
#define TIGON_CHOICES 1
#else
#define TIGON_CHOICES 0
#endif
// clang-format on

#if TIGON_CHOICES

// The backends of the library that are chosen, as bits; of any other name there is no bit.
#define TIGON_BACKEND_BIT_generic 1
#define TIGON_BACKEND_BIT_eigen 2
#define TIGON_BACKEND_BIT_xsimd 4
#define TIGON_BACKEND_BIT_highway 8
#define TIGON_BACKEND_BIT_avx512_bf16 16
#define TIGON_BACKEND_BIT_amx 32
#define TIGON_BACKEND_BIT_onednn 64
#define TIGON_BACKEND_BIT_ascend 128
#define TIGON_BACKEND_BIT_arm_bf16 256
#define TIGON_BACKEND_BIT_(name) TIGON_BACKEND_BIT_##name
#define TIGON_BACKEND_BIT(name) TIGON_BACKEND_BIT_(name)
#define TIGON_OR_BIT_OF(op) | TIGON_BACKEND_BIT(TIGON_BACKEND_OF_##op)
#define TIGON_CHOSEN (0 TIGON_OPERATORS(TIGON_OR_BIT_OF))

// The name that is set for an operator; one that begins with TIGON_BACKEND_OF_ where none is.
#define TIGON_FIRST_OF_(first, ...) first
#define TIGON_FIRST_OF(...) TIGON_FIRST_OF_(__VA_ARGS__)
#define TIGON_NAME_OR_(none, ...) TIGON_FIRST_OF(__VA_ARGS__ __VA_OPT__(, ) none)
#define TIGON_NAME_OR(none, ...) TIGON_NAME_OR_(none, __VA_ARGS__)
#define TIGON_CHOICE_OF(op) TIGON_NAME_OR(TIGON_BACKEND_OF_nothing, TIGON_BACKEND_OF_##op)

namespace tigon {

namespace op {
#define TIGON_DECLARE_OP(op) struct op;
TIGON_OPERATORS(TIGON_DECLARE_OP)
#undef TIGON_DECLARE_OP
}  // namespace op

namespace backends {
inline namespace TIGON_ABI {
#define TIGON_DECLARE_CHOICE(op) struct TIGON_CHOICE_OF(op);
TIGON_OPERATORS(TIGON_DECLARE_CHOICE)
#undef TIGON_DECLARE_CHOICE
}  // namespace TIGON_ABI
}  // namespace backends

inline namespace TIGON_ABI {
template <class C, class... Ops>
struct from;
template <class B, class... From>
struct mix;
}  // namespace TIGON_ABI

namespace detail {
inline namespace TIGON_ABI {

template <class Op, class C, bool Set>
struct choice;
struct no_choice;
constexpr bool is_choice(std::string_view name) { return !name.starts_with("TIGON_BACKEND_OF_"); }

/// B, or the mix of it with what is chosen and is not B.
template <class B, class Mix, class... Choice>
struct chosen_backend;
template <class B, class Mix>
struct chosen_backend<B, Mix, no_choice> {
  using type = Mix;
};
template <class B, class Mix, class Op, class C, bool Set, class... More>
struct chosen_backend<B, Mix, choice<Op, C, Set>, More...> : chosen_backend<B, Mix, More...> {};
template <class B, class Op, class C, class... More>
  requires(!std::is_same_v<B, C>)
struct chosen_backend<B, B, choice<Op, C, true>, More...> : chosen_backend<B, mix<B, from<C, Op>>, More...> {};
template <class B, class... From, class Op, class C, class... More>
  requires(!std::is_same_v<B, C>)
struct chosen_backend<B, mix<B, From...>, choice<Op, C, true>, More...>
    : chosen_backend<B, mix<B, From..., from<C, Op>>, More...> {};

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#define TIGON_CHOICE(op_) \
  detail::choice<op::op_, backends::TIGON_CHOICE_OF(op_), detail::is_choice(TIGON_STRING(TIGON_CHOICE_OF(op_)))>,

#endif

#endif  // TIGON_BACKEND_CHOICES_HPP
