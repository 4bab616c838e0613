// Offsets beyond 32 bits in heads, planes, lines along an axis and layers: see far_rows_test.cpp.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/ops/attention.hpp>
#include <tigon/ops/moe.hpp>
#include <tigon/ops/multi_token_attention.hpp>
#include <tigon/ops/sparsemax.hpp>

#include "support/backends.hpp"
#include "support/far_memory.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using B = usual_backend;

TEST(far_heads, of_attention) {
  for (const layout in : {layout::tokens, layout::heads})
    expect_same_bits_far_apart([in](far_memory& memory) {
      const heads_shape of_q{2, 4, 21, 24, in}, of_k{2, 2, 21, 24, in};
      const auto q = memory.heads<float>(of_q), o = memory.heads<float>(of_q), d_o = memory.heads<float>(of_q);
      const auto dq = memory.heads<float>(of_q), k = memory.heads<float>(of_k), v = memory.heads<float>(of_k);
      const auto dk = memory.heads<float>(of_k), dv = memory.heads<float>(of_k);
      const auto lse = memory.vector<float>(2 * 4 * 21);
      tigon::attention_forward<B, float>(q, k, v, o, lse);
      tigon::attention_backward<B, float>(d_o, q, k, v, {o, lse}, tigon::attention_gradients{dq, dk, dv});
    });
}

TEST(far_heads, of_a_fused_loss) {
  expect_same_bits_far_apart([](far_memory& memory) {
    constexpr std::size_t rows = 19, hidden = 45, vocab = 41;
    const auto x = memory.matrix<float>(rows, hidden), w = memory.matrix<float>(vocab, hidden);
    const auto dx = memory.matrix<float>(rows, hidden), dw = memory.matrix<float>(vocab, hidden);
    const auto bias = memory.vector<float>(vocab), dbias = memory.vector<float>(vocab), loss = memory.vector<float>(1);
    std::vector<std::int64_t> target(rows);
    for (std::size_t i = 0; i < rows; ++i) target[i] = static_cast<std::int64_t>(i * 29 % vocab);
    tigon::fused_linear_cross_entropy_forward<B, float>({x, w, bias}, target, {loss}, {dx, dw, dbias});
  });
}

TEST(far_heads, of_planes) {
  for (const layout in : {layout::tokens, layout::heads})
    expect_same_bits_far_apart([in](far_memory& memory) {
      const heads_shape of_x{2, 2, 17, 17, in}, of_w{3, 2, 3, 3};
      const auto x = memory.heads<float>(of_x), probs = memory.heads<float>(of_x), dx = memory.heads<float>(of_x);
      const auto y = memory.heads<float>({2, 3, 17, 17, in}), dy = memory.heads<float>({2, 3, 17, 17, in});
      const auto w = memory.heads<float>(of_w), dw = memory.heads<float>(of_w);
      const auto b = memory.vector<float>(3), db = memory.vector<float>(3);
      const tigon::multi_token_attention_options opt{.padding = {1, 1}};
      tigon::multi_token_attention_forward<B, float>(x, w, b, y, probs, opt);
      tigon::multi_token_attention_backward<B, float>(dy, w, probs, {dx, dw, db}, opt);
    });
}

TEST(far_heads, of_lines_along_an_axis) {
  expect_same_bits_far_apart([](far_memory& memory) {
    const auto lines = [&] {
      constexpr std::size_t outer = 2, axis = 9, inner = 35;
      const auto m = memory.matrix<float>(outer * axis, inner);
      return tigon::axis_view<float>(m.data, outer, axis, inner, axis * m.row_stride, m.row_stride);
    };
    const auto x = lines(), y = lines(), dy = lines(), dx = lines();
    tigon::sparsemax_forward<B, float>(x, y);
    tigon::sparsemax_backward<B, float>(dy, y, dx);
  });
}

TEST(far_heads, of_experts) {
  expect_same_bits_far_apart([](far_memory& memory) {
    constexpr std::size_t tokens = 9, experts = 3, hidden = 14, n = 5;
    const auto x = memory.matrix<float>(tokens, hidden), dx = memory.matrix<float>(tokens, hidden);
    const auto y = memory.matrix<float>(tokens, hidden), dy = memory.matrix<float>(tokens, hidden);
    const auto gate_up = memory.matrix<float>(experts * 2 * n, hidden),
               down = memory.matrix<float>(experts * hidden, n);
    const auto dgate_up = memory.matrix<float>(experts * 2 * n, hidden),
               ddown = memory.matrix<float>(experts * hidden, n);
    const auto w = memory.matrix<float>(tokens, 2), dw = memory.matrix<float>(tokens, 2);
    std::vector<std::int32_t> ids(tokens * 2);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 5 % 7 % experts);
    const tigon::moe_choices<std::int32_t, float> choices{tigon::matrix_view<const std::int32_t>(ids.data(), tokens, 2),
                                                          w};
    const tigon::moe_weights<float> of{gate_up, down, experts};
    tigon::moe_saved<float> kept{memory.matrix<float>(tokens * 2, 2 * n)};
    tigon::moe_forward<B, float>(x, choices, of, y, kept);
    tigon::moe_backward<B, float>(dy, x, choices, of, kept,
                                  tigon::moe_gradients<float, float, float>{dx, dgate_up, ddown, dw});
  });
}

}  // namespace
