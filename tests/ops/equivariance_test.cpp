// Operators on rows are equivariant, bit for bit: support/equivariance.hpp says how. Others are in
// ops/layer_equivariance_test.cpp and losses/loss_equivariance_test.cpp, for the time of compiling.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/gemm/gemm.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/kl_div.hpp>
#include <tigon/ops/attention.hpp>
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/sparsemax.hpp>
#include <tigon/ops/swiglu.hpp>

#include "support/equivariance.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::heads_view, tigon::matrix_view;

using B = usual_backend;

template <class On>
class equivariance : public testing::Test {};
TYPED_TEST_SUITE(equivariance, usual_pairs, names);

TYPED_TEST(equivariance, of_norms) {
  using T = typename TypeParam::element;
  expect_equivariant<T>([](auto& call) {
    const auto x = call.in(), y = call.out(), dy = call.upstream(), dx = call.gradient();
    const auto w = call.parameter(), dw = call.parameter_gradient();
    const auto rstd = call.numbers();
    tigon::rms_norm_forward<B>(x, w, y, rstd);
    tigon::rms_norm_backward<B>(dy, x, w, rstd, dx, dw);
  });
  expect_equivariant<T>([](auto& call) {
    const auto x = call.in(), r = call.in(), y = call.out(), s = call.out();
    const auto dy = call.upstream(), ds = call.upstream(), dx = call.gradient();
    const auto w = call.parameter(), dw = call.parameter_gradient();
    const auto rstd = call.numbers();
    tigon::fused_add_rms_norm_forward<B>(x, r, w, y, s, rstd);
    tigon::fused_add_rms_norm_backward<B>(dy, ds, s, w, rstd, tigon::fused_add_rms_norm_gradients{dx, dw});
  });
  expect_equivariant<T>([](auto& call) {
    const auto x = call.in(), y = call.out(), dy = call.upstream(), dx = call.gradient();
    const auto w = call.parameter(), b = call.parameter();
    const auto dw = call.parameter_gradient(), db = call.parameter_gradient();
    const auto mean = call.numbers(), rstd = call.numbers();
    tigon::layer_norm_forward<B>(x, w, b, y, mean, rstd);
    tigon::layer_norm_backward<B>(dy, x, w, mean, rstd, tigon::norm_gradients{dx, dw, db});
  });
  expect_equivariant<T>([](auto& call) {
    constexpr std::size_t channels = 6, groups = 2, positions = 23;
    const auto samples = [](auto m) { return decltype(m)(m.data, rows * channels, positions); };
    const auto x = samples(call.in(channels * positions)), dy = samples(call.upstream(channels * positions));
    const auto y = samples(call.out(channels * positions)), dx = samples(call.gradient(channels * positions));
    const auto w = call.parameter(channels), b = call.parameter(channels);
    const auto dw = call.parameter_gradient(channels), db = call.parameter_gradient(channels);
    const auto mean = call.numbers(groups), rstd = call.numbers(groups);
    tigon::group_norm_forward<B>(x, w, b, y, mean, rstd, {.groups = groups});
    tigon::group_norm_backward<B>(dy, x, w, mean, rstd, tigon::norm_gradients{dx, dw, db}, {.groups = groups});
  });
}

TYPED_TEST(equivariance, of_activations) {
  using T = typename TypeParam::element;
  expect_equivariant<T>([](auto& call) {
    const auto x = call.in(), y = call.out(), dy = call.upstream(), dx = call.gradient();
    tigon::softmax_forward<B>(x, y);
    tigon::softmax_backward<B>(dy, y, dx);
  });
  expect_equivariant<T>([](auto& call) {
    const auto x = call.in(), y = call.out(), dy = call.upstream(), dx = call.gradient();
    tigon::sparsemax_forward<B>(x, y);
    tigon::sparsemax_backward<B>(dy, y, dx);
  });
  expect_equivariant<T>([](auto& call) {
    const auto x = call.in(), y = call.out(), dy = call.upstream(), dx = call.gradient();
    tigon::relu_squared_forward<B>(x, y);
    tigon::relu_squared_backward<B>(dy, x, dx);
  });
  expect_equivariant<T>([](auto& call) {
    const auto x = call.in(), y = call.out(), dy = call.upstream(), dx = call.gradient();
    const auto alpha = call.parameter(1), gamma = call.parameter(), beta = call.parameter();
    const auto dalpha = call.parameter_gradient(1), dgamma = call.parameter_gradient();
    const auto dbeta = call.parameter_gradient();
    tigon::dyt_forward<B>(x, alpha, gamma, beta, y);
    tigon::dyt_backward<B>(dy, x, alpha, gamma, tigon::dyt_gradients{dx, dalpha, dgamma, dbeta});
  });
}

TYPED_TEST(equivariance, of_gates) {
  using T = typename TypeParam::element;
  expect_equivariant<T>([](auto& call) {
    const auto gate = call.in(), up = call.in(), y = call.out(), dy = call.upstream();
    const auto dgate = call.gradient(), dup = call.gradient();
    tigon::swiglu_forward<B>(gate, up, y);
    tigon::swiglu_backward<B>(dy, gate, up, dgate, dup);
  });
  expect_equivariant<T>([](auto& call) {
    const auto gate = call.in(), up = call.in(), y = call.out(), dy = call.upstream();
    const auto dgate = call.gradient(), dup = call.gradient();
    tigon::geglu_forward<B>(gate, up, y);
    tigon::geglu_backward<B>(dy, gate, up, dgate, dup);
  });
}

TYPED_TEST(equivariance, of_losses) {
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  expect_equivariant<T>([](auto& call) {
    const auto logits = call.in(), dlogits = call.gradient();
    const auto loss = call.numbers();
    const auto upstream = call.template upstream<A>(1);
    const auto target = call.labels();
    const tigon::cross_entropy_options opt{.reduction = tigon::reduction::none};
    tigon::cross_entropy_forward<B>(logits, target, loss, matrix_view<T>{}, opt);
    tigon::cross_entropy_backward_recompute<B>(logits, target, std::span(upstream.data, rows), dlogits, opt);
  });
  expect_equivariant<T>([](auto& call) {
    const auto student = call.in(), teacher = call.in(), dstudent = call.gradient();
    const auto loss = call.template out<A>(), upstream = call.template upstream<A>();
    const tigon::kl_div_options opt{.reduction = tigon::divergence_reduction::none, .log_target = true};
    tigon::kl_div_forward<B>(student, teacher, loss, matrix_view<T>{}, opt);
    tigon::kl_div_backward<B>(teacher, upstream, dstudent, opt);
  });
}

TEST(equivariance_of_heads, of_sequences) {
  using T = float;
  constexpr std::size_t tokens = 9, heads = 4, kv_heads = 2, d = 18;
  const auto of = [](auto m, std::size_t n) {
    using E = std::remove_reference_t<decltype(*m.data)>;
    return heads_view<E>::of_tokens(m.data, rows, tokens, n, d);
  };
  expect_equivariant<T>([=](auto& call) {
    const auto q = of(call.in(tokens * heads * d), heads), dy = of(call.upstream(tokens * heads * d), heads);
    const auto y = of(call.out(tokens * heads * d), heads), dq = of(call.gradient(tokens * heads * d), heads);
    const matrix_view<T> cos(call.parameter(tokens * d / 2).data(), tokens, d / 2);
    const matrix_view<T> sin(call.parameter(tokens * d / 2).data(), tokens, d / 2);
    tigon::rope_forward<B, T>(q, cos, sin, y);
    tigon::rope_backward<B, T>(dy, cos, sin, dq);
  });
  expect_equivariant<T>([=](auto& call) {
    const auto q = of(call.in(tokens * heads * d), heads), d_o = of(call.upstream(tokens * heads * d), heads);
    const auto k = of(call.in(tokens * kv_heads * d), kv_heads), v = of(call.in(tokens * kv_heads * d), kv_heads);
    const auto o = of(call.out(tokens * heads * d), heads), dq = of(call.gradient(tokens * heads * d), heads);
    const auto dk = of(call.gradient(tokens * kv_heads * d), kv_heads);
    const auto dv = of(call.gradient(tokens * kv_heads * d), kv_heads);
    const auto lse = call.numbers(heads * tokens);
    tigon::attention_forward<B, T>(q, k, v, o, lse);
    tigon::attention_backward<B, T>(d_o, q, k, v, {o, lse}, tigon::attention_gradients{dq, dk, dv});
  });
}

TEST(equivariance_of_products, of_rows) {
  using T = float;
  expect_equivariant<T>([](auto& call) {
    constexpr std::size_t depth = 301;
    const auto a = call.in(depth), da = call.gradient(depth);
    const matrix_view<T> b(call.parameter(depth * cols).data(), depth, cols);
    const matrix_view<T> db(call.parameter_gradient(depth * cols).data(), depth, cols);
    const auto c = call.out(), dc = call.upstream();
    tigon::gemm<B>(a, b, c);
    tigon::gemm_backward<B>(dc, a, b, da, db);
  });
}

}  // namespace
