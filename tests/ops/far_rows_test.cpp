// Offsets beyond 32 bits: operators on rows, heads, planes and sequences that are further apart than 2^32 elements have
// the bits of those on dense memory, one operator for each way to go through memory. Rows, lists and vocabularies that
// are longer than that are only read: a page of zeros stands for all of them.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/gemm/gemm.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/kl_div.hpp>
#include <tigon/ops/adamw.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/matmul_int8_int2.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu.hpp>

#include "support/backends.hpp"
#include "support/far_memory.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::bfloat16;
using B = usual_backend;

constexpr std::size_t rows = 13, cols = 83;

TEST(far_rows, of_a_norm) {
  expect_same_bits_far_apart([](far_memory& memory) {
    const auto x = memory.matrix<bfloat16>(rows, cols), y = memory.matrix<bfloat16>(rows, cols);
    const auto dy = memory.matrix<bfloat16>(rows, cols), dx = memory.matrix<bfloat16>(rows, cols);
    const auto w = memory.vector<bfloat16>(cols), dw = memory.vector<bfloat16>(cols);
    const auto rstd = memory.vector<float>(rows);
    tigon::rms_norm_forward<B>(x, w, y, rstd);
    tigon::rms_norm_backward<B>(dy, x, w, rstd, dx, dw);
  });
}

TEST(far_rows, of_rows_on_their_own) {
  expect_same_bits_far_apart([](far_memory& memory) {
    const auto x = memory.matrix<float>(rows, cols), y = memory.matrix<float>(rows, cols);
    const auto dy = memory.matrix<float>(rows, cols), dx = memory.matrix<float>(rows, cols);
    tigon::softmax_forward<B>(x, y);
    tigon::softmax_backward<B>(dy, y, dx);
  });
}

TEST(far_rows, of_a_gate) {
  expect_same_bits_far_apart([](far_memory& memory) {
    const auto gate = memory.matrix<float>(rows, cols), up = memory.matrix<float>(rows, cols);
    const auto y = memory.matrix<float>(rows, cols), dy = memory.matrix<float>(rows, cols);
    const auto dgate = memory.matrix<float>(rows, cols), dup = memory.matrix<float>(rows, cols);
    tigon::swiglu_forward<B>(gate, up, y);
    tigon::swiglu_backward<B>(dy, gate, up, dgate, dup);
  });
}

TEST(far_rows, of_logits) {
  expect_same_bits_far_apart([](far_memory& memory) {
    const auto logits = memory.matrix<float>(rows, cols), dlogits = memory.matrix<float>(rows, cols);
    const auto loss = memory.vector<float>(1), upstream = memory.vector<float>(rows);
    const auto again = memory.matrix<float>(rows, cols);
    std::vector<std::int64_t> target(rows);
    for (std::size_t i = 0; i < rows; ++i) target[i] = static_cast<std::int64_t>(i * 29 % cols);
    tigon::cross_entropy_forward<B>(logits, target, loss, dlogits);
    tigon::cross_entropy_backward<B>(dlogits, upstream, again);
  });
}

TEST(far_rows, of_a_table) {
  expect_same_bits_far_apart([](far_memory& memory) {
    constexpr std::size_t vocab = 31;
    const auto w = memory.matrix<float>(vocab, cols), dw = memory.matrix<float>(vocab, cols);
    const auto y = memory.matrix<float>(rows, cols), dy = memory.matrix<float>(rows, cols);
    std::vector<std::int32_t> ids(rows);
    for (std::size_t i = 0; i < rows; ++i) ids[i] = static_cast<std::int32_t>(i * i * 7 % vocab);
    tigon::embedding_forward<B>(w, ids, y);
    tigon::embedding_backward<B>(dy, ids, dw);
  });
}

TEST(far_rows, of_groups_of_channels) {
  expect_same_bits_far_apart([](far_memory& memory) {
    constexpr std::size_t channels = 6, groups = 2, samples = 3;
    const auto x = memory.matrix<float>(samples * channels, cols), y = memory.matrix<float>(samples * channels, cols);
    const auto dy = memory.matrix<float>(samples * channels, cols), dx = memory.matrix<float>(samples * channels, cols);
    const auto w = memory.vector<float>(channels), b = memory.vector<float>(channels);
    const auto dw = memory.vector<float>(channels), db = memory.vector<float>(channels);
    const auto mean = memory.vector<float>(samples * groups), rstd = memory.vector<float>(samples * groups);
    const tigon::group_norm_options opt{.groups = groups};
    tigon::group_norm_forward<B>(x, w, b, y, mean, rstd, opt);
    tigon::group_norm_backward<B>(dy, x, w, mean, rstd, tigon::norm_gradients{dx, dw, db}, opt);
  });
}

TEST(far_rows, of_heads_that_are_rotated) {
  for (const layout in : {layout::tokens, layout::heads})
    expect_same_bits_far_apart([in](far_memory& memory) {
      constexpr std::size_t batch = 2, tokens = 7, d = 40;
      const auto q = memory.heads<bfloat16>({batch, 4, tokens, d, in}),
                 k = memory.heads<bfloat16>({batch, 2, tokens, d, in});
      const auto to_q = memory.heads<bfloat16>({batch, 4, tokens, d, in});
      const auto to_k = memory.heads<bfloat16>({batch, 2, tokens, d, in});
      const auto cos = memory.matrix<float>(batch * tokens, d / 2), sin = memory.matrix<float>(batch * tokens, d / 2);
      tigon::rope_forward<B, bfloat16>(q, k, cos, sin, to_q, to_k);
      tigon::rope_backward<B, bfloat16>(to_q, to_k, cos, sin, q, k);
    });
}

TEST(far_rows, of_a_product) {
  using tigon::transpose;
  for (const auto& [a_is, b_is] : {std::pair{transpose::no, transpose::no}, {transpose::yes, transpose::yes}})
    expect_same_bits_far_apart([a_is, b_is](far_memory& memory) {
      const auto matrix = [&](std::size_t m, std::size_t n, transpose t) {
        return t == transpose::yes ? memory.matrix<float>(n, m) : memory.matrix<float>(m, n);
      };
      constexpr std::size_t m = 29, n = 37, depth = 601;  // more than a block
      const auto a = matrix(m, depth, a_is), b = matrix(depth, n, b_is), c = memory.matrix<float>(m, n);
      const auto da = matrix(m, depth, a_is), db = matrix(depth, n, b_is);
      tigon::gemm<B>(a, b, c, {.beta = 1, .a = a_is, .b = b_is});
      tigon::gemm_backward<B>(c, a, b, da, db, {.a = a_is, .b = b_is});
    });
}

TEST(far_rows, of_weights_of_two_bits) {
  expect_same_bits_far_apart([](far_memory& memory) {
    constexpr std::size_t quarter = 9, n = 70;
    const auto a = memory.matrix<std::int8_t>(rows, 4 * quarter);
    const auto w = memory.matrix<std::int8_t>(4 * quarter, n), again = memory.matrix<std::int8_t>(4 * quarter, n);
    const auto packed = memory.matrix<std::uint8_t>(quarter, n);
    const auto c = memory.matrix<std::int32_t>(rows, n);
    for (std::size_t i = 0; i < w.rows; ++i)
      for (std::size_t j = 0; j < n; ++j) w.row(i)[j] = static_cast<std::int8_t>((i * 7 + j * 5) % 4 - 1);
    tigon::matmul_int8_int2_pack<B>(w, packed);
    tigon::matmul_int8_int2_unpack<B>(packed, again);
    tigon::matmul_int8_int2<B>(a, packed, c);
  });
}

// More classes than 2^32. Those whose probabilities are 0 add nothing.
TEST(long_rows, of_a_divergence) {
  far_memory memory(true);
  if (!memory.mapped()) GTEST_SKIP() << "the system does not map 2^44 bytes of address space";
  constexpr std::size_t vocab = (std::size_t{1} << 32) + 77, first = (std::size_t{1} << 31) + 5, second = vocab - 5;
  memory.of_zeros(2 * vocab * sizeof(bfloat16));
  bfloat16* const all = reinterpret_cast<bfloat16*>(memory.begin());
  const tigon::matrix_view<bfloat16> log_probs(all, 1, vocab), teacher(all + vocab, 1, vocab);
  teacher.data[first] = bfloat16(0.5f), log_probs.data[first] = bfloat16(-1.f);
  teacher.data[second] = bfloat16(0.5f), log_probs.data[second] = bfloat16(-3.f);
  float loss = -1;
  tigon::kl_div_forward<B, bfloat16>(log_probs, teacher, std::span(&loss, 1), {},
                                     {.reduction = tigon::divergence_reduction::sum});
  EXPECT_NEAR(loss, 2 + std::log(0.5), 1e-6);
}

// More elements of a parameter than 2^32. What adamw writes is no part of this call.
TEST(long_rows, of_gradients) {
  far_memory memory(true);
  if (!memory.mapped()) GTEST_SKIP() << "the system does not map 2^44 bytes of address space";
  constexpr std::size_t size = (std::size_t{1} << 32) + 77;
  memory.of_zeros(4 * size * sizeof(bfloat16));
  bfloat16* const all = reinterpret_cast<bfloat16*>(memory.begin());
  using parameter = tigon::adamw_parameter<bfloat16, bfloat16, bfloat16>;
  const std::vector<parameter> list{
      {.w = {all + size, size}, .g = {all, size}, .m = {all + 2 * size, size}, .v = {all + 3 * size, size}}};
  all[3] = bfloat16(3.f), all[(std::size_t{1} << 31) + 5] = bfloat16(4.f), all[size - 1] = bfloat16(12.f);
  all[size] = bfloat16(1e3f);  // a weight
  EXPECT_EQ(tigon::adamw_norm<B>(list), 13);
}

}  // namespace
