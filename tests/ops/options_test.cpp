// The scalar options of operators, a row each: a number that f64 holds may be infinite, 0 or without digits in f32, in
// which it is used. Every door refuses it there before it writes, and takes it in f64.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/ops/adamw.hpp>
#include <tigon/ops/attention.hpp>
#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/mhc_coeffs.hpp>
#include <tigon/ops/mlp.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/moe.hpp>
#include <tigon/ops/moe_router.hpp>
#include <tigon/ops/neighborhood_attention_layer.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rotary_tables.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu_fused.hpp>

#include "support/option_table.hpp"

TIGON_TEST_NO_KERNELS(op::rms_norm, op::fused_add_rms_norm, op::layer_norm, op::group_norm, op::poly_norm,
                      op::modulated_rms_norm, op::qk_norm_rope, op::attn_res, op::mhc_coeffs, op::softmax, op::swiglu,
                      op::swiglu_fused, op::mlp, op::moe, op::moe_router, op::attention, op::neighborhood_attention,
                      op::neighborhood_attention_layer, op::adamw)

namespace {

using namespace tigon::test;
using tigon::absent;
using B = tigon::backends::no_kernels;

template <class T>
class options_of_operators : public testing::Test {};
TYPED_TEST_SUITE(options_of_operators, option_types);

TYPED_TEST(options_of_operators, norms) {
  using T = TypeParam;
  option_table<T> t;
  const auto x = t.in(2, 4);
  const auto w = t.in(4), rstd = t.in(2);
  const auto y = t.out(2, 4), z = t.out(2, 4);
  const auto s = t.out(2), s2 = t.out(2), s6 = t.out(6), dw = t.out(4), db = t.out(4);
  t.row("rms_norm_forward: eps", takes::term, [&](double v) { tigon::rms_norm_forward<B>(x, w, y, s, {.eps = v}); });
  t.row("rms_norm_forward: offset", takes::number,
        [&](double v) { tigon::rms_norm_forward<B>(x, w, y, s, {.offset = v}); });
  t.row("rms_norm_backward: offset", takes::number,
        [&](double v) { tigon::rms_norm_backward<B>(x, x, w, rstd, y, dw, {.offset = v}); });
  t.row("fused_add_rms_norm_forward: eps", takes::term,
        [&](double v) { tigon::fused_add_rms_norm_forward<B>(x, x, w, y, z, s, {.eps = v}); });
  t.row("fused_add_rms_norm_forward: offset", takes::number,
        [&](double v) { tigon::fused_add_rms_norm_forward<B>(x, x, w, y, z, s, {.offset = v}); });
  t.row("fused_add_rms_norm_backward: offset", takes::number, [&](double v) {
    tigon::fused_add_rms_norm_backward<B>(x, x, x, w, rstd, tigon::fused_add_rms_norm_gradients{y, dw}, {.offset = v});
  });
  t.row("layer_norm_forward: eps", takes::term,
        [&](double v) { tigon::layer_norm_forward<B>(x, w, w, y, s, s2, {.eps = v}); });
  t.row("group_norm_forward: eps", takes::term,
        [&](double v) { tigon::group_norm_forward<B>(x, rstd, rstd, y, s.first(1), s2.first(1), {.eps = v}); });
  t.row("poly_norm_forward: eps", takes::term,
        [&](double v) { tigon::poly_norm_forward<B>(x, t.in(3), t.in(1), y, s6, {.eps = v}); });
  t.row("modulated_rms_norm_forward: eps", takes::term,
        [&](double v) { tigon::modulated_rms_norm_forward<B>(x, w, x, x, y, s, {.eps = v}); });
  t.row("modulated_rms_norm_forward: offset", takes::number,
        [&](double v) { tigon::modulated_rms_norm_forward<B>(x, w, x, x, y, s, {.offset = v}); });
  t.row("modulated_rms_norm_backward: offset", takes::number, [&](double v) {
    tigon::modulated_rms_norm_backward<B>(x, x, w, x, rstd, tigon::modulated_rms_norm_gradients{y, dw, z},
                                          {.offset = v});
  });

  const auto q = t.heads(2, 4);
  const auto q_out = t.out_heads(2, 4), k_out = t.out_heads(2, 4);
  const auto angles = tigon::rope_tables{t.in(2, 2), t.in(2, 2)};
  const tigon::qk_norm_weights weights{w, w};
  t.row("qk_norm_rope_forward: eps", takes::term, [&](double v) {
    tigon::qk_norm_rope_forward<B>({q, q}, weights, angles, tigon::qk_heads{q_out, k_out}, {.eps = v});
  });
  t.row("qk_norm_rope_forward: offset", takes::number, [&](double v) {
    tigon::qk_norm_rope_forward<B>({q, q}, weights, angles, tigon::qk_heads{q_out, k_out}, {.offset = v});
  });
  t.row("qk_norm_rope_backward: offset", takes::number, [&](double v) {
    tigon::qk_norm_rope_backward<B>({q, q}, {q, q}, weights, angles,
                                    tigon::qk_norm_rope_gradients{q_out, k_out, dw, db}, {.offset = v});
  });
  const auto blocks = tigon::blocks_view<const T>::stacked(x.data, 2, 2, 4);
  const auto alpha = t.out(4), of_block = t.out(4);
  t.row("attn_res_forward: eps", takes::term,
        [&](double v) { tigon::attn_res_forward<B>(blocks, w, w, y, alpha, of_block, {.eps = v}); });
}

TYPED_TEST(options_of_operators, streams) {
  option_table<TypeParam> t;
  const auto x = t.in(2, 4);
  const auto pre = t.out(2, 2), post = t.out(2, 2), res = t.out(2, 4), mix = t.out(2, 8);
  const auto rstd = t.out(2), history = t.out(tigon::mhc_coeffs_history<B, TypeParam>(2, 2));
  const tigon::mhc_weights w{t.in(4, 8), t.in(8), t.in(3)};
  const auto call = [&](tigon::mhc_coeffs_options o) {
    tigon::mhc_coeffs_forward<B>(x, w, {pre, post, res}, {mix, rstd, history}, o);
  };
  t.row("mhc_coeffs_forward: rms_eps", takes::term, [&](double v) { call({.rms_eps = v}); });
  t.row("mhc_coeffs_forward: pre_eps", takes::number, [&](double v) { call({.pre_eps = v}); });
  t.row("mhc_coeffs_forward: sinkhorn_eps", takes::from_zero, [&](double v) { call({.sinkhorn_eps = v}); });
  t.row("mhc_coeffs_forward: post_mult", takes::number, [&](double v) { call({.post_mult = v}); });
}

TYPED_TEST(options_of_operators, gates_and_softmax) {
  option_table<TypeParam> t;
  const auto x = t.in(2, 4);
  const auto y = t.out(2, 4), z = t.out(2, 4), wide = t.out(2, 8);
  t.row("softmax_forward: scale", takes::above_zero, [&](double v) { tigon::softmax_forward<B>(x, y, {.scale = v}); });
  t.row("softmax_backward: scale", takes::above_zero,
        [&](double v) { tigon::softmax_backward<B>(x, x, y, {.scale = v}); });
  const auto each = [&](const std::string& door, const auto& call) {
    t.row(door + ": gate_multiplier", takes::number, [&](double v) { call({.gate_multiplier = v}); });
    t.row(door + ": down_multiplier", takes::number, [&](double v) { call({.down_multiplier = v}); });
    t.row(door + ": slope", takes::above_zero, [&](double v) { call({.slope = v}); });
    t.row(door + ": up_offset", takes::number, [&](double v) { call({.up_offset = v}); });
  };
  const std::function<void(tigon::swiglu_options)> doors[] = {
      [&](auto o) { tigon::swiglu_forward<B>(x, x, y, o); },
      [&](auto o) { tigon::swiglu_backward<B>(x, x, x, y, z, o); },
      [&](auto o) { tigon::swiglu_fused_forward<B>(t.in(2, 8), y, tigon::gate_layout::halves, o); },
      [&](auto o) { tigon::swiglu_fused_backward<B>(x, t.in(2, 8), wide, tigon::gate_layout::halves, o); }};
  each("swiglu_forward", doors[0]), each("swiglu_backward", doors[1]);
  each("swiglu_fused_forward", doors[2]), each("swiglu_fused_backward", doors[3]);

  // A limit of infinity is none, so that it is no row of the table.
  const auto limited = [&](double v) { doors[0]({.limit = v}); };
  EXPECT_NO_THROW(limited(std::numeric_limits<double>::infinity()));
  if constexpr (t.is_f32)
    for (const double v : {1e39, 1e-46}) EXPECT_TIGON_ERROR(limited(v), argument, "limit is ");
  else
    EXPECT_NO_THROW(limited(1e39));
  // Backward has their product.
  constexpr double small = t.is_f32 ? 1e-25 : 1e-160;
  EXPECT_NO_THROW(doors[1]({.gate_multiplier = small}));
  EXPECT_TIGON_ERROR(doors[1]({.gate_multiplier = small, .down_multiplier = small}), argument,
                     "gate_multiplier down_multiplier is ");
}

TYPED_TEST(options_of_operators, layers) {
  option_table<TypeParam> t;
  using T = TypeParam;
  const auto x = t.in(2, 4);
  const auto y = t.out(2, 4);
  const tigon::mlp_weights<const T> w{t.in(4, 4), t.in(4, 4), t.in(4, 4)};
  t.row("mlp_forward_inference: gate_multiplier", takes::number,
        [&](double v) { tigon::mlp_forward_inference<B>(x, w, y, {.gate_multiplier = v}); });
  t.row("mlp_forward_inference: down_multiplier", takes::number,
        [&](double v) { tigon::mlp_forward_inference<B>(x, w, y, {.down_multiplier = v}); });
  t.row("mlp_forward_inference: slope", takes::above_zero, [&](double v) {
    tigon::mlp_forward_inference<B>(x, w, y, tigon::mlp_options_for<tigon::swiglu_options>{.gate = {.slope = v}});
  });
  const std::vector<std::int32_t> chosen{0, 1};
  const tigon::moe_choices choices{tigon::matrix_view<const std::int32_t>(chosen.data(), 2, 1), t.in(2, 1)};
  const tigon::moe_weights<const T> experts{t.in(16, 4), t.in(8, 4), 2};
  t.row("moe_forward_inference: slope", takes::above_zero, [&](double v) {
    tigon::moe_forward_inference<B>(x, choices, experts, y,
                                    tigon::moe_options_for<tigon::swiglu_options>{.gate = {.slope = v}});
  });
  std::vector<std::int32_t> experts_of(2);
  t.row("moe_router_forward: scale", takes::number, [&](double v) {
    tigon::moe_router_forward<B>(x, absent, tigon::matrix_view<std::int32_t>(experts_of.data(), 2, 1),
                                 y.cols_from(0, 1), {.scale = v});
  });
  t.row("moe_router_backward: scale", takes::number,
        [&](double v) { tigon::moe_router_backward<B>(t.in(2, 1), x, choices.indices, y, {.scale = v}); });

  const auto q = t.heads(2, 4);
  const auto o = t.out_heads(2, 4), dq = t.out_heads(2, 4), dk = t.out_heads(2, 4), dv = t.out_heads(2, 4);
  const auto lse = t.out(2);
  const auto probs = t.out(2, 3);
  t.row("attention_forward: scale", takes::number,
        [&](double v) { tigon::attention_forward<B>(q, q, q, o, lse, {.scale = v}); });
  t.row("attention_forward: softcap", takes::from_zero,
        [&](double v) { tigon::attention_forward<B>(q, q, q, o, lse, {.softcap = v}); });
  t.row("attention_backward: scale", takes::number, [&](double v) {
    tigon::attention_backward<B>(q, q, q, q, {q, t.in(2)}, tigon::attention_gradients{dq, dk, dv}, {.scale = v});
  });
  t.row("attention_backward: softcap", takes::from_zero, [&](double v) {
    tigon::attention_backward<B>(q, q, q, q, {q, t.in(2)}, tigon::attention_gradients{dq, dk, dv}, {.softcap = v});
  });
  t.row("neighborhood_attention_forward: scale", takes::number, [&](double v) {
    tigon::neighborhood_attention_forward<B>(q, q, q, o, {probs, lse}, {.kernel_size = 3, .scale = v});
  });
  t.row("neighborhood_attention_backward: scale", takes::number, [&](double v) {
    tigon::neighborhood_attention_backward<B>(q, q, q, q, {t.in(2, 3), t.in(2)},
                                              tigon::neighborhood_attention_gradients{dq, dk, dv},
                                              {.kernel_size = 3, .scale = v});
  });
  const auto values = t.out(2, 20);
  const auto numbers = t.out(2 * 5);
  const auto layer = [&](tigon::neighborhood_attention_layer_options of) {
    of.seq_len = 2, of.attention.kernel_size = 3;
    tigon::neighborhood_attention_layer_forward<B>(x, {t.in(12, 4), t.in(4, 4), t.in(12), t.in(4), t.in(4), t.in(4)}, y,
                                                   {values, numbers}, of);
  };
  t.row("neighborhood_attention_layer_forward: eps", takes::term, [&](double v) { layer({.eps = v}); });
  t.row("neighborhood_attention_layer_forward: scale", takes::number,
        [&](double v) { layer({.attention = {.scale = v}}); });
}

TYPED_TEST(options_of_operators, products_tables_and_steps) {
  option_table<TypeParam> t;
  using T = TypeParam;
  const auto x = t.in(4, 4);
  const auto y = t.out(4, 4), z = t.out(4, 4);
  t.row("gemm: alpha", takes::number, [&](double v) { tigon::gemm<B>(x, x, y, {.alpha = v}), ++kernel_calls; });
  t.row("gemm: beta", takes::number, [&](double v) { tigon::gemm<B>(x, x, y, {.beta = v}), ++kernel_calls; });
  t.row("gemm_backward: alpha", takes::number,
        [&](double v) { tigon::gemm_backward<B>(x, x, x, y, z, {.alpha = v}), ++kernel_calls; });
  const std::vector<double> f{1, 0.5};
  t.row("fill_rotary_tables: factor", takes::number, [&](double v) {
    tigon::fill_rotary_tables(f, tigon::positions_from{}, y.cols_from(0, 2), z.cols_from(0, 2), v), ++kernel_calls;
  });
  t.row("fill_rotary_pairs: factor", takes::number,
        [&](double v) { tigon::fill_rotary_pairs(f, tigon::positions_from{}, y, v), ++kernel_calls; });

  const auto w = t.out(4), m = t.out(4), square = t.out(4);
  const auto step = [&](tigon::adamw_options o, double decay = 1) {
    const tigon::adamw_parameter<T> list[] = {{w, t.in(4), m, square, {}, decay}};
    (void)tigon::adamw_with_norm<B>(list, 1, o);
  };
  t.row("adamw_with_norm: learning_rate", takes::from_zero, [&](double v) { step({.learning_rate = v}); });
  t.row("adamw_with_norm: beta1", takes::share, [&](double v) { step({.beta1 = v}); });
  t.row("adamw_with_norm: beta2", takes::share, [&](double v) { step({.beta2 = v}); });
  t.row("adamw_with_norm: eps", takes::term, [&](double v) { step({.eps = v}); });
  t.row("adamw_with_norm: weight_decay", takes::from_zero, [&](double v) { step({.weight_decay = v}); });
  t.row("adamw_with_norm: decay", takes::from_zero, [&](double v) { step({}, v); });
  t.row("adamw_with_norm: max_norm", takes::from_zero, [&](double v) { step({.max_norm = v}); });
  t.row("adamw_with_norm: gradient_scale", takes::number, [&](double v) { step({.gradient_scale = v}); });
  // What is made of two of them.
  if constexpr (t.is_f32) {
    EXPECT_TIGON_ERROR(step({.learning_rate = 1e38}), argument, "learning_rate over 1 - beta1^step is 1e+39");
    EXPECT_TIGON_ERROR(step({.learning_rate = 1e20, .weight_decay = 1e20}), argument,
                       "learning_rate weight_decay decay is 1e+40");
  }
}

}  // namespace
