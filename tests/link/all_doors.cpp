// Every door of the library, forward and backward: compiled with different -m flags for common_symbols.sh, on other
// backends (TIGON_TESTS_LINK_BACKEND), and never run.
#include <tigon/backends/generic/backend.hpp>
#include <tigon/backends/highway/backend.hpp>
#include <tigon/interop/dlpack.hpp>
#include <tigon/tigon.hpp>

#ifndef TIGON_TESTS_LINK_BACKEND
#define TIGON_TESTS_LINK_BACKEND one_vector_a_step
#endif

namespace tigon::backends {
inline namespace TIGON_ABI {
/// The same functions, with one vector where loops have four: code takes time to write without optimisation, and four
/// times as many lambdas to check.
struct one_vector_a_step : highway {
  static constexpr row_tuning row{.unroll = 1};
};
}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace {

template <class T>
struct arguments {
  using A = tigon::accumulator_t<T>;
  tigon::matrix_view<T> x, y, z, u, v;
  tigon::heads_view<T> q, k, w, o, dq, dk, dv;
  tigon::blocks_view<T> blocks, dblocks;
  tigon::axis_view<T> axis, axis_out;
  std::span<T> p, dp, dp2;
  std::span<double> f;
  std::span<A> s, s2;
  tigon::matrix_view<A> m;
  std::span<const std::int64_t> ids;
  std::span<const std::int32_t> ids32;
  tigon::matrix_view<const std::int32_t> experts;
  tigon::matrix_view<std::int32_t> chosen;
  std::span<std::int32_t> tokens;
  std::span<std::byte> bytes;
  tigon::matrix_view<std::int8_t> numbers, weights;
  tigon::matrix_view<std::uint8_t> packed;
  tigon::matrix_view<std::int32_t> sums;
};

template <class B, class T>
void call_all(arguments<T> a, tigon::context& ctx) {
  using tigon::absent;
  namespace t = tigon;

  t::embedding_forward<B>(a.x, a.ids, a.y, {}, ctx);
  t::embedding_backward<B>(a.y, a.ids32, a.x, {}, ctx);
  (void)t::embedding_backward_sparse<B>(a.y, a.ids32, 1, a.tokens, a.x, {}, ctx);
  (void)t::embedding_workspace<B, T>(1, 1, 1, ctx);

  t::rms_norm_forward<B>(a.x, a.p, a.y, a.s, {}, ctx);
  t::rms_norm_forward<B>(a.x, absent, a.y, a.s, {}, ctx);
  t::rms_norm_backward<B>(a.y, a.x, a.p, a.s, a.z, a.dp, {}, ctx);
  t::rms_norm_backward<B>(a.y, a.x, a.p, a.s, a.z, absent, {}, ctx);
  (void)t::rms_norm_workspace<B, T>(1, 1, t::parameters::frozen);

  t::fused_add_rms_norm_forward<B>(a.x, a.u, a.p, a.y, a.z, a.s, {}, ctx);
  t::fused_add_rms_norm_backward<B>(a.y, a.u, a.z, a.p, a.s, t::fused_add_rms_norm_gradients{a.v, a.dp}, {}, ctx);
  (void)t::fused_add_rms_norm_workspace<B, T>(1, 1, t::parameters::frozen);

  t::layer_norm_forward<B>(a.x, a.p, a.dp, a.y, a.s, a.s2, {}, ctx);
  t::layer_norm_backward<B>(a.y, a.x, a.p, a.s, a.s2, t::norm_gradients{a.z, a.dp, a.dp2}, {}, ctx);
  (void)t::layer_norm_workspace<B, T>(1, 1, t::parameters::frozen);

  t::swiglu_forward<B>(a.x, a.u, a.y, {}, ctx);
  t::swiglu_backward<B>(a.y, a.x, a.u, a.z, a.v, {}, ctx);
  t::swiglu_fused_forward<B>(a.x, a.y, t::gate_layout::interleaved, {}, ctx);
  t::swiglu_fused_backward<B>(a.y, a.x, a.z, t::gate_layout::interleaved, {}, ctx);
  t::geglu_forward<B>(a.x, a.u, a.y, {}, ctx);
  t::geglu_backward<B>(a.y, a.x, a.u, a.z, a.v, {}, ctx);

  t::softmax_forward<B>(a.x, a.y, {}, ctx);
  t::softmax_backward<B>(a.y, a.u, a.z, {}, ctx);
  (void)t::softmax_workspace<B, T>(1, ctx);

  t::rope_forward<B>(a.q, a.k, a.x, a.u, a.dq, a.dk, {}, ctx);
  t::rope_backward<B>(a.dq, a.dk, a.x, a.u, a.q, a.k, {}, ctx);
  t::llama4_rope_forward<B>(a.q, a.k, a.x, a.dq, a.dk, {}, ctx);
  t::llama4_rope_backward<B>(a.dq, a.dk, a.x, a.q, a.k, {}, ctx);
  t::qwen2vl_mrope_forward<B>(a.q, a.k, a.x, a.u, a.dq, a.dk, {.sections = {}}, ctx);
  t::qwen2vl_mrope_backward<B>(a.dq, a.dk, a.x, a.u, a.q, a.k, {.sections = {}}, ctx);
  (void)t::qwen2vl_mrope_workspace<B, T>(1, 1, ctx);

  const t::qk_norm_weights weights{a.p, a.dp};
  const t::rope_tables angles{a.x, a.u};
  t::qk_norm_rope_forward<B>({a.q, a.k}, weights, angles, t::qk_heads{a.dq, a.dk}, {}, ctx);
  t::qk_norm_rope_backward<B>({a.dq, a.dk}, {a.q, a.k}, weights, angles,
                              t::qk_norm_rope_gradients{a.o, a.w, a.dp, a.dp2}, {}, ctx);
  (void)t::qk_norm_rope_workspace<B, T>(1, ctx);
  (void)t::qk_norm_rope_backward_workspace<B, T>(1, 1, ctx);
  t::fill_rotary_tables(a.f, t::positions_from{}, a.x, a.u, 1, ctx);
  t::fill_rotary_tables(a.f, t::positions_in{a.ids}, a.x, a.u, 1, ctx);
  t::fill_rotary_tables(a.f, t::multimodal_positions{}, a.x, a.u, 1, ctx);
  t::fill_rotary_pairs(a.f, t::positions_from{}, a.x, 1, ctx);
  t::rotary_frequencies(a.f, 1e4);
  t::rotary_frequencies(a.f, 1e4, t::linear_rotary{2});
  t::rotary_frequencies(a.f, 1e4, t::dynamic_ntk_rotary{2, 8});
  (void)t::rotary_frequencies(a.f, 1e4, t::yarn_rotary{2, 8});
  t::rotary_frequencies(a.f, 1e4, t::llama3_rotary{});
  (void)t::rotary_frequencies(a.f, 1e4, t::long_rotary{a.f, a.f, 2, 8});
  t::rotary_frequencies(a.f, 1e4, t::proportional_rotary{1});
  (void)t::partial_rotary_dim(8, 0.5);

  t::modulated_rms_norm_forward<B>(a.x, a.p, a.u, a.v, a.y, a.s, {}, ctx);
  t::modulated_rms_norm_backward<B>(a.y, a.x, a.p, a.u, a.s, t::modulated_rms_norm_gradients{a.z, a.dp, a.v, a.u}, {},
                                    ctx);
  (void)t::modulated_rms_norm_workspace<B, T>(1, 1, 1, ctx, t::parameters::frozen);
  t::group_norm_forward<B>(a.x, a.p, a.dp, a.y, a.s, a.s2, {}, ctx);
  t::group_norm_backward<B>(a.y, a.x, a.p, a.s, a.s2, t::norm_gradients{a.z, a.dp, a.dp2}, {}, ctx);
  (void)t::group_norm_workspace<B, T>(1, 1, t::parameters::frozen);
  t::poly_norm_forward<B>(a.x, a.p, a.dp, a.y, a.s, {}, ctx);
  t::poly_norm_backward<B>(a.y, a.x, a.p, a.s, t::norm_gradients{a.z, a.dp, a.dp2}, {}, ctx);
  (void)t::poly_norm_workspace<B, T>(1, t::parameters::frozen);
  t::dyt_forward<B>(a.x, a.p, a.dp, absent, a.y, {}, ctx);
  t::dyt_backward<B>(a.y, a.x, a.p, a.p, t::dyt_gradients{a.z, a.dp, a.dp2, absent}, {}, ctx);
  (void)t::dyt_workspace<B, T>(1, 1, t::parameters::frozen);
  t::relu_squared_forward<B>(a.x, a.y, {}, ctx);
  t::relu_squared_backward<B>(a.y, a.x, a.z, {}, ctx);
  t::sparsemax_forward<B>(a.x, a.y, {}, ctx);
  t::sparsemax_forward<B>(a.axis, a.axis_out, {}, ctx);
  t::sparsemax_backward<B>(a.y, a.x, a.z, {}, ctx);
  (void)t::sparsemax_workspace<B, T>(1, ctx);
  t::attn_res_forward<B>(a.blocks, a.p, a.dp, a.y, a.s, a.s2, {}, ctx);
  t::attn_res_backward<B>(a.y, a.blocks, a.p, a.p, {a.s, a.s2}, t::attn_res_gradients{a.dblocks, a.dp, a.dp2}, {}, ctx);
  (void)t::attn_res_workspace<B, T>(1, ctx);
  (void)t::attn_res_backward_workspace<B, T>(1, 1, 1, t::parameters::frozen);
  using A = t::accumulator_t<T>;
  const t::matrix_view<A> c;
  t::mhc_pre_forward<B>(a.x, c, a.y, ctx);
  t::mhc_pre_backward<B>(a.y, a.x, c, t::mhc_pre_gradients<T>{a.z, c}, {}, ctx);
  t::mhc_post_res_forward<B>(a.x, a.u, c, c, a.y, ctx);
  t::mhc_post_res_backward<B>(a.y, a.x, a.u, c, c, t::mhc_post_res_gradients<T>{a.z, a.v, c, c}, {}, ctx);
  const t::mhc_weights streams{a.u, a.p, a.p};
  t::mhc_coeffs_forward<B>(a.x, streams, {c, c, c}, {c, a.s, a.s}, {}, ctx);
  t::mhc_coeffs_backward<B>({c, c, c}, a.x, streams, {c, a.s, a.s}, t::mhc_coeffs_gradients{a.z, a.v, a.dp, a.dp2}, {},
                            ctx);
  const t::mhc_saved<T> kept{{c, c, c}, {c, a.s, a.s}, a.u, a.v};
  const auto copies = [](t::matrix_view<const T>, t::matrix_view<T>) {};
  t::mhc_forward<B>(a.x, streams, copies, a.y, kept, {}, ctx);
  t::mhc_backward<B>(a.y, a.x, streams, copies, kept, t::mhc_gradients{a.z, a.v, a.dp, a.dp2, a.u, a.u}, {}, ctx);
  (void)t::mhc_pre_workspace<B, T>(1, 1, ctx);
  (void)t::mhc_post_res_workspace<B, T>(1, 1, ctx);
  (void)t::mhc_post_res_backward_workspace<B, T>(1, 1, ctx);
  (void)t::mhc_coeffs_history<B, T>(1, 1, 1);
  (void)t::mhc_workspace<B, T>(1, 1, 1, ctx);
  (void)t::mhc_backward_workspace<B, T>(1, 1, 1, 1, {}, ctx);
  t::tiled_mlp_forward<B>(a.x, t::mlp_weights{a.u, a.u, a.u}, a.y, {}, ctx);
  t::tiled_mlp_backward<B>(a.y, a.x, t::mlp_weights{a.u, a.u, a.u}, a.z, t::mlp_weights{a.v, a.v, a.v}, {}, ctx);
  const auto own = [](auto&&...) {};
  t::tiled_forward<B>(a.x, a.y, {}, own, ctx);
  t::tiled_backward<B>(a.y, a.x, a.z, {}, own, ctx);
  t::tiled_backward<B>(a.y, a.x, a.z, {a.u, a.v}, {}, own, ctx);
  (void)t::tiled_workspace<B, T>(1, 1, {std::size_t{1}});
  t::mlp_forward_inference<B>(a.x, t::mlp_weights{a.u, a.u, a.u}, a.y, {}, ctx);
  const t::mlp_weights biased{a.u, a.u, a.u, a.p, a.p, a.p};
  const t::mlp_options_for<t::swiglu_options> with_limit{.gate = {.limit = 7}};
  t::mlp_forward_inference<B>(a.x, biased, a.y, with_limit, ctx);
  t::mlp_backward_recompute<B>(a.y, a.x, biased, a.z, biased, with_limit, ctx);
  (void)t::mlp_workspace<B, T>(t::mlp_pass::recompute, 1, 1, 1, 1, t::parameters::frozen, true);

  t::moe_router_forward<B>(a.x, a.p, a.chosen, a.y, {}, ctx);
  t::moe_router_forward<B>(a.x, absent, a.chosen, a.y, {}, ctx);
  t::moe_router_backward<B>(a.y, a.x, a.chosen, a.z, {}, ctx);
  (void)t::moe_router_workspace<B, T>(1, ctx);
  const t::moe_choices choices{a.experts, a.x};
  const t::moe_weights experts{a.u, a.v, 1};
  t::moe_saved<T> pairs;
  t::moe_routing_forward<B>(a.experts, 1, t::moe_order<std::int32_t>{}, ctx);
  (void)t::moe_routing_workspace(1);
  t::moe_forward<B>(a.x, choices, experts, a.y, pairs, {}, ctx);
  t::moe_forward_inference<B>(a.x, choices, experts, a.y, {}, ctx);
  t::moe_backward<B>(a.y, a.x, choices, experts, pairs, t::moe_gradients{a.z, a.u, a.v, a.x}, {}, ctx);
  t::moe_backward_recompute<B>(a.y, a.x, choices, experts, t::moe_gradients{a.z, a.u, a.v, a.x}, {}, ctx);
  const t::moe_weights biased_experts{a.u, a.v, 1, a.x, a.y};
  const t::moe_gradients of_biased{a.z, a.u, a.v, a.x, a.x, a.y};
  t::moe_forward<B>(a.x, choices, biased_experts, a.y, pairs, t::moe_options_for<t::swiglu_options>{}, ctx);
  t::moe_backward<B>(a.y, a.x, choices, biased_experts, pairs, of_biased, t::moe_options_for<t::geglu_options>{}, ctx);
  (void)t::moe_workspace<B, T>(t::moe_pass::recompute, {1, 1, 1, 1, 1});
  const t::comm::serial one_rank;
  t::expert_parallel_moe_forward<B>(one_rank, a.x, choices, experts, a.y, {}, ctx);
  t::expert_parallel_moe_backward<B>(one_rank, a.y, a.x, choices, experts, t::moe_gradients{a.z, a.u, a.v, a.x}, {},
                                     ctx);
  (void)t::expert_parallel_moe_workspace<B, T>(t::moe_pass::recompute, {1, 1, 1, 1, 1}, 1);

  t::attention_forward<B>(a.q, a.k, a.w, a.o, a.s, {}, ctx);
  t::attention_backward<B>(a.o, a.q, a.k, a.w, {a.o, a.s}, t::attention_gradients{a.dq, a.dk, a.dv}, {}, ctx);
  (void)t::attention_workspace<B, T>(1, 1);
  (void)t::attention_backward_workspace<B, T>(1, 1);
  t::neighborhood_attention_forward<B>(a.q, a.k, a.w, a.o, {a.m, a.s}, {}, ctx);
  t::neighborhood_attention_backward<B>(a.o, a.q, a.k, a.w, {a.m, a.s},
                                        t::neighborhood_attention_gradients{a.dq, a.dk, a.dv}, {}, ctx);
  (void)t::neighborhood_attention_workspace<B, T>(1);
  (void)t::neighborhood_attention_backward_workspace<B, T>(1);
  t::neighborhood_attention_layer_forward<B>(a.x, {a.u, a.u, a.p, a.p, a.p, a.p}, a.y, {a.v, a.s}, {}, ctx);
  t::neighborhood_attention_layer_backward<B>(a.y, a.x, {a.u, a.u, a.p, a.p, a.p, a.p}, {a.v, a.s}, a.z,
                                              {a.v, a.v, a.dp, a.dp, a.dp2, a.dp2}, {}, ctx);
  (void)t::neighborhood_attention_layer_workspace<B, T>(t::neighborhood_attention_layer_pass::backward, 1, 1, {});

  t::multi_token_attention_forward<B>(a.q, a.w, a.p, a.o, a.k, {}, ctx);
  t::multi_token_attention_forward<B>(a.q, a.w, absent, a.o, a.k, {}, ctx);
  t::multi_token_attention_backward<B>(a.o, a.w, a.k, t::multi_token_attention_gradients{a.dq, a.dk, a.dp}, {}, ctx);
  (void)t::multi_token_attention_workspace<B, T>(1, a.w);
  (void)t::multi_token_attention_backward_workspace<B, T>(1, 1, a.w);

  t::gemm<B>(a.x, a.u, a.y, a.p, t::no_epilogue{}, {}, ctx);
  t::gemm<B>(a.x, t::gemm_pack<B, T>(a.u, a.bytes), a.y, {}, ctx);
  t::gemm_backward<B>(a.y, a.x, a.u, a.z, a.v, {}, ctx);
  (void)t::gemm_workspace<B, T>(1, 1, 1);
  (void)t::gemm_packed_workspace<B, T>(1, 1, 1);
  (void)t::gemm_backward_workspace<B, T>(1, 1, 1);
  t::matmul_int8_int2<B>(a.numbers, a.packed, a.sums, ctx);
  t::matmul_int8_int2_pack<B>(a.weights, a.packed, ctx);
  t::matmul_int8_int2_unpack<B>(a.packed, a.weights, ctx);
  (void)t::matmul_int8_int2_workspace<B>(1, 1, 1);

  t::cross_entropy_forward<B>(a.x, a.ids, a.s, a.y, {}, a.p, {}, ctx);
  t::cross_entropy_backward<B>(a.y, a.s, a.z, ctx);
  t::cross_entropy_backward_recompute<B>(a.x, a.ids, a.s, a.y, {}, a.p, ctx);
  (void)t::cross_entropy_workspace<B, T>(1, 1, ctx);
  t::cross_entropy_tvd_forward<B>(a.x, a.ids, a.u, {a.s}, a.y, {}, a.p, ctx);
  t::cross_entropy_jsd_forward<B>(a.x, a.ids, a.u, {a.s}, a.y, {}, a.p, ctx);
  (void)t::cross_entropy_divergence_workspace<B, T>(1, 1, ctx);
  const t::linear_layer layer{a.x, a.u, a.p};
  t::fused_linear_cross_entropy_forward<B>(layer, a.ids, {a.s}, {a.y, a.z, a.dp}, {.token_scaling = true}, absent, {},
                                           ctx);
  t::fused_linear_cross_entropy_backward<B>(layer, a.ids32, a.s, {a.y, a.z}, {}, a.p, ctx);
  (void)t::fused_linear_cross_entropy_workspace<B, T>(1, 1, 1, ctx, t::parameters::frozen);
  const t::adamw_parameter<T> parameters[1] = {{a.p, a.p, a.s, a.s2}};
  (void)t::adamw<B>(parameters, {}, ctx);
  (void)t::adamw_norm<B>(parameters, {}, ctx);
  (void)t::adamw_with_norm<B>(parameters, 1, {}, ctx);
  (void)t::adamw_workspace(1, 1);
  if constexpr (!std::same_as<T, double>) {
    const t::adamw_parameter<float, T, t::bfloat16, t::float16> masters[1] = {};
    (void)t::adamw<B>(masters, {}, ctx);
    using types = t::linear_types<T, float, t::float16>;
    const t::matrix_view<float> w;
    const t::matrix_view<t::float16> dw;
    t::fused_linear_cross_entropy_forward<B>(t::linear_layer<types>{a.x, w}, a.ids, {a.s}, {a.y, dw}, {}, absent, {},
                                             ctx);
  }
}

template <class B, class T>
void call_losses(arguments<T> a, tigon::context& ctx) {
  using A = tigon::accumulator_t<T>;
  using tigon::absent;
  namespace t = tigon;
  const t::matrix_view<const std::int32_t> ids;
  const t::packed_weights<T> packed;
  const t::matrix_view<A> logp;
  const std::span<t::lse_parts<A>> lse;
  const std::span<const std::uint8_t> desirable;
  t::comm::serial alone;

  t::jsd_forward<B>(a.x, a.y, a.s, a.z, {}, a.ids, ctx);
  t::jsd_backward<B>(a.x, a.s, a.z, ctx);
  t::kl_div_forward<B>(a.x, a.y, a.s, a.z, {}, ctx);
  t::kl_div_backward<B>(a.x, a.s, a.z, {}, ctx);
  t::kl_div_teacher_backward<B>(a.x, a.y, a.s, a.z, {}, ctx);
  t::tvd_forward<B>(a.x, a.y, a.s, a.z, {}, a.ids, ctx);
  t::tvd_backward<B>(a.x, a.y, a.s, a.z, {}, absent, ctx);
  t::tvd_teacher_backward<B>(a.x, a.y, a.s, a.z, {}, absent, ctx);
  t::selective_log_softmax_forward<B>(a.x, ids, logp, {}, absent, lse, ctx);
  t::selective_log_softmax_backward<B>(a.x, ids, lse, logp, a.y, {}, absent, ctx);
  t::grpo_loss_forward<B>(a.x, {}, a.s, lse, {}, {}, ctx);
  t::grpo_loss_backward<B>(a.x, {}, lse, a.s, a.y, {}, ctx);
  t::vocab_parallel_cross_entropy_forward<B>(alone, a.x, {}, a.ids, {a.s, a.s2, a.s2}, {}, ctx);
  t::vocab_parallel_cross_entropy_backward<B>(a.x, {}, a.ids32, a.s, {a.s2, a.s2}, a.y, {}, ctx);

  const t::linear_layer<T> layer{a.x, a.u, a.p, packed}, teacher{.x = a.v, .w = a.v};
  const t::linear_gradients gradients{a.y, a.z, a.dp};
  t::selective_logprob_forward<B>(layer, a.ids, a.s, lse, {}, ctx);
  t::selective_logprob_backward<B>(layer, a.ids, a.s, lse, gradients, {}, ctx);
  t::fused_linear_grpo_forward<B>(layer, {}, {a.s}, gradients, {}, {}, {}, ctx);
  t::fused_linear_backward<t::op::fused_linear_grpo, B>(t::saved_gradients{a.x, a.u, a.p}, A(1), gradients, ctx);
  t::fused_linear_dpo_forward<B>(layer, {ids}, {a.s}, gradients, {}, {}, ctx);
  t::fused_linear_backward<t::op::fused_linear_dpo, B>(t::saved_gradients{a.x, a.u, a.p}, A(1), gradients, ctx);
  t::fused_linear_orpo_forward<B>(layer, {ids}, {a.s}, gradients);
  t::fused_linear_cpo_forward<B>(layer, ids, {a.s}, gradients);
  t::fused_linear_simpo_forward<B>(layer, ids, {a.s}, gradients);
  t::fused_linear_kto_forward<B>(layer, {ids, desirable}, {}, {a.s}, gradients, {}, {}, ctx);
  t::fused_linear_backward<t::op::fused_linear_kto, B>(t::saved_gradients{a.x, a.u, a.p}, A(1), gradients, ctx);

  t::fused_linear_scaled_cross_entropy_forward<B>(layer, a.ids, {}, gradients, {}, {}, ctx);
  t::fused_linear_scaled_cross_entropy_backward<B>(layer, a.ids, {}, gradients, {}, ctx);
  const t::linear_shard shard{layer, t::vocab_shard{0, 1}};
  t::vocab_parallel_fused_linear_cross_entropy_forward<B>(alone, shard, a.ids, {a.s}, gradients, {}, a.p, ctx);
  t::vocab_parallel_fused_linear_cross_entropy_backward<B>(alone, shard, a.ids, a.s, gradients, {}, a.p, ctx);
  (void)t::vocab_parallel_fused_linear_cross_entropy_workspace<B, T>(1, 1, 1, 1, 1, ctx);
  t::vocab_parallel_fused_linear_scaled_cross_entropy_forward<B>(alone, shard, a.ids, {}, gradients, {}, {}, ctx);
  t::vocab_parallel_fused_linear_scaled_cross_entropy_backward<B>(alone, shard, a.ids, {}, gradients, {}, ctx);
  (void)t::vocab_parallel_fused_linear_scaled_cross_entropy_workspace<B, T>(1, 1, 1, 1, 1, ctx);
  t::fused_linear_kl_div_forward<B>(layer, a.x, a.ids, a.m, gradients, {}, ctx);
  t::fused_linear_kl_div_backward<B>(layer, a.x, absent, a.s, gradients, {}, ctx);
  t::fused_linear_jsd_forward<B>(layer, a.x, a.ids, a.s, gradients, {}, ctx);
  t::fused_linear_jsd_forward<B>(layer, teacher, a.ids, a.s, gradients, {}, ctx);
  t::fused_linear_jsd_backward<B>(layer, teacher, absent, 1, gradients, {}, ctx);
  t::fused_linear_jsd_distillation_forward<B>(layer, teacher, a.ids, {}, gradients, {.beta = 0.5}, ctx);
  t::fused_linear_cosine_distillation_forward<B>(layer, teacher, a.ids, {}, gradients, {.beta = 0.5}, ctx);
}

template <class B, class T>
void call_all() {
  tigon::thread_pool pool(2);
  tigon::workspace scratch;
  tigon::context ctx(pool, scratch);
  call_all<B>(arguments<T>{}, ctx);
  call_all<B>(arguments<T>{}, tigon::default_context());
  call_losses<B>(arguments<T>{}, ctx);
}

/// Views of what other libraries own.
template <class T>
void views_of_tensors(const tigon::interop::dl_managed_tensor_versioned& tensor) {
  namespace i = tigon::interop;
  if (!i::dlpack_holds<T>(tensor)) return;
  (void)i::to_dlpack(i::matrix_from_dlpack<const T>(tensor)).tensor();
  (void)i::to_dlpack(i::span_from_dlpack<T>(tensor)).tensor();
  (void)i::to_dlpack(i::heads_from_dlpack<T>(tensor)).tensor();
}

}  // namespace

// What is shared in one of these is shared by every backend and type: a name lacks the instruction set because its
// template has neither backend nor engine among its arguments; then the element type alone tells its symbols apart.
void TIGON_TESTS_LINK_NAME() {
  views_of_tensors<tigon::bfloat16>({});
#ifdef TIGON_TESTS_ALL_TYPES
  call_all<tigon::backends::one_vector_a_step, float>();
  call_all<tigon::backends::one_vector_a_step, tigon::float16>();
  call_all<tigon::backends::generic, double>();
#endif
  call_all<tigon::backends::TIGON_TESTS_LINK_BACKEND, tigon::bfloat16>();  // and inside of it float
}
