// The kernels that several programs of the suite call, for the backends and types that they have in common: single
// numbers in f64, the default's lanes in f32 and bf16. Included behind the headers of operators, whose kernels are then
// linked (linked.hpp) and not compiled again. tests/CMakeLists.txt writes the sources that compile them.
#ifndef TIGON_TESTS_SUPPORT_KERNELS_HPP
#define TIGON_TESTS_SUPPORT_KERNELS_HPP

// TIGON_TESTS_KERNELS_<header>(PREFIX, B, T, A): what backend B calls for elements of type T with sums in A.
#define TIGON_TESTS_KERNELS_adamw(PREFIX, B, T, A)                                                                    \
  PREFIX template void linked_forward<op::adamw, B>(kernel_types<>,                                                   \
                                                    detail::adamw_tasks<adamw_parameter<T, T, A, T>> const&, double&, \
                                                    const adamw_options&, context&);
#define TIGON_TESTS_KERNELS_attention(PREFIX, B, T, A)                                                               \
  PREFIX template void linked_forward<op::attention, B>(kernel_types<T>, heads_view<const T>&, heads_view<const T>&, \
                                                        heads_view<const T>&, heads_view<T>&, std::span<A>&,         \
                                                        attention_options&, context&);                               \
  PREFIX template void linked_backward<op::attention, B>(                                                            \
      kernel_types<T>, heads_view<const T>&, heads_view<const T>&, heads_view<const T>&, heads_view<const T>&,       \
      attention_saved<const T, std::span<const A>>&, attention_gradients<T>&, attention_options&, context&);
#define TIGON_TESTS_KERNELS_attn_res(PREFIX, B, T, A)                                                   \
  PREFIX template void linked_forward<op::attn_res, B>(                                                 \
      kernel_types<T>, blocks_view<const T>&, vector_view<const T> const&, vector_view<const T> const&, \
      matrix_view<T>&, std::span<A>&, std::span<A>&, attn_res_options&, context&);                      \
  PREFIX template void linked_backward<op::attn_res, B>(                                                \
      kernel_types<T>, matrix_view<const T>&, blocks_view<const T>&, vector_view<const T> const&,       \
      vector_view<const T> const&, attn_res_saved<std::span<const A>>&,                                 \
      attn_res_gradients<T, vector_view<T>, vector_view<T>> const&, attn_res_options&, context&);
#define TIGON_TESTS_KERNELS_dyt(PREFIX, B, T, A)                                                                       \
  PREFIX template void linked_forward<op::dyt, B>(kernel_types<T>, matrix_view<const T>&, vector_view<const T> const&, \
                                                  vector_view<const T> const&, vector_view<const T> const&,            \
                                                  matrix_view<T>&, context&);                                          \
  PREFIX template void linked_backward<op::dyt, B>(                                                                    \
      kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, vector_view<const T> const&,                      \
      vector_view<const T> const&, dyt_gradients<T, vector_view<T>, vector_view<T>, vector_view<T>> const&,            \
      dyt_options&, context&);
#define TIGON_TESTS_KERNELS_embedding(PREFIX, B, T, A)                                                        \
  PREFIX template void linked_forward<op::embedding, B>(kernel_types<T, std::int32_t>, matrix_view<const T>&, \
                                                        std::span<std::int32_t> const&, matrix_view<T>&,      \
                                                        embedding_options&, context&);                        \
  PREFIX template void linked_backward<op::embedding, B>(                                                     \
      kernel_types<T, std::int32_t>, matrix_view<const T>&, std::span<std::int32_t> const&, std::size_t&,     \
      std::span<std::int32_t>&, matrix_view<T>&, embedding_options&, context&);
#define TIGON_TESTS_KERNELS_expert_parallel_moe(PREFIX, B, T, A)                                                    \
  PREFIX template void linked_forward<op::expert_parallel_moe, B>(                                                  \
      kernel_types<T, T, std::int32_t, T>, communicator_ref&, matrix_view<const T>&, moe_choices<std::int32_t, T>&, \
      moe_weights<T>&, matrix_view<T>&, moe_options_for<mlp_gate>&, context&);                                      \
  PREFIX template void linked_backward<op::expert_parallel_moe, B>(                                                 \
      kernel_types<T, T, T, std::int32_t, T>, communicator_ref&, matrix_view<const T>&, matrix_view<const T>&,      \
      moe_choices<std::int32_t, T>&, moe_weights<T>&, moe_gradients<T, T, T>&, moe_options_for<mlp_gate>&, context&);
#define TIGON_TESTS_KERNELS_fused_add_rms_norm(PREFIX, B, T, A)                                                    \
  PREFIX template void linked_forward<op::fused_add_rms_norm, B>(                                                  \
      kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, vector_view<const T> const&, matrix_view<T>&, \
      matrix_view<T>&, std::span<A>&, rms_norm_options&, context&);                                                \
  PREFIX template void linked_backward<op::fused_add_rms_norm, B>(                                                 \
      kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, matrix_view<const T>&,                        \
      vector_view<const T> const&, std::span<const A>&, fused_add_rms_norm_gradients<T, vector_view<T>> const&,    \
      rms_norm_options&, context&);
#define TIGON_TESTS_KERNELS_geglu(PREFIX, B, T, A)                                                                  \
  PREFIX template void linked_forward<op::geglu, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&,  \
                                                    matrix_view<T>&, geglu_options&, context&);                     \
  PREFIX template void linked_backward<op::geglu, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, \
                                                     matrix_view<const T>&, matrix_view<T>&, matrix_view<T>&,       \
                                                     geglu_options&, context&);
#define TIGON_TESTS_KERNELS_group_norm(PREFIX, B, T, A)                                                                \
  PREFIX template void linked_forward<op::group_norm, B>(                                                              \
      kernel_types<T>, matrix_view<const T>&, vector_view<const T> const&, vector_view<const T> const&,                \
      matrix_view<T>&, std::span<A>&, std::span<A>&, group_norm_options&, context&);                                   \
  PREFIX template void linked_backward<op::group_norm, B>(                                                             \
      kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, vector_view<const T> const&, std::span<const A>&, \
      std::span<const A>&, norm_gradients<T, vector_view<T>, vector_view<T>> const&, group_norm_options&, context&);
#define TIGON_TESTS_KERNELS_layer_norm(PREFIX, B, T, A)                                                                \
  PREFIX template void linked_forward<op::layer_norm, B>(                                                              \
      kernel_types<T>, matrix_view<const T>&, vector_view<const T> const&, vector_view<const T> const&,                \
      matrix_view<T>&, std::span<A>&, std::span<A>&, layer_norm_options&, context&);                                   \
  PREFIX template void linked_backward<op::layer_norm, B>(                                                             \
      kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, vector_view<const T> const&, std::span<const A>&, \
      std::span<const A>&, norm_gradients<T, vector_view<T>, vector_view<T>> const&, layer_norm_options&, context&);
#define TIGON_TESTS_KERNELS_llama4_rope(PREFIX, B, T, A)                                                          \
  PREFIX template void linked_forward<op::llama4_rope, B>(kernel_types<T, T>, heads_view<const T>&,               \
                                                          heads_view<const T>&, matrix_view<T>&, heads_view<T>&,  \
                                                          heads_view<T>&, llama4_rope_options&, context&);        \
  PREFIX template void linked_backward<op::llama4_rope, B>(kernel_types<T, T>, heads_view<const T>&,              \
                                                           heads_view<const T>&, matrix_view<T>&, heads_view<T>&, \
                                                           heads_view<T>&, llama4_rope_options&, context&);
#define TIGON_TESTS_KERNELS_mhc_coeffs(PREFIX, B, T, A)                                                               \
  PREFIX template void linked_forward<op::mhc_coeffs, B>(kernel_types<T>, matrix_view<T>&,                            \
                                                         detail::mhc_weight_views<T, A> const&, mhc_coefficients<A>&, \
                                                         mhc_coeffs_saved<A>&, mhc_coeffs_options&, context&);        \
  PREFIX template void linked_forward<op::mhc_coeffs, B>(                                                             \
      kernel_types<T>, matrix_view<const T>&, detail::mhc_weight_views<T, A> const&, mhc_coefficients<A> const&,      \
      mhc_coeffs_saved<A> const&, mhc_coeffs_options&, context&);                                                     \
  PREFIX template void linked_backward<op::mhc_coeffs, B>(                                                            \
      kernel_types<T>, mhc_coefficients<const A>&, matrix_view<T>&, detail::mhc_weight_views<T, A> const&,            \
      mhc_coeffs_saved<const A>&, detail::mhc_gradient_views<T, T, A> const&, mhc_coeffs_options&,                    \
      detail::mhc_more<T>&, context&);                                                                                \
  PREFIX template void linked_backward<op::mhc_coeffs, B>(                                                            \
      kernel_types<T>, mhc_coefficients<const A>&, matrix_view<const T>&, detail::mhc_weight_views<T, A> const&,      \
      mhc_coeffs_saved<A> const&, detail::mhc_gradient_views<T, T, A> const&, mhc_coeffs_options&,                    \
      detail::mhc_more<T>&, context&);
#define TIGON_TESTS_KERNELS_mhc_post_res(PREFIX, B, T, A)                                                          \
  PREFIX template void linked_forward<op::mhc_post_res, B>(kernel_types<T>, matrix_view<const T>&,                 \
                                                           matrix_view<T> const&, matrix_view<A> const&,           \
                                                           matrix_view<A> const&, matrix_view<T>&, context&);      \
  PREFIX template void linked_forward<op::mhc_post_res, B>(kernel_types<T>, matrix_view<const T>&,                 \
                                                           matrix_view<const T>&, matrix_view<const A>&,           \
                                                           matrix_view<const A>&, matrix_view<T>&, context&);      \
  PREFIX template void linked_backward<op::mhc_post_res, B>(                                                       \
      kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, matrix_view<T> const&, matrix_view<A> const&, \
      matrix_view<A> const&, mhc_post_res_gradients<T>&, mhc_post_res_options&, context&);                         \
  PREFIX template void linked_backward<op::mhc_post_res, B>(                                                       \
      kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, matrix_view<const T>&, matrix_view<const A>&, \
      matrix_view<const A>&, mhc_post_res_gradients<T> const&, mhc_post_res_options&, context&);
#define TIGON_TESTS_KERNELS_mhc_pre(PREFIX, B, T, A)                                                                   \
  PREFIX template void linked_forward<op::mhc_pre, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<A> const&,   \
                                                      matrix_view<T> const&, context&);                                \
  PREFIX template void linked_forward<op::mhc_pre, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<const A>&,   \
                                                      matrix_view<T>&, context&);                                      \
  PREFIX template void linked_backward<op::mhc_pre, B>(kernel_types<T>, matrix_view<T> const&, matrix_view<const T>&,  \
                                                       matrix_view<A> const&, mhc_pre_gradients<T>&, mhc_pre_options&, \
                                                       context&);                                                      \
  PREFIX template void linked_backward<op::mhc_pre, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&,  \
                                                       matrix_view<const A>&, mhc_pre_gradients<T> const&,             \
                                                       mhc_pre_options&, context&);
#define TIGON_TESTS_KERNELS_mlp(PREFIX, B, T, A)                                                                      \
  PREFIX template void linked_forward<op::mlp, B>(kernel_types<T, T>, matrix_view<const T>&, mlp_weights<const T>&,   \
                                                  matrix_view<T>&, matrix_view<T>&, mlp_options_for<mlp_gate> const&, \
                                                  context&);                                                          \
  PREFIX template void linked_backward<op::mlp, B>(                                                                   \
      kernel_types<T, T, T>, matrix_view<const T>&, matrix_view<const T>&, mlp_weights<const T>&,                     \
      matrix_view<T> const&, matrix_view<T>&, mlp_weights<T>&, mlp_options_for<mlp_gate> const&, context&);
#define TIGON_TESTS_KERNELS_modulated_rms_norm(PREFIX, B, T, A)                                              \
  PREFIX template void linked_forward<op::modulated_rms_norm, B>(                                            \
      kernel_types<T>, matrix_view<const T>&, vector_view<const T> const&, matrix_view<const T>&,            \
      matrix_view<const T>&, matrix_view<T>&, std::span<A>&, modulated_rms_norm_options&, context&);         \
  PREFIX template void linked_backward<op::modulated_rms_norm, B>(                                           \
      kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, vector_view<const T> const&,            \
      matrix_view<const T>&, std::span<const A>&, modulated_rms_norm_gradients<T, vector_view<T>, T> const&, \
      modulated_rms_norm_options&, context&);
#define TIGON_TESTS_KERNELS_moe(PREFIX, B, T, A)                                                            \
  PREFIX template void linked_forward<op::moe, B>(                                                          \
      kernel_types<T, T, std::int32_t, T>, matrix_view<const T>&, moe_choices<std::int32_t, T> const&,      \
      moe_weights<const T>&, matrix_view<T>&, matrix_view<T>&, moe_options_for<mlp_gate> const&, context&); \
  PREFIX template void linked_backward<op::moe, B>(                                                         \
      kernel_types<T, T, T, std::int32_t, T>, matrix_view<const T>&, matrix_view<const T>&,                 \
      moe_choices<std::int32_t, T> const&, moe_weights<const T>&, matrix_view<const T>&,                    \
      moe_gradients<T, T, T> const&, moe_options_for<mlp_gate> const&, context&);
#define TIGON_TESTS_KERNELS_multi_token_attention(PREFIX, B, T, A)                                              \
  PREFIX template void linked_forward<op::multi_token_attention, B>(                                            \
      kernel_types<T>, heads_view<const T>&, heads_view<const T>&, vector_view<const T> const&, heads_view<T>&, \
      heads_view<T>&, multi_token_attention_options&, context&);                                                \
  PREFIX template void linked_backward<op::multi_token_attention, B>(                                           \
      kernel_types<T>, heads_view<const T>&, heads_view<const T>&, heads_view<const T>&,                        \
      multi_token_attention_gradients<T>&, multi_token_attention_options&, context&);
#define TIGON_TESTS_KERNELS_neighborhood_attention(PREFIX, B, T, A)                                            \
  PREFIX template void linked_forward<op::neighborhood_attention, B>(                                          \
      kernel_types<T>, heads_view<const T>&, heads_view<const T>&, heads_view<const T>&, heads_view<T>&,       \
      neighborhood_attention_saved<A>&, neighborhood_attention_options&, context&);                            \
  PREFIX template void linked_backward<op::neighborhood_attention, B>(                                         \
      kernel_types<T>, heads_view<const T>&, heads_view<const T>&, heads_view<const T>&, heads_view<const T>&, \
      matrix_view<const A>&, neighborhood_attention_gradients<T>&, neighborhood_attention_options&, context&);
#define TIGON_TESTS_KERNELS_neighborhood_attention_layer(PREFIX, B, T, A)                                            \
  PREFIX template void linked_forward<op::neighborhood_attention_layer, B>(                                          \
      kernel_types<T>, matrix_view<const T>&, neighborhood_attention_layer_weights<const T>&, matrix_view<T>&,       \
      neighborhood_attention_layer_saved<T>&, neighborhood_attention_layer_options&, context&);                      \
  PREFIX template void linked_backward<op::neighborhood_attention_layer, B>(                                         \
      kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, neighborhood_attention_layer_weights<const T>&, \
      neighborhood_attention_layer_saved<const T>&, matrix_view<T>&, neighborhood_attention_layer_weights<T>&,       \
      neighborhood_attention_layer_options&, context&);
#define TIGON_TESTS_KERNELS_poly_norm(PREFIX, B, T, A)                                                                 \
  PREFIX template void linked_forward<op::poly_norm, B>(kernel_types<T>, matrix_view<const T>&,                        \
                                                        vector_view<const T> const&, vector_view<const T> const&,      \
                                                        matrix_view<T>&, std::span<A>&, poly_norm_options&, context&); \
  PREFIX template void linked_backward<op::poly_norm, B>(                                                              \
      kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, vector_view<const T> const&, std::span<const A>&, \
      norm_gradients<T, vector_view<T>, vector_view<T>> const&, poly_norm_options&, context&);
#define TIGON_TESTS_KERNELS_qk_norm_rope(PREFIX, B, T, A)                                                      \
  PREFIX template void linked_forward<op::qk_norm_rope, B>(                                                    \
      kernel_types<T, T, T>, qk_heads<const T>&, qk_norm_weights<vector_view<const T>, vector_view<const T>>&, \
      rope_tables<const T>&, qk_heads<T>&, qk_norm_rope_options&, context&);                                   \
  PREFIX template void linked_backward<op::qk_norm_rope, B>(                                                   \
      kernel_types<T, T, T>, qk_heads<const T>&, qk_heads<const T>&,                                           \
      qk_norm_weights<vector_view<const T>, vector_view<const T>>&, rope_tables<const T>&,                     \
      qk_norm_rope_gradients<T, vector_view<T>, vector_view<T>>&, qk_norm_rope_options&, context&);
#define TIGON_TESTS_KERNELS_qwen2vl_mrope(PREFIX, B, T, A)                                              \
  PREFIX template void linked_forward<op::qwen2vl_mrope, B>(                                            \
      kernel_types<T, T>, heads_view<const T>&, heads_view<const T>&, matrix_view<T>&, matrix_view<T>&, \
      heads_view<T>&, heads_view<T>&, qwen2vl_mrope_options&, context&);                                \
  PREFIX template void linked_backward<op::qwen2vl_mrope, B>(                                           \
      kernel_types<T, T>, heads_view<const T>&, heads_view<const T>&, matrix_view<T>&, matrix_view<T>&, \
      heads_view<T>&, heads_view<T>&, qwen2vl_mrope_options&, context&);
#define TIGON_TESTS_KERNELS_relu_squared(PREFIX, B, T, A)                                                           \
  PREFIX template void linked_forward<op::relu_squared, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<T>&, \
                                                           context&);                                               \
  PREFIX template void linked_backward<op::relu_squared, B>(kernel_types<T>, matrix_view<const T>&,                 \
                                                            matrix_view<const T>&, matrix_view<T>&,                 \
                                                            relu_squared_options&, context&);
#define TIGON_TESTS_KERNELS_rms_norm(PREFIX, B, T, A)                                                                  \
  PREFIX template void linked_forward<op::rms_norm, B>(kernel_types<T>, matrix_view<const T>&,                         \
                                                       vector_view<const T> const&, matrix_view<T>&, std::span<A>&,    \
                                                       rms_norm_options&, context&);                                   \
  PREFIX template void linked_backward<op::rms_norm, B>(                                                               \
      kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, vector_view<const T> const&, std::span<const A>&, \
      matrix_view<T>&, vector_view<T> const&, rms_norm_options&, context&);
#define TIGON_TESTS_KERNELS_rope(PREFIX, B, T, A)                                                                     \
  PREFIX template void linked_forward<op::rope, B>(kernel_types<T, T>, heads_view<const T>&, heads_view<const T>&,    \
                                                   matrix_view<T>&, matrix_view<T>&, heads_view<T>&, heads_view<T>&,  \
                                                   rope_options&, context&);                                          \
  PREFIX template void linked_backward<op::rope, B>(kernel_types<T, T>, heads_view<const T>&, heads_view<const T>&,   \
                                                    matrix_view<T>&, matrix_view<T>&, heads_view<T>&, heads_view<T>&, \
                                                    rope_options&, context&);
#define TIGON_TESTS_KERNELS_softmax(PREFIX, B, T, A)                                                                  \
  PREFIX template void linked_forward<op::softmax, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<T>&,        \
                                                      softmax_options&, context&);                                    \
  PREFIX template void linked_backward<op::softmax, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, \
                                                       matrix_view<T>&, softmax_options&, context&);
#define TIGON_TESTS_KERNELS_sparsemax(PREFIX, B, T, A)                                                              \
  PREFIX template void linked_forward<op::sparsemax, B>(kernel_types<T>, axis_view<const T>&, axis_view<T>&,        \
                                                        sparsemax_options&, context&);                              \
  PREFIX template void linked_backward<op::sparsemax, B>(kernel_types<T>, axis_view<const T>&, axis_view<const T>&, \
                                                         axis_view<T>&, sparsemax_options&, context&);
#define TIGON_TESTS_KERNELS_swiglu(PREFIX, B, T, A)                                                                  \
  PREFIX template void linked_forward<op::swiglu, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&,  \
                                                     matrix_view<T>&, swiglu_options&, context&);                    \
  PREFIX template void linked_backward<op::swiglu, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&, \
                                                      matrix_view<const T>&, matrix_view<T>&, matrix_view<T>&,       \
                                                      swiglu_options&, context&);
#define TIGON_TESTS_KERNELS_swiglu_fused(PREFIX, B, T, A)                                                           \
  PREFIX template void linked_forward<op::swiglu_fused, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<T>&, \
                                                           gate_layout&, swiglu_options&, context&);                \
  PREFIX template void linked_backward<op::swiglu_fused, B>(kernel_types<T>, matrix_view<const T>&,                 \
                                                            matrix_view<const T>&, matrix_view<T>&, gate_layout&,   \
                                                            swiglu_options&, context&);
#define TIGON_TESTS_KERNELS_tiled_mlp(PREFIX, B, T, A)                                                                \
  PREFIX template void linked_forward<op::tiled_mlp, B>(kernel_types<T, T>, matrix_view<const T>&, mlp_weights<T>&,   \
                                                        matrix_view<T>&, tiled_mlp_options_for<mlp_gate>&, context&); \
  PREFIX template void linked_backward<op::tiled_mlp, B>(kernel_types<T, T, T>, matrix_view<const T>&,                \
                                                         matrix_view<const T>&, mlp_weights<T>&, matrix_view<T>&,     \
                                                         mlp_weights<T>&, tiled_mlp_options_for<mlp_gate>&, context&);
#define TIGON_TESTS_KERNELS_cross_entropy(PREFIX, B, T, A)                                                         \
  PREFIX template void linked_forward<op::cross_entropy, B>(                                                       \
      kernel_types<T, std::int64_t>, matrix_view<const T> const&, std::span<std::int64_t> const&, const A* const&, \
      matrix_view<T> const&, const cross_entropy_rows&, const cross_entropy_scale&, const cross_entropy_options&,  \
      context&);                                                                                                   \
  PREFIX template void linked_forward<op::cross_entropy, B>(                                                       \
      kernel_types<T, std::int64_t>, matrix_view<const T> const&, std::span<const std::int64_t> const&,            \
      const A* const&, matrix_view<T> const&, const cross_entropy_rows&, const cross_entropy_scale&,               \
      const cross_entropy_options&, context&);                                                                     \
  PREFIX template void linked_backward<op::cross_entropy, B>(                                                      \
      kernel_types<T>, matrix_view<T> const&, std::span<const A> const&, matrix_view<T> const&, context&);         \
  PREFIX template void linked_backward<op::cross_entropy, B>(kernel_types<T>, matrix_view<const T>&,               \
                                                             std::span<const A>&, matrix_view<T>&, context&);
#define TIGON_TESTS_KERNELS_cross_entropy_divergence(PREFIX, B, T, A)                                       \
  PREFIX template void linked_forward<op::cross_entropy_jsd, B>(                                            \
      kernel_types<T, std::int64_t>, detail::cross_entropy_divergence_call<T> const&, const std::int64_t*&, \
      const cross_entropy_divergence_options&, context&);                                                   \
  PREFIX template void linked_forward<op::cross_entropy_tvd, B>(                                            \
      kernel_types<T, std::int64_t>, detail::cross_entropy_divergence_call<T> const&, const std::int64_t*&, \
      const cross_entropy_divergence_options&, context&);
#define TIGON_TESTS_KERNELS_fused_linear_cosine_distillation(PREFIX, B, T, A)                    \
  PREFIX template void linked_forward<op::fused_linear_cosine_distillation, B>(                  \
      kernel_types<T, std::int64_t>, detail::distillation_call<T> const&, const std::int64_t*&,  \
      fused_linear_cosine_distillation_options&, detail::distillation_rows<A> const&, context&); \
  PREFIX template void linked_backward<op::fused_linear_cosine_distillation, B>(                 \
      kernel_types<T, std::int64_t>, detail::distillation_call<T> const&, const std::int64_t*&,  \
      fused_linear_cosine_distillation_options&, detail::distillation_rows<A> const&, context&);
#define TIGON_TESTS_KERNELS_fused_linear_cpo(PREFIX, B, T, A)                                                    \
  PREFIX template void linked_forward<op::fused_linear_cpo, B>(kernel_types<T>, detail::sequence_call<T> const&, \
                                                               context&);
#define TIGON_TESTS_KERNELS_fused_linear_cross_entropy(PREFIX, B, T, A)                                            \
  PREFIX template void linked_forward<op::fused_linear_cross_entropy, B>(                                          \
      kernel_types<T, std::int64_t>, detail::linear_loss<T> const&, std::span<const std::int64_t>&, const A*&,     \
      const cross_entropy_rows&, const cross_entropy_scale&, const fused_linear_cross_entropy_options&, context&); \
  PREFIX template void linked_backward<op::fused_linear_cross_entropy, B>(                                         \
      kernel_types<T, std::int64_t>, detail::linear_loss<T> const&, std::span<const std::int64_t>&, const A*&,     \
      const cross_entropy_rows&, const cross_entropy_scale&, const fused_linear_cross_entropy_options&, context&);
#define TIGON_TESTS_KERNELS_fused_linear_dpo(PREFIX, B, T, A)                                                    \
  PREFIX template void linked_forward<op::fused_linear_dpo, B>(kernel_types<T>, detail::sequence_call<T> const&, \
                                                               context&);                                        \
  PREFIX template void linked_backward<op::fused_linear_dpo, B>(kernel_types<T>, saved_gradients<T> const&, A&,  \
                                                                linear_gradients<T> const&, context&);
#define TIGON_TESTS_KERNELS_fused_linear_grpo(PREFIX, B, T, A) \
  PREFIX template void linked_forward<op::fused_linear_grpo, B>(kernel_types<T>, detail::sequence_call<T>&, context&);
#define TIGON_TESTS_KERNELS_fused_linear_jsd(PREFIX, B, T, A)                                   \
  PREFIX template void linked_forward<op::fused_linear_jsd, B>(                                 \
      kernel_types<T, std::int64_t>, detail::distillation_call<T> const&, const std::int64_t*&, \
      fused_linear_jsd_options&, detail::distillation_rows<A> const&, context&);                \
  PREFIX template void linked_backward<op::fused_linear_jsd, B>(                                \
      kernel_types<T, std::int64_t>, detail::distillation_call<T> const&, const std::int64_t*&, \
      fused_linear_jsd_options&, detail::distillation_rows<A> const&, context&);
#define TIGON_TESTS_KERNELS_fused_linear_jsd_distillation(PREFIX, B, T, A)                      \
  PREFIX template void linked_forward<op::fused_linear_jsd_distillation, B>(                    \
      kernel_types<T, std::int64_t>, detail::distillation_call<T> const&, const std::int64_t*&, \
      fused_linear_jsd_distillation_options&, detail::distillation_rows<A> const&, context&);   \
  PREFIX template void linked_backward<op::fused_linear_jsd_distillation, B>(                   \
      kernel_types<T, std::int64_t>, detail::distillation_call<T> const&, const std::int64_t*&, \
      fused_linear_jsd_distillation_options&, detail::distillation_rows<A> const&, context&);
#define TIGON_TESTS_KERNELS_fused_linear_kl_div(PREFIX, B, T, A)                                                     \
  PREFIX template void linked_forward<op::fused_linear_kl_div, B>(kernel_types<T>, detail::linear_kl_div<T> const&,  \
                                                                  double* const&, double&,                           \
                                                                  const fused_linear_kl_div_options&, context&);     \
  PREFIX template void linked_backward<op::fused_linear_kl_div, B>(kernel_types<T>, detail::linear_kl_div<T> const&, \
                                                                   double* const&, double&,                          \
                                                                   const fused_linear_kl_div_options&, context&);
#define TIGON_TESTS_KERNELS_fused_linear_kto(PREFIX, B, T, A)                                                    \
  PREFIX template void linked_forward<op::fused_linear_kto, B>(kernel_types<T>, detail::sequence_call<T> const&, \
                                                               context&);
#define TIGON_TESTS_KERNELS_fused_linear_orpo(PREFIX, B, T, A)                                                    \
  PREFIX template void linked_forward<op::fused_linear_orpo, B>(kernel_types<T>, detail::sequence_call<T> const&, \
                                                                context&);
#define TIGON_TESTS_KERNELS_fused_linear_preference(PREFIX, B, T, A)                   \
  PREFIX template void linked_forward<op::fused_linear_preference, B>(kernel_types<T>, \
                                                                      detail::sequence_call<T> const&, context&);
#define TIGON_TESTS_KERNELS_fused_linear_scaled_cross_entropy(PREFIX, B, T, A)                                 \
  PREFIX template void linked_forward<op::fused_linear_scaled_cross_entropy, B>(                               \
      kernel_types<T, std::int64_t>, linear_layer<T> const&, linear_gradients<T> const&, detail::chosen_rows&, \
      std::span<const std::int64_t>&, detail::scaled_cross_entropy_rows<A> const&,                             \
      const fused_linear_scaled_cross_entropy_options&, context&);                                             \
  PREFIX template void linked_backward<op::fused_linear_scaled_cross_entropy, B>(                              \
      kernel_types<T, std::int64_t>, linear_layer<T> const&, linear_gradients<T> const&, detail::chosen_rows&, \
      std::span<const std::int64_t>&, detail::scaled_cross_entropy_rows<A> const&,                             \
      const fused_linear_scaled_cross_entropy_options&, context&);
#define TIGON_TESTS_KERNELS_fused_linear_simpo(PREFIX, B, T, A)                                                    \
  PREFIX template void linked_forward<op::fused_linear_simpo, B>(kernel_types<T>, detail::sequence_call<T> const&, \
                                                                 context&);
#define TIGON_TESTS_KERNELS_grpo_loss(PREFIX, B, T, A)                                                           \
  PREFIX template void linked_forward<op::grpo_loss, B>(kernel_types<T>, matrix_view<T>&, std::int64_t*&,        \
                                                        detail::policy<A> const&, lse_parts<A>*&,                \
                                                        detail::policy_output<A>&, context&);                    \
  PREFIX template void linked_forward<op::grpo_loss, B>(kernel_types<T>, matrix_view<const T>&, std::int64_t*&,  \
                                                        detail::policy<A> const&, lse_parts<A>*&,                \
                                                        detail::policy_output<A>&, context&);                    \
  PREFIX template void linked_backward<op::grpo_loss, B>(kernel_types<T>, matrix_view<const T>&, std::int64_t*&, \
                                                         detail::policy<A> const&, lse_parts<A> const*&,         \
                                                         std::span<const A>&, matrix_view<T>&, context&);        \
  PREFIX template void linked_backward<op::grpo_loss, B>(kernel_types<T>, matrix_view<const T>&, std::int64_t*&, \
                                                         detail::policy<A> const&, lse_parts<A>*&,               \
                                                         std::span<const A> const&, matrix_view<T>&, context&);
#define TIGON_TESTS_KERNELS_jsd(PREFIX, B, T, A)                                                                       \
  PREFIX template void linked_forward<op::jsd, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&,       \
                                                  matrix_view<T>&, const detail::divergence_rows&, double&, context&); \
  PREFIX template void linked_backward<op::jsd, B>(kernel_types<T>, matrix_view<const T>&, A&, matrix_view<T>&,        \
                                                   context&);
#define TIGON_TESTS_KERNELS_kl_div(PREFIX, B, T, A)                                                                    \
  PREFIX template void linked_forward<op::kl_div, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&,    \
                                                     matrix_view<A>&, matrix_view<T>&, const detail::divergence_rows&, \
                                                     kl_div_options&, context&);                                       \
  PREFIX template void linked_backward<op::kl_div, B>(kernel_types<T>, matrix_view<const T>&,                          \
                                                      matrix_view<const A> const&, const A&, matrix_view<T>&,          \
                                                      kl_div_options&, context&);
#define TIGON_TESTS_KERNELS_selective_log_softmax(PREFIX, B, T, A)                                                    \
  PREFIX template void linked_forward<op::selective_log_softmax, B>(kernel_types<T>, matrix_view<T>&, std::int64_t*&, \
                                                                    double&, A*&, lse_parts<A>*&, context&);          \
  PREFIX template void linked_backward<op::selective_log_softmax, B>(                                                 \
      kernel_types<T>, matrix_view<const T>&, lse_parts<A> const*&, selected_gradient<A>&, selected_gradient<A>&,     \
      double&, matrix_view<T>&, context&);
#define TIGON_TESTS_KERNELS_selective_logprob(PREFIX, B, T, A)                                                     \
  PREFIX template void linked_forward<op::selective_logprob, B>(                                                   \
      kernel_types<T>, linear_layer<T> const&, detail::selected_columns&, double&, A*&, lse_parts<A>*&, context&); \
  PREFIX template void linked_backward<op::selective_logprob, B>(kernel_types<T>, linear_layer<T> const&,          \
                                                                 linear_gradients<T>&, detail::selected_columns&,  \
                                                                 double&, A*&, lse_parts<A>*&, context&);
#define TIGON_TESTS_KERNELS_tvd(PREFIX, B, T, A)                                                                    \
  PREFIX template void linked_forward<op::tvd, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&,    \
                                                  matrix_view<A>&, matrix_view<T>&, const detail::divergence_rows&, \
                                                  tvd_options&, context&);                                          \
  PREFIX template void linked_backward<op::tvd, B>(kernel_types<T>, matrix_view<const T>&, matrix_view<const T>&,   \
                                                   matrix_view<const A>&, const A&, matrix_view<T>&,                \
                                                   const detail::divergence_rows&, context&);
#define TIGON_TESTS_KERNELS_vocab_parallel_cross_entropy(PREFIX, B, T, A)                                         \
  PREFIX template void linked_forward<op::vocab_parallel_cross_entropy, B>(                                       \
      kernel_types<T, std::int64_t>, communicator_ref&,                                                           \
      std::vector<detail::vocab_record, std::allocator<detail::vocab_record>> const&, matrix_view<T>&,            \
      std::span<const std::int64_t> const&, vocab_parallel_results<A>&, vocab_parallel_cross_entropy_options&,    \
      context&);                                                                                                  \
  PREFIX template void linked_backward<op::vocab_parallel_cross_entropy, B>(                                      \
      kernel_types<T, std::int64_t>, vocab_shard&, matrix_view<const T>&, std::span<const std::int64_t> const&,   \
      std::span<const A>&, vocab_parallel_statistics<A>&, matrix_view<T>&, vocab_parallel_cross_entropy_options&, \
      context&);
#define TIGON_TESTS_KERNELS_vocab_parallel_fused_linear_cross_entropy(PREFIX, B, T, A)                    \
  PREFIX template void linked_forward<op::vocab_parallel_fused_linear_cross_entropy, B>(                  \
      kernel_types<T, std::int64_t>, detail::linear_shard_loss<T> const&, std::span<const std::int64_t>&, \
      const A* const&, vector_view<const A> const&, cross_entropy_rows&, const cross_entropy_scale&,      \
      const cross_entropy_options&, context&);                                                            \
  PREFIX template void linked_backward<op::vocab_parallel_fused_linear_cross_entropy, B>(                 \
      kernel_types<T, std::int64_t>, detail::linear_shard_loss<T> const&, std::span<const std::int64_t>&, \
      const A* const&, vector_view<const A> const&, cross_entropy_rows&, const cross_entropy_scale&,      \
      const cross_entropy_options&, context&);
#define TIGON_TESTS_KERNELS_vocab_parallel_fused_linear_scaled_cross_entropy(PREFIX, B, T, A)                   \
  PREFIX template void linked_forward<op::vocab_parallel_fused_linear_scaled_cross_entropy, B>(                 \
      kernel_types<T, std::int64_t>, detail::linear_shard_loss<T> const&, std::span<const std::int64_t>&,       \
      detail::scaled_cross_entropy_rows<A> const&, const fused_linear_scaled_cross_entropy_options&, context&); \
  PREFIX template void linked_backward<op::vocab_parallel_fused_linear_scaled_cross_entropy, B>(                \
      kernel_types<T, std::int64_t>, detail::linear_shard_loss<T> const&, std::span<const std::int64_t>&,       \
      detail::scaled_cross_entropy_rows<A> const&, const fused_linear_scaled_cross_entropy_options&, context&);

#define TIGON_TESTS_COMMON_PAIRS(PREFIX, KERNELS)     \
  namespace tigon::test {                             \
  KERNELS(PREFIX, backends::generic, double, double)  \
  KERNELS(PREFIX, backends::highway, float, float)    \
  KERNELS(PREFIX, backends::highway, bfloat16, float) \
  }
#define TIGON_TESTS_KERNELS(PREFIX, header) TIGON_TESTS_COMMON_PAIRS(PREFIX, TIGON_TESTS_KERNELS_##header)
// What computes a few rows of f32 in f64.
#define TIGON_TESTS_FEW_ROWS(PREFIX, header)                                                    \
  namespace tigon::test {                                                                       \
  TIGON_TESTS_KERNELS_##header(PREFIX, backends::highway, tigon::detail::in_f64<float>, double) \
  }

#if defined(TIGON_TESTS_LINKED_KERNELS)
#include "linked.hpp"

#if defined(TIGON_OPS_ADAMW_HPP)
TIGON_TESTS_KERNELS(extern, adamw)
#endif
#if defined(TIGON_OPS_ATTENTION_HPP)
TIGON_TESTS_KERNELS(extern, attention)
#endif
#if defined(TIGON_OPS_ATTN_RES_HPP)
TIGON_TESTS_KERNELS(extern, attn_res)
#endif
#if defined(TIGON_OPS_DYT_HPP)
TIGON_TESTS_KERNELS(extern, dyt)
#endif
#if defined(TIGON_OPS_EMBEDDING_HPP)
TIGON_TESTS_KERNELS(extern, embedding)
#endif
#if defined(TIGON_OPS_EXPERT_PARALLEL_MOE_HPP)
TIGON_TESTS_KERNELS(extern, expert_parallel_moe)
#endif
#if defined(TIGON_OPS_FUSED_ADD_RMS_NORM_HPP)
TIGON_TESTS_KERNELS(extern, fused_add_rms_norm)
#endif
#if defined(TIGON_OPS_GEGLU_HPP)
TIGON_TESTS_KERNELS(extern, geglu)
#endif
#if defined(TIGON_OPS_GROUP_NORM_HPP)
TIGON_TESTS_KERNELS(extern, group_norm)
#endif
#if defined(TIGON_OPS_LAYER_NORM_HPP)
TIGON_TESTS_KERNELS(extern, layer_norm)
#endif
#if defined(TIGON_OPS_LLAMA4_ROPE_HPP)
TIGON_TESTS_KERNELS(extern, llama4_rope)
#endif
#if defined(TIGON_OPS_MHC_COEFFS_HPP)
TIGON_TESTS_KERNELS(extern, mhc_coeffs)
#endif
#if defined(TIGON_OPS_MHC_POST_RES_HPP)
TIGON_TESTS_KERNELS(extern, mhc_post_res)
#endif
#if defined(TIGON_OPS_MHC_PRE_HPP)
TIGON_TESTS_KERNELS(extern, mhc_pre)
#endif
#if defined(TIGON_OPS_MLP_HPP)
TIGON_TESTS_KERNELS(extern, mlp)
#endif
#if defined(TIGON_OPS_MODULATED_RMS_NORM_HPP)
TIGON_TESTS_KERNELS(extern, modulated_rms_norm)
#endif
#if defined(TIGON_OPS_MOE_HPP)
TIGON_TESTS_KERNELS(extern, moe)
#endif
#if defined(TIGON_OPS_MULTI_TOKEN_ATTENTION_HPP)
TIGON_TESTS_KERNELS(extern, multi_token_attention)
#endif
#if defined(TIGON_OPS_NEIGHBORHOOD_ATTENTION_HPP)
TIGON_TESTS_KERNELS(extern, neighborhood_attention)
#endif
#if defined(TIGON_OPS_NEIGHBORHOOD_ATTENTION_LAYER_HPP)
TIGON_TESTS_KERNELS(extern, neighborhood_attention_layer)
#endif
#if defined(TIGON_OPS_POLY_NORM_HPP)
TIGON_TESTS_KERNELS(extern, poly_norm)
#endif
#if defined(TIGON_OPS_QK_NORM_ROPE_HPP)
TIGON_TESTS_KERNELS(extern, qk_norm_rope)
#endif
#if defined(TIGON_OPS_QWEN2VL_MROPE_HPP)
TIGON_TESTS_KERNELS(extern, qwen2vl_mrope)
#endif
#if defined(TIGON_OPS_RELU_SQUARED_HPP)
TIGON_TESTS_KERNELS(extern, relu_squared)
#endif
#if defined(TIGON_OPS_RMS_NORM_HPP)
TIGON_TESTS_KERNELS(extern, rms_norm)
#endif
#if defined(TIGON_OPS_ROPE_HPP)
TIGON_TESTS_KERNELS(extern, rope)
#endif
#if defined(TIGON_OPS_SOFTMAX_HPP)
TIGON_TESTS_KERNELS(extern, softmax)
#endif
#if defined(TIGON_OPS_SPARSEMAX_HPP)
TIGON_TESTS_KERNELS(extern, sparsemax)
#endif
#if defined(TIGON_OPS_SWIGLU_HPP)
TIGON_TESTS_KERNELS(extern, swiglu)
#endif
#if defined(TIGON_OPS_SWIGLU_FUSED_HPP)
TIGON_TESTS_KERNELS(extern, swiglu_fused)
#endif
#if defined(TIGON_OPS_TILED_MLP_HPP)
TIGON_TESTS_KERNELS(extern, tiled_mlp)
#endif
#if defined(TIGON_LOSSES_CROSS_ENTROPY_HPP)
TIGON_TESTS_KERNELS(extern, cross_entropy)
#endif
#if defined(TIGON_LOSSES_CROSS_ENTROPY_DIVERGENCE_HPP)
TIGON_TESTS_KERNELS(extern, cross_entropy_divergence)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_COSINE_DISTILLATION_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_cosine_distillation)
TIGON_TESTS_FEW_ROWS(extern, fused_linear_cosine_distillation)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_CPO_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_cpo)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_CROSS_ENTROPY_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_cross_entropy)
TIGON_TESTS_FEW_ROWS(extern, fused_linear_cross_entropy)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_DPO_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_dpo)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_GRPO_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_grpo)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_JSD_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_jsd)
TIGON_TESTS_FEW_ROWS(extern, fused_linear_jsd)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_JSD_DISTILLATION_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_jsd_distillation)
TIGON_TESTS_FEW_ROWS(extern, fused_linear_jsd_distillation)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_KL_DIV_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_kl_div)
TIGON_TESTS_FEW_ROWS(extern, fused_linear_kl_div)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_KTO_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_kto)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_ORPO_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_orpo)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_PREFERENCE_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_preference)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_scaled_cross_entropy)
TIGON_TESTS_FEW_ROWS(extern, fused_linear_scaled_cross_entropy)
#endif
#if defined(TIGON_LOSSES_FUSED_LINEAR_SIMPO_HPP)
TIGON_TESTS_KERNELS(extern, fused_linear_simpo)
#endif
#if defined(TIGON_LOSSES_GRPO_LOSS_HPP)
TIGON_TESTS_KERNELS(extern, grpo_loss)
#endif
#if defined(TIGON_LOSSES_JSD_HPP)
TIGON_TESTS_KERNELS(extern, jsd)
#endif
#if defined(TIGON_LOSSES_KL_DIV_HPP)
TIGON_TESTS_KERNELS(extern, kl_div)
#endif
#if defined(TIGON_LOSSES_SELECTIVE_LOG_SOFTMAX_HPP)
TIGON_TESTS_KERNELS(extern, selective_log_softmax)
#endif
#if defined(TIGON_LOSSES_SELECTIVE_LOGPROB_HPP)
TIGON_TESTS_KERNELS(extern, selective_logprob)
#endif
#if defined(TIGON_LOSSES_TVD_HPP)
TIGON_TESTS_KERNELS(extern, tvd)
#endif
#if defined(TIGON_LOSSES_VOCAB_PARALLEL_CROSS_ENTROPY_HPP)
TIGON_TESTS_KERNELS(extern, vocab_parallel_cross_entropy)
#endif
#if defined(TIGON_LOSSES_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_HPP)
TIGON_TESTS_KERNELS(extern, vocab_parallel_fused_linear_cross_entropy)
#endif
#if defined(TIGON_LOSSES_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP)
TIGON_TESTS_KERNELS(extern, vocab_parallel_fused_linear_scaled_cross_entropy)
#endif
#endif

#endif  // TIGON_TESTS_SUPPORT_KERNELS_HPP
