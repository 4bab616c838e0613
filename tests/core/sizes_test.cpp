// What the functions say that tell the bytes of a workspace, where the extents are too large to be multiplied: never
// less than one of the arrays that they stand for, so that a door refuses the call.
#include <gtest/gtest.h>

#include <tigon/tigon.hpp>

namespace {

using tigon::bfloat16, tigon::context, tigon::default_backend, tigon::workspace;
using sizes = std::size_t;

/// `bytes` count at least an array of so many bytes, or more than can be had.
template <class... Extent>
testing::AssertionResult hold(sizes bytes, Extent... extents) {
  const double wanted = (1.0 * ... * static_cast<double>(extents));
  if (static_cast<double>(bytes) >= std::min(wanted, static_cast<double>(workspace::most_bytes)))
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << bytes << " bytes for an array of " << wanted;
}

/// An executor with many workers, which runs nothing.
struct many {
  sizes count;
  sizes workers() const { return count; }
  void run(sizes, tigon::task_ref) const {}
};

template <class B, class T>
void check(sizes n, context& ctx) {
  using namespace tigon;
  using A = accumulator_t<T>;
  constexpr sizes a = sizeof(A), t = sizeof(T);
  const sizes workers = ctx.executor().workers();
  SCOPED_TRACE(testing::Message() << n << ", " << workers << " workers");
  for (const sizes few : {sizes{1}, sizes{1000}, n}) {
    SCOPED_TRACE(few);
    // Operators on rows.
    for (const auto& [rows, cols] : {std::pair{n, few}, {few, n}}) {
      EXPECT_TRUE(hold(rms_norm_workspace<B, T>(rows, cols), cols, a));
      EXPECT_TRUE(hold(layer_norm_workspace<B, T>(rows, cols), cols, 2, a));
      EXPECT_TRUE(hold(fused_add_rms_norm_workspace<B, T>(rows, cols), cols, a));
      EXPECT_TRUE(hold(group_norm_workspace<B, T>(rows, cols), rows, a));
      EXPECT_TRUE(hold(dyt_workspace<B, T>(rows, cols), cols, 3, a));
      EXPECT_TRUE(hold(poly_norm_workspace<B, T>(rows), rows, 4, sizeof(double)));
      EXPECT_TRUE(hold(modulated_rms_norm_workspace<B, T>(rows, cols, rows, ctx), cols, a));
      EXPECT_TRUE(hold(attn_res_backward_workspace<B, T>(rows, cols, 8), rows, cols, 2, a));
      EXPECT_TRUE(hold(embedding_workspace<B, T>(rows, cols, 8, ctx), rows, sizeof(sizes)));
      EXPECT_TRUE(hold(embedding_workspace<B, T>(8, rows, cols, ctx), workers, cols, a));
      const attention_options all{.mask = attention_mask::none};
      EXPECT_TRUE(hold(attention_workspace<B, T>(rows, cols, all, workers), workers, cols, a));
      EXPECT_TRUE(hold(attention_backward_workspace<B, T>(rows, cols, all, workers), workers, cols, a));
      EXPECT_TRUE(hold(attention_workspace<B, T>(8, 8, all, workers, cols), workers, cols, a));
      EXPECT_TRUE(hold(attention_backward_workspace<B, T>(8, 8, all, workers, cols), workers, cols, a));
      EXPECT_TRUE(hold(qwen2vl_mrope_workspace<B, T>(rows, cols, ctx), workers, rows, cols, a));
      EXPECT_TRUE(hold(qk_norm_rope_workspace<B, T>(cols, ctx), workers, cols, a));
      EXPECT_TRUE(hold(qk_norm_rope_backward_workspace<B, T>(rows, cols, ctx), cols, 3, a));
      EXPECT_TRUE(hold(tiled_workspace<B, T>(5000, 5000, {rows, cols}), rows, 2, a));
      EXPECT_TRUE(hold(mlp_workspace<B, T>(mlp_pass::recompute, rows, 8, cols, workers), rows, 3, cols, t));
      EXPECT_TRUE(hold(tiled_mlp_backward_workspace<B, T>(4096, rows, cols, 4, workers), std::same_as<T, A> ? 1 : rows,
                       std::same_as<T, A> ? 1 : cols, a));
      const sizes streams = std::min(cols, sizes{8});
      EXPECT_TRUE(hold(mhc_coeffs_workspace<B, T>(8, rows, cols, ctx), workers, cols, cols, a));
      EXPECT_TRUE(hold(mhc_coeffs_backward_workspace<B, T>(rows, 8, cols, 20, {}, ctx), rows, cols, cols, a));
      EXPECT_TRUE(hold(mhc_coeffs_backward_workspace<B, T>(8, 8, streams, rows, {}, ctx), workers, rows, a));
      EXPECT_TRUE(hold(mhc_backward_workspace<B, T>(rows, 8, cols, 20, {}, ctx), 2, rows, cols, cols, a));
      EXPECT_TRUE(hold(mhc_workspace<B, T>(8, rows, 8, ctx), workers, rows, a));
      EXPECT_TRUE(hold(mhc_post_res_backward_workspace<B, T>(rows, 8, ctx), workers, rows, a));
      const moe_shape experts{rows, 8, 8, cols, 8}, wide{8, 8, 8, rows, cols}, few_tokens{8, 8, rows, 8, cols};
      EXPECT_TRUE(hold(moe_workspace<B, T>(moe_pass::forward, experts, workers), rows, 8, sizeof(std::int64_t)));
      EXPECT_TRUE(hold(moe_workspace<B, T>(moe_pass::recompute, wide, workers), rows, 3, t));
      EXPECT_TRUE(hold(moe_workspace<B, T>(moe_pass::backward, wide, workers), cols, 4, a));
      EXPECT_TRUE(hold(moe_workspace<B, T>(moe_pass::inference, few_tokens, workers), rows, sizeof(std::int64_t)));
      EXPECT_TRUE(hold(moe_routing_workspace(rows), rows, sizeof(sizes)));
      EXPECT_TRUE(hold(gemm_pack_bytes<backends::generic, T>(rows, cols), rows, cols, a));
    }
    const neighborhood_attention_layer_options layer{.heads = 8, .seq_len = 8};
    const auto backward = neighborhood_attention_layer_pass::backward;
    EXPECT_TRUE(hold(neighborhood_attention_layer_workspace<B, T>(backward, n, few, layer, workers), n, 4, few, t));
    EXPECT_TRUE(hold(neighborhood_attention_layer_workspace<B, T>(backward, few, n, layer, workers), few, 4, n, t));
    EXPECT_TRUE(hold(neighborhood_attention_layer_numbers(n, layer), n, 58));
    const neighborhood_attention_options window{.kernel_size = n | 1};
    EXPECT_TRUE(hold(neighborhood_attention_workspace<B, T>(few, window, workers, false), workers, n, a));
    EXPECT_TRUE(hold(neighborhood_attention_backward_workspace<B, T>(few, window, workers), few, n, a));
    const heads_view<T> taps(nullptr, n, few, few, 3, 0, 0, 0);
    EXPECT_TRUE(hold(multi_token_attention_workspace<B, T>(1000, taps, {}, workers), n, few, few, 3, a));
    EXPECT_TRUE(hold(multi_token_attention_backward_workspace<B, T>(8, n, taps, {}, workers), workers, 32, n, a));
    EXPECT_TRUE(hold(multi_token_attention_backward_workspace<B, T>(8, 1000, taps, {}, workers), n, few, few, 3, 8));
    EXPECT_TRUE(hold(softmax_workspace<B, T>(n, ctx), workers, n, a));
    EXPECT_TRUE(hold(moe_router_workspace<B, T>(n, ctx), workers, 3, n, a));
    EXPECT_TRUE(hold(sparsemax_workspace<B, T>(n, ctx), workers, n, a));
    EXPECT_TRUE(hold(attn_res_workspace<B, T>(n, ctx), workers, n, a));
    EXPECT_TRUE(hold(gemm_workspace<B, T>(n, few, n, workers), workers == 1 ? 0 : workers));
    // Losses.
    const sizes of_dw = std::same_as<T, A> ? 1 : few;  // sums of dw are kept apart in 16 bits
    EXPECT_TRUE(hold(cross_entropy_workspace<B, T>(n, few, ctx), n, sizeof(double)));
    EXPECT_TRUE(hold(cross_entropy_workspace<B, T>(few, n, ctx), workers, n, a));
    EXPECT_TRUE(hold(cross_entropy_divergence_workspace<B, T>(n, few, ctx), n, sizeof(double)));
    EXPECT_TRUE(hold(cross_entropy_divergence_workspace<B, T>(few, n, ctx), workers, 3, n, a));
    EXPECT_TRUE(hold(kl_div_workspace(n), n, sizeof(double)));
    EXPECT_TRUE(hold(fused_linear_kl_div_workspace<B, T>(n, few, 8, ctx), n, sizeof(double)));
    EXPECT_TRUE(hold(fused_linear_kl_div_workspace<B, T>(8, few, n, ctx), n, of_dw, a));
    EXPECT_TRUE(hold(selective_log_softmax_workspace<B, T>(n), n, sizeof(double)));
    EXPECT_TRUE(hold(grpo_loss_workspace<B, T>(n, few), n, sizeof(double)));
    EXPECT_TRUE(hold(grpo_loss_workspace<B, T>(few, n), n, 3, sizeof(double)));
    EXPECT_TRUE(hold(vocab_parallel_cross_entropy_workspace<B, T>(n, 8, few, {}, ctx), n, few == 1 ? 1 : few, a));
    EXPECT_TRUE(hold(fused_linear_cross_entropy_workspace<B, T>(n, few, 8, ctx), n, sizeof(double)));
    EXPECT_TRUE(hold(fused_linear_cross_entropy_workspace<B, T>(8, few, n, ctx), n, of_dw, a));
    EXPECT_TRUE(hold(fused_linear_scaled_cross_entropy_workspace<B, T>(8, few, n, ctx), n, of_dw, a));
    EXPECT_TRUE(
        hold(vocab_parallel_fused_linear_cross_entropy_workspace<B, T>(n, few, 8, 8, 1, ctx), n, sizeof(double)));
    EXPECT_TRUE(hold(vocab_parallel_fused_linear_cross_entropy_workspace<B, T>(8, few, n, n, 1, ctx), n, of_dw, a));
    EXPECT_TRUE(hold(vocab_parallel_fused_linear_cross_entropy_workspace<B, T>(8, 8, few, few, n, ctx), n, a));
    EXPECT_TRUE(
        hold(vocab_parallel_fused_linear_scaled_cross_entropy_workspace<B, T>(8, few, n, n, 1, ctx), n, of_dw, a));
    EXPECT_TRUE(hold(selective_logprob_workspace<B, T>(n, few, 8, ctx), n, sizeof(double)));
    EXPECT_TRUE(hold(selective_logprob_workspace<B, T>(8, few, n, ctx), n, of_dw, a));
    EXPECT_TRUE(hold(fused_linear_distillation_workspace<B, T>(8, few, n, few, n, ctx), n, of_dw, a));
    EXPECT_TRUE(hold(fused_linear_preference_workspace<B, T>(n, few, 8, 8, 0, ctx), 2, n, few, sizeof(double)));
    EXPECT_TRUE(hold(fused_linear_unpaired_preference_workspace<B, T>(n, few, 8, 8, 0, ctx), n, few, sizeof(double)));
    EXPECT_TRUE(hold(fused_linear_grpo_workspace<B, T>(8, n, 8, few, {}, 0, ctx), n, sizeof(double)));
    EXPECT_TRUE(hold(fused_linear_grpo_workspace<B, T>(8, 8, few, n, {}, 0, ctx), n, of_dw, a));
  }
}

TEST(sizes, of_extents_too_large_to_be_multiplied) {
  for (const sizes n : {sizes{1} << 31, sizes{1} << 32, sizes{1} << 40, sizes{1} << 57, sizes{1} << 61, sizes{1} << 62,
                        sizes{1} << 63, ~sizes{0}})
    for (const sizes workers : {sizes{1}, sizes{3}, sizes{1} << 31}) {
      many executor{workers};
      workspace scratch;
      context ctx(executor, scratch);
      check<default_backend, float>(n, ctx);
      check<default_backend, bfloat16>(n, ctx);
      check<tigon::backends::generic, double>(n, ctx);
      if (HasFailure()) return;
    }
}

TEST(sizes, with_nothing_to_do) {
  using B = default_backend;
  EXPECT_EQ((tigon::cross_entropy_workspace<B, float>(0, 0)), 0u);
  EXPECT_EQ((tigon::fused_linear_cross_entropy_workspace<B, float>(0, 8, 0)) % 64, 0u);
  EXPECT_EQ((tigon::softmax_workspace<B, float>(0)), 0u);
}

}  // namespace
