// Kernels of row programs on the model of a device, whose results are compared with those of single numbers. Under
// ThreadSanitizer, without which the model shows little. `block_model_without_*` are the same kernels without what
// makes them right: CMakeLists.txt expects a race of two and wrong numbers of the third.
#include <gtest/gtest.h>

#include <tigon/losses/selective_log_softmax.hpp>
#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/moe_router.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>

#include "on_device.hpp"

namespace {

using namespace tigon::test::on_device;
using test::block_model;
using test::block_model_lacking;
using test::lacking;

template <class B>
numbers softmax(std::size_t rows, std::size_t cols) {
  numbers x = some(rows * cols, 1), dy = some(rows * cols, 2), y(rows * cols, unwritten), dx(rows * cols, unwritten);
  on<B>([&] {
    softmax_forward<B>(matrix(x, cols), matrix(y, cols));
    softmax_backward<B>(matrix(dy, cols), matrix(y, cols), matrix(dx, cols));
  });
  return joined({y, dx});
}

/// Numbers of the first row times `factor`: a large one makes it a row in f64.
template <class B>
numbers rms_norm(std::size_t rows, std::size_t cols, float factor = 1) {
  numbers x = some(rows * cols, 1), dy = some(rows * cols, 2), w = some(cols, 3);
  for (std::size_t j = 0; j < cols; ++j) x[j] *= factor;
  numbers y(rows * cols, unwritten), dx(rows * cols, unwritten), rstd(rows, unwritten), dw(cols, unwritten);
  on<B>([&] {
    rms_norm_forward<B>(matrix(x, cols), w, matrix(y, cols), rstd);
    rms_norm_backward<B>(matrix(dy, cols), matrix(x, cols), w, rstd, matrix(dx, cols), dw);
  });
  return joined({y, rstd, dx, dw});
}

/// A channel a group, two, and a group of so few numbers that it is computed in f64.
template <class B>
numbers group_norm(std::size_t channels, std::size_t groups, std::size_t positions) {
  const std::size_t rows = 2 * channels;
  numbers x = some(rows * positions, 1), dy = some(rows * positions, 2), w = some(channels, 3), b = some(channels, 4);
  numbers y(rows * positions, unwritten), dx(rows * positions, unwritten), mean(2 * groups, unwritten),
      rstd(2 * groups, unwritten);
  numbers dw(channels, unwritten), db(channels, unwritten);
  const group_norm_options opt{.groups = groups};
  on<B>([&] {
    group_norm_forward<B>(matrix(x, positions), w, b, matrix(y, positions), mean, rstd, opt);
    group_norm_backward<B>(matrix(dy, positions), matrix(x, positions), w, mean, rstd,
                           norm_gradients{matrix(dx, positions), dw, db}, opt);
  });
  return joined({y, mean, rstd, dx, dw, db});
}

template <class B>
numbers dyt(std::size_t rows, std::size_t cols) {
  numbers x = some(rows * cols, 1), alpha = some(1, 2), gamma = some(cols, 3), beta = some(cols, 4);
  numbers dy = some(rows * cols, 5), y(rows * cols, unwritten), dx(rows * cols, unwritten), dalpha(1, unwritten);
  numbers dgamma(cols, unwritten), dbeta(cols, unwritten), frozen(rows * cols, unwritten);
  on<B>([&] {
    dyt_forward<B>(matrix(x, cols), alpha, gamma, beta, matrix(y, cols));
    dyt_backward<B>(matrix(dy, cols), matrix(x, cols), alpha, gamma,
                    dyt_gradients{matrix(dx, cols), dalpha, dgamma, dbeta});
    dyt_backward<B>(matrix(dy, cols), matrix(x, cols), alpha, gamma,
                    dyt_gradients{matrix(frozen, cols), absent, absent, absent});
  });
  return joined({y, dx, dalpha, dgamma, dbeta, frozen});
}

/// Numbers of the first row times `factor`: a large one makes it a row in f64.
template <class B>
numbers poly_norm(std::size_t rows, std::size_t cols, float factor) {
  numbers x = some(rows * cols, 1), dy = some(rows * cols, 2), w = some(3, 3), b = some(1, 4);
  for (std::size_t j = 0; j < cols; ++j) x[j] *= factor;
  numbers y(rows * cols, unwritten), dx(rows * cols, unwritten), rstd(3 * rows, unwritten), dw(3, unwritten),
      db(1, unwritten);
  on<B>([&] {
    poly_norm_forward<B>(matrix(x, cols), w, b, matrix(y, cols), rstd);
    poly_norm_backward<B>(matrix(dy, cols), matrix(x, cols), w, rstd, norm_gradients{matrix(dx, cols), dw, db});
  });
  return joined({y, rstd, dx, dw, db});
}

template <class B>
numbers attn_res(std::size_t blocks, std::size_t rows, std::size_t cols) {
  const std::size_t all = blocks * rows * cols;
  numbers v = some(all, 1), query = some(cols, 2), norm = some(cols, 3), dy = some(rows * cols, 4);
  numbers y(rows * cols, unwritten), alpha(rows * blocks, unwritten), rstd(rows * blocks, unwritten),
      dv(all, unwritten);
  numbers dquery(cols, unwritten), dnorm(cols, unwritten);
  const auto from = blocks_view<float>::stacked(v.data(), blocks, rows, cols),
             to = blocks_view<float>::stacked(dv.data(), blocks, rows, cols);
  on<B>([&] {
    attn_res_forward<B, float>(from, query, norm, matrix(y, cols), alpha, rstd);
    attn_res_backward<B, float>(matrix(dy, cols), from, query, norm, {alpha, rstd},
                                attn_res_gradients{to, dquery, dnorm});
  });
  return joined({y, alpha, rstd, dv, dquery, dnorm});
}

template <class B>
numbers qk_norm_rope(std::size_t dim, rotary_pairs pairs, float factor) {
  constexpr std::size_t tokens = 3, heads = 2, kv_heads = 1;
  numbers q = some(tokens * heads * dim, 1), k = some(tokens * kv_heads * dim, 2), w_q = some(dim, 3),
          w_k = some(dim, 4);
  numbers cos = some(tokens * dim / 2, 5), sin = some(tokens * dim / 2, 6), dy_q = some(q.size(), 7),
          dy_k = some(k.size(), 8);
  for (std::size_t j = 0; j < dim; ++j) q[j] *= factor;
  numbers y_q(q.size(), unwritten), y_k(k.size(), unwritten), dq(q.size(), unwritten), dk(k.size(), unwritten),
      dw_q(dim, unwritten), dw_k(dim, unwritten);
  const auto of = [&](numbers& v, std::size_t n) { return heads_view<float>::of_tokens(v.data(), 1, tokens, n, dim); };
  const rope_tables tables{matrix(cos, dim / 2), matrix(sin, dim / 2)};
  const qk_norm_weights w{w_q, w_k};
  const qk_norm_rope_options opt{.pairs = pairs};
  on<B>([&] {
    qk_norm_rope_forward<B, float>({of(q, heads), of(k, kv_heads)}, w, tables,
                                   qk_heads{of(y_q, heads), of(y_k, kv_heads)}, opt);
    qk_norm_rope_backward<B, float>({of(dy_q, heads), of(dy_k, kv_heads)}, {of(q, heads), of(k, kv_heads)}, w, tables,
                                    qk_norm_rope_gradients{of(dq, heads), of(dk, kv_heads), dw_q, dw_k}, opt);
  });
  return joined({y_q, y_k, dq, dk, dw_q, dw_k});
}

/// The experts are in the memory of the host, which checks them before backward.
template <class B>
numbers moe_router(std::size_t tokens, std::size_t experts, std::size_t k, moe_router_options opt) {
  numbers logits = some(tokens * experts, 1), bias = some(experts, 2), dweights = some(tokens * k, 3);
  numbers weights(tokens * k, unwritten), dlogits(tokens * experts, unwritten);
  std::vector<std::int32_t> chosen(tokens * k, -1);
  const matrix_view<std::int32_t> indices(chosen.data(), tokens, k);
  on<B>([&] {
    moe_router_forward<B>(matrix(logits, experts), bias, indices, matrix(weights, k), opt);
    moe_router_backward<B>(matrix(dweights, k), matrix(logits, experts), indices, matrix(dlogits, experts), opt);
  });
  return joined({weights, dlogits, numbers(chosen.begin(), chosen.end())});
}

/// Logits that rise from block to block, so that the maximum changes and is summed apart.
template <class B>
numbers selective_log_softmax(std::size_t rows, std::size_t cols) {
  using K = kernel_for<op::selective_log_softmax, B>;
  numbers logits = some(rows * cols, 1), logp(rows, unwritten), dlogits(rows * cols, unwritten), u = some(rows, 2);
  for (std::size_t i = 0; i < rows; ++i) logits[(i + 1) * cols - 1] = 20;
  array<std::int64_t> column(rows);
  for (std::size_t i = 0; i < rows; ++i) column[i] = i == 1 ? -1 : static_cast<std::int64_t>(i * 7 % cols);
  u[1] = 0;
  array<lse_parts<float>> lse(rows);
  context& ctx = default_context<B>();
  on<B>([&] {
    K::template forward<B, float>(matrix(logits, cols), column.data(), 1.5, logp.data(), lse.data(), ctx);
    K::template backward<B, float>(matrix(logits, cols), lse.data(), {column.data(), u.data()}, {}, 1.5,
                                   matrix(dlogits, cols), ctx);
  });
  numbers rest;
  for (const lse_parts<float>& one : lse) rest.push_back(one.top), rest.push_back(one.rest);
  return joined({logp, rest, dlogits});
}

template <class B>
void expect_group_norm(std::size_t channels, std::size_t groups, std::size_t positions) {
  expect_same(group_norm<B>(channels, groups, positions), group_norm<backends::generic>(channels, groups, positions));
}

TEST(block_model, softmax) {
  for (const std::size_t cols : {1, 2, 37})
    expect_same(softmax<block_model>(3, cols), softmax<backends::generic>(3, cols));
}
TEST(block_model, rms_norm) {
  for (const std::size_t cols : {1, 2, 37})
    for (const float factor : {1.0f, 0x1p50f})
      expect_same(rms_norm<block_model>(3, cols, factor), rms_norm<backends::generic>(3, cols, factor));
}
TEST(block_model, group_norm) {
  expect_group_norm<block_model>(4, 4, 41);
  expect_group_norm<block_model>(4, 2, 41);
  expect_group_norm<block_model>(2, 2, 5);
}
TEST(block_model, dyt) {
  expect_same(dyt<block_model>(3, 37), dyt<backends::generic>(3, 37));
  expect_same(dyt<block_model>(8, 4100), dyt<backends::generic>(8, 4100));
}
TEST(block_model, poly_norm) {
  for (const float factor : {1.0f, 0x1p20f})
    expect_same(poly_norm<block_model>(3, 37, factor), poly_norm<backends::generic>(3, 37, factor));
}
TEST(block_model, attn_res) { expect_same(attn_res<block_model>(6, 2, 70), attn_res<backends::generic>(6, 2, 70)); }
TEST(block_model, qk_norm_rope) {
  for (const rotary_pairs pairs : {rotary_pairs::halves, rotary_pairs::neighbours})
    for (const float factor : {1.0f, 0x1p50f})
      expect_same(qk_norm_rope<block_model>(14, pairs, factor), qk_norm_rope<backends::generic>(14, pairs, factor));
}
TEST(block_model, moe_router) {
  for (const bool normalise : {true, false}) {
    const moe_router_options plain{.normalise = normalise};
    expect_same(moe_router<block_model>(3, 17, 4, plain), moe_router<backends::generic>(3, 17, 4, plain));
    for (const auto score : {router_score::softmax, router_score::sqrt_softplus}) {
      const moe_router_options grouped{.score = score, .normalise = normalise, .groups = 6, .kept_groups = 2};
      expect_same(moe_router<block_model>(3, 18, 4, grouped), moe_router<backends::generic>(3, 18, 4, grouped));
    }
  }
}
TEST(block_model, selective_log_softmax) {
  for (const std::size_t cols : {7, 4100})
    expect_same(selective_log_softmax<block_model>(3, cols), selective_log_softmax<backends::generic>(3, cols));
}

using without_sync = block_model_lacking<lacking::sync>;
TEST(block_model_without_sync, group_norm) { (void)group_norm<without_sync>(4, 4, 41); }
TEST(block_model_without_sync, moe_router) { (void)moe_router<without_sync>(3, 17, 4, {.normalise = false}); }
TEST(block_model_without_sync, attn_res) { (void)attn_res<without_sync>(6, 2, 70); }
using without_shared_arrays = block_model_lacking<lacking::shared_arrays>;
TEST(block_model_without_shared_arrays, selective_log_softmax) {
  expect_same(selective_log_softmax<without_shared_arrays>(3, 7), selective_log_softmax<backends::generic>(3, 7));
}

}  // namespace
