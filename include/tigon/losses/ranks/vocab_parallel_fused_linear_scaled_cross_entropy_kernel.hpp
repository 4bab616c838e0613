// The generic kernel of vocab_parallel_fused_linear_scaled_cross_entropy.
#ifndef TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_KERNEL_HPP
#define TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_KERNEL_HPP

#include <tigon/losses/ranks/shard_scaled_cross_entropy.hpp>
#include <tigon/losses/ranks/vocab_parallel_fused_linear_scaled_cross_entropy_options.hpp>
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>

namespace tigon {

template <>
struct kernel<op::vocab_parallel_fused_linear_scaled_cross_entropy, backends::generic> {
  template <class>
  using saved = no_state;

  /// Results and gradients in one pass over the rows that count.
  template <backend B, layer_types T, token_id I>
  static void forward(const detail::linear_shard_loss<T>& t, std::span<const I> target,
                      detail::scaled_cross_entropy_rows<accumulator_t<T>> rows,
                      fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t cols = t.own().cols;
    workspace::frame frame(ctx.workspace());
    A* logits = frame.template take<A>(t.chunk.rows * cols);
    const detail::shard_scaled_cross_entropy<row_backend<B>, I, A> shard(frame, t.comm, t.shards, t.chunk.rows, opt);
    detail::shard_linear<B, T> layer(frame, t, ctx);
    detail::for_chunks(t.kept.n, t.chunk.rows, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, cols);
      const I* labels = target.data() + begin;
      layer.logits(begin, z);
      shard.reduce(z, labels, ctx);
      shard.merge(rows.from(begin), n, labels, ctx);
      if (!t.out.any()) return;
      shard.gradient(z, labels, rows.from(begin), ctx);
      layer.backward(begin, z);
    });
    layer.finish();
  }

  /// The gradients, from logits and sums that are computed again.
  template <backend B, layer_types T, token_id I>
  static void backward(const detail::linear_shard_loss<T>& t, std::span<const I> target,
                       detail::scaled_cross_entropy_rows<accumulator_t<T>> rows,
                       fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    forward<B, T, I>(t, target, rows, opt, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_KERNEL_HPP
