// As ops/equivariance_test.cpp, of operators that a layer is made of: support/equivariance.hpp says what holds.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/llama4_rope.hpp>
#include <tigon/ops/mhc_coeffs.hpp>
#include <tigon/ops/mhc_post_res.hpp>
#include <tigon/ops/mhc_pre.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/moe_router.hpp>
#include <tigon/ops/multi_token_attention.hpp>
#include <tigon/ops/neighborhood_attention.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>
#include <tigon/ops/swiglu_fused.hpp>

#include "support/equivariance.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::heads_view, tigon::matrix_view;
using B = usual_backend;

template <class On>
class equivariance_of_layers : public testing::Test {};
TYPED_TEST_SUITE(equivariance_of_layers, usual_pairs, names);

TYPED_TEST(equivariance_of_layers, of_norms) {
  using T = typename TypeParam::element;
  for (const std::size_t size : {1u, 5u})  // rows of a group, which have one scale
    expect_equivariant<T>([=](auto& call) {
      const auto rows_of = [=](auto m) { return decltype(m)(m.data, rows * size, cols); };
      const auto x = rows_of(call.in(size * cols)), y = rows_of(call.out(size * cols));
      const auto dy = rows_of(call.upstream(size * cols)), dx = rows_of(call.gradient(size * cols));
      const auto scale = call.in(), shift = call.in(), dscale = call.gradient(), dshift = call.gradient();
      const auto w = call.parameter(), dw = call.parameter_gradient();
      const auto rstd = call.numbers(size);
      const tigon::modulated_rms_norm_options opt{.group_rows = size};
      tigon::modulated_rms_norm_forward<B>(x, w, scale, shift, y, rstd, opt);
      tigon::modulated_rms_norm_backward<B>(dy, x, w, scale, rstd,
                                            tigon::modulated_rms_norm_gradients{dx, dw, dscale, dshift}, opt);
    });
  for (const std::size_t width : {cols, std::size_t{3001}})  // backward in f64, and not
    expect_equivariant<T>([=](auto& call) {
      const auto x = call.in(width), y = call.out(width), dy = call.upstream(width), dx = call.gradient(width);
      const auto w = call.parameter(3), b = call.parameter(1);
      const auto dw = call.parameter_gradient(3), db = call.parameter_gradient(1);
      const auto rstd = call.numbers(3);
      tigon::poly_norm_forward<B>(x, w, b, y, rstd);
      tigon::poly_norm_backward<B>(dy, x, w, rstd, tigon::norm_gradients{dx, dw, db});
    });
}

TYPED_TEST(equivariance_of_layers, of_gates_and_choices) {
  using T = typename TypeParam::element;
  for (const auto layout : {tigon::gate_layout::halves, tigon::gate_layout::interleaved})
    expect_equivariant<T>([=](auto& call) {
      const auto gate_up = call.in(2 * cols), dgate_up = call.gradient(2 * cols);
      const auto y = call.out(), dy = call.upstream();
      tigon::swiglu_fused_forward<B>(gate_up, y, layout);
      tigon::swiglu_fused_backward<B>(dy, gate_up, dgate_up, layout);
    });
  for (const auto score :
       {tigon::router_score::softmax, tigon::router_score::sigmoid, tigon::router_score::sqrt_softplus})
    expect_equivariant<T>([=](auto& call) {
      constexpr std::size_t k = 5;
      const auto logits = call.in(), dlogits = call.gradient();
      const auto weights = call.out(k), dweights = call.upstream(k);
      const auto bias = call.parameter();
      const auto indices = call.template out<std::int32_t>(k);
      tigon::moe_router_forward<B>(logits, bias, indices, weights, {.score = score});
      tigon::moe_router_backward<B>(dweights, logits, indices, dlogits, {.score = score});
    });
  expect_equivariant<T>([](auto& call) {
    const matrix_view<T> weight(call.parameter(cols * cols).data(), cols, cols);
    const matrix_view<T> dweight(call.parameter_gradient(cols * cols).data(), cols, cols);
    const auto y = call.out(), dy = call.upstream();
    const auto ids = call.labels();
    tigon::embedding_forward<B>(weight, ids, y);
    tigon::embedding_backward<B>(dy, ids, dweight);
  });
}

TYPED_TEST(equivariance_of_layers, of_residual_streams) {
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  constexpr std::size_t n = 3, numbers = 2 * n + n * n;
  expect_equivariant<T>([](auto& call) {
    std::array<T*, 4> v, dv;
    for (auto& block : v) block = call.in().data;
    for (auto& block : dv) block = call.gradient().data;
    const auto blocks = [](std::span<T* const> list) {
      return tigon::blocks_view<T>::of_pointers(list, rows, cols, cols);
    };
    const auto y = call.out(), dy = call.upstream();
    const auto query = call.parameter(), norm = call.parameter();
    const auto dquery = call.parameter_gradient(), dnorm = call.parameter_gradient();
    const auto alpha = call.numbers(v.size()), rstd = call.numbers(v.size());
    tigon::attn_res_forward<B, T>(blocks(v), query, norm, y, alpha, rstd);
    tigon::attn_res_backward<B>(dy, blocks(v), query, norm, {alpha, rstd},
                                tigon::attn_res_gradients{blocks(dv), dquery, dnorm});
  });
  expect_equivariant<T>([](auto& call) {
    const auto x = call.in(n * cols), y = call.out(), dy = call.upstream(), dx = call.gradient(n * cols);
    const auto h = call.template in<A>(n), dh = call.template gradient<A>(n);
    tigon::mhc_pre_forward<B, T>(x, h, y);
    tigon::mhc_pre_backward<B, T>(dy, x, h, {dx, dh});
  });
  expect_equivariant<T>([](auto& call) {
    const auto x = call.in(n * cols), y = call.out(n * cols), dy = call.upstream(n * cols);
    const auto f = call.in(), df = call.gradient(), dx = call.gradient(n * cols);
    const auto h_post = call.template in<A>(n), dh_post = call.template gradient<A>(n);
    const auto h_res = call.template in<A>(n * n), dh_res = call.template gradient<A>(n * n);
    tigon::mhc_post_res_forward<B, T>(x, f, h_post, h_res, y);
    tigon::mhc_post_res_backward<B, T>(dy, x, f, h_post, h_res, {dx, df, dh_post, dh_res});
  });
  expect_equivariant<T>([](auto& call) {
    const auto x = call.in(n * cols), dx = call.gradient(n * cols);
    const matrix_view<T> phi(call.parameter(n * cols * numbers).data(), n * cols, numbers);
    const matrix_view<T> dphi(call.parameter_gradient(n * cols * numbers).data(), n * cols, numbers);
    const auto b = call.parameter(numbers), db = call.parameter_gradient(numbers);
    const auto alpha = call.parameter(3), dalpha = call.parameter_gradient(3);
    const tigon::mhc_coefficients<A> h{call.template out<A>(n), call.template out<A>(n), call.template out<A>(n * n)};
    const tigon::mhc_coefficients<A> dh{call.template upstream<A>(n), call.template upstream<A>(n),
                                        call.template upstream<A>(n * n)};
    const auto mix = call.template out<A>(numbers);
    const auto rstd = call.numbers();
    std::vector<A> history(tigon::mhc_coeffs_history<B, T>(rows, n));
    const tigon::mhc_coeffs_saved<A> saved{mix, rstd, history};
    const tigon::mhc_weights w{phi, b, alpha};
    tigon::mhc_coeffs_forward<B>(x, w, h, saved);
    tigon::mhc_coeffs_backward<B>(dh, x, w, saved, tigon::mhc_coeffs_gradients{dx, dphi, db, dalpha});
  });
}

/// q and k of sequences, what is made of them, and the gradients.
template <class T>
struct queries_and_keys {
  static constexpr std::size_t tokens = 9, heads = 4, kv_heads = 2, d = 18;

  heads_view<T> q, k, q_out, k_out, dq_out, dk_out, dq, dk;

  explicit queries_and_keys(call_of<T>& call)
      : q(of(call.in(size(heads)), heads)),
        k(of(call.in(size(kv_heads)), kv_heads)),
        q_out(of(call.out(size(heads)), heads)),
        k_out(of(call.out(size(kv_heads)), kv_heads)),
        dq_out(of(call.upstream(size(heads)), heads)),
        dk_out(of(call.upstream(size(kv_heads)), kv_heads)),
        dq(of(call.gradient(size(heads)), heads)),
        dk(of(call.gradient(size(kv_heads)), kv_heads)) {}

  static constexpr std::size_t size(std::size_t n) { return tokens * n * d; }
  static heads_view<T> of(matrix_view<T> m, std::size_t n) {
    return heads_view<T>::of_tokens(m.data, rows, tokens, n, d);
  }
  /// One table for all sequences.
  static matrix_view<T> table(call_of<T>& call, std::size_t width) {
    return {call.parameter(tokens * width).data(), tokens, width};
  }
};

TEST(equivariance_of_rotations, of_sequences) {
  using T = float;
  using operands = queries_and_keys<T>;
  constexpr std::size_t d = operands::d;
  expect_equivariant<T>([](auto& call) {
    const operands m(call);
    const auto w_q = call.parameter(d), w_k = call.parameter(d);
    const auto dw_q = call.parameter_gradient(d), dw_k = call.parameter_gradient(d);
    const tigon::rope_tables tables{operands::table(call, d / 2), operands::table(call, d / 2)};
    const tigon::qk_norm_weights w{w_q, w_k};
    tigon::qk_norm_rope_forward<B, T>({m.q, m.k}, w, tables, tigon::qk_heads{m.q_out, m.k_out});
    tigon::qk_norm_rope_backward<B, T>({m.dq_out, m.dk_out}, {m.q, m.k}, w, tables,
                                       tigon::qk_norm_rope_gradients{m.dq, m.dk, dw_q, dw_k});
  });
  expect_equivariant<T>([](auto& call) {
    const operands m(call);
    const auto freqs = operands::table(call, d);
    tigon::llama4_rope_forward<B, T>(m.q, m.k, freqs, m.q_out, m.k_out);
    tigon::llama4_rope_backward<B, T>(m.dq_out, m.dk_out, freqs, m.dq, m.dk);
  });
  expect_equivariant<T>([](auto& call) {
    const operands m(call);
    constexpr std::size_t width = operands::tokens * d / 2;
    const auto tables = [&] {  // of time, height and width: a row for every token
      std::vector<T> out;
      for (int k = 0; k < 3; ++k) {
        const T* one = call.in(width).data;
        out.insert(out.end(), one, one + rows * width);
      }
      return out;
    };
    std::vector<T> cosines = tables(), sines = tables();
    const matrix_view<T> cos(cosines.data(), 3 * rows * operands::tokens, d / 2);
    const matrix_view<T> sin(sines.data(), 3 * rows * operands::tokens, d / 2);
    const tigon::qwen2vl_mrope_options opt{.sections = {2, 3, 4}};
    tigon::qwen2vl_mrope_forward<B, T>(m.q, m.k, cos, sin, m.q_out, m.k_out, opt);
    tigon::qwen2vl_mrope_backward<B, T>(m.dq_out, m.dk_out, cos, sin, m.dq, m.dk, opt);
  });
}

TEST(equivariance_of_scores, of_sequences) {
  using T = float;
  constexpr std::size_t tokens = 9, heads = 4, d = 18;
  const auto of = [](auto m) { return heads_view<T>::of_tokens(m.data, rows, tokens, heads, d); };
  expect_equivariant<T>([=](auto& call) {
    constexpr std::size_t kernel = 5;
    const auto q = of(call.in(tokens * heads * d)), k = of(call.in(tokens * heads * d));
    const auto v = of(call.in(tokens * heads * d)), d_o = of(call.upstream(tokens * heads * d));
    const auto o = of(call.out(tokens * heads * d)), dq = of(call.gradient(tokens * heads * d));
    const auto dk = of(call.gradient(tokens * heads * d)), dv = of(call.gradient(tokens * heads * d));
    const matrix_view<T> probs(call.out(heads * tokens * kernel).data, rows * heads * tokens, kernel);
    const tigon::neighborhood_attention_saved<T> saved{probs, call.numbers(heads * tokens)};
    const tigon::neighborhood_attention_options opt{.kernel_size = kernel};
    tigon::neighborhood_attention_forward<B, T>(q, k, v, o, saved, opt);
    tigon::neighborhood_attention_backward<B, T>(d_o, q, k, v, saved, {dq, dk, dv}, opt);
  });
  for (const bool sparse : {false, true})
    expect_equivariant<T>([=](auto& call) {
      constexpr std::size_t length = 21, taps = 3, outs = 2;
      const auto planes = [](auto m, std::size_t n) {
        return heads_view<T>::of_heads(m.data, rows, n, length, length);
      };
      const auto taps_of = [=](std::span<T> w) { return heads_view<T>::of_heads(w.data(), outs, heads, taps, taps); };
      const auto scores = planes(call.in(heads * length * length), heads);
      const auto probs = planes(call.out(heads * length * length), heads);
      const auto dscores = planes(call.gradient(heads * length * length), heads);
      const auto y = planes(call.out(outs * length * length), outs);
      const auto dy = planes(call.upstream(outs * length * length), outs);
      const auto w = taps_of(call.parameter(outs * heads * taps * taps));
      const auto b = call.parameter(outs);
      const auto dw = taps_of(call.parameter_gradient(outs * heads * taps * taps));
      const auto db = call.parameter_gradient(outs);
      const tigon::multi_token_attention_options opt{.padding = 1, .sparse = sparse};
      tigon::multi_token_attention_forward<B, T>(scores, w, b, y, probs, opt);
      tigon::multi_token_attention_backward<B, T>(dy, w, probs, {dscores, dw, db}, opt);
    });
}

}  // namespace
