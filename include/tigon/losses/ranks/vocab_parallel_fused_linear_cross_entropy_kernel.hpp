// The generic kernel of vocab_parallel_fused_linear_cross_entropy.
#ifndef TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_KERNEL_HPP
#define TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_KERNEL_HPP

#include <tigon/losses/ranks/shard_cross_entropy.hpp>
#include <tigon/losses/ranks/vocab_parallel_fused_linear_cross_entropy_options.hpp>
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>
#include <tigon/losses/softmax/fused_linear_cross_entropy_options.hpp>

namespace tigon {

template <>
struct kernel<op::vocab_parallel_fused_linear_cross_entropy, backends::generic> {
  template <class>
  using saved = no_state;

  /// Everything in one pass over the rows that count. upstream: one number, or one for each of them.
  template <backend B, layer_types T, token_id I>
  static void forward(const detail::linear_shard_loss<T>& t, std::span<const I> target,
                      const accumulator_t<T>* class_weight, vector_view<const accumulator_t<T>> upstream,
                      cross_entropy_rows out, cross_entropy_scale scale, const cross_entropy_options& opt,
                      context& ctx) {
    if (opt.softcap > 0)
      forward_rows<B, true, true, T, I>(t, target, class_weight, upstream, out, scale, opt, ctx);
    else if (opt.label_smoothing > 0)
      forward_rows<B, false, true, T, I>(t, target, class_weight, upstream, out, scale, opt, ctx);
    else
      forward_rows<B, false, false, T, I>(t, target, class_weight, upstream, out, scale, opt, ctx);
  }

  /// The gradients, from logits that are computed again.
  template <backend B, layer_types T, token_id I>
  static void backward(const detail::linear_shard_loss<T>& t, std::span<const I> target,
                       const accumulator_t<T>* class_weight, vector_view<const accumulator_t<T>> upstream,
                       cross_entropy_rows out, cross_entropy_scale scale, const cross_entropy_options& opt,
                       context& ctx) {
    forward<B, T, I>(t, target, class_weight, upstream, out, scale, opt, ctx);
  }

  template <backend B, bool Capped, bool Weighted, layer_types T, token_id I>
  static void forward_rows(const detail::linear_shard_loss<T>& t, std::span<const I> target,
                           const accumulator_t<T>* class_weight, vector_view<const accumulator_t<T>> upstream,
                           cross_entropy_rows out, cross_entropy_scale scale, const cross_entropy_options& opt,
                           context& ctx) {
    using A = accumulator_t<T>;
    using R = row_backend<B>;
    const detail::shard_columns own = t.own();
    workspace::frame frame(ctx.workspace());
    A* logits = frame.template take<A>(t.chunk.rows * own.cols);
    const detail::tiled_rows<A> rows(frame, t.chunk.rows);
    const detail::shard_cross_entropy<R, Capped, Weighted, I, A> shard(frame, t.comm, t.shards, t.chunk.rows,
                                                                       class_weight, opt, out.predicted != nullptr);
    detail::shard_linear<B, T> layer(frame, t, ctx);
    detail::for_chunks(t.kept.n, t.chunk.rows, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, own.cols);
      const std::span<const I> labels = target.subspan(begin, n);
      const cross_entropy_rows part{out.loss + begin, out.z_loss + begin,
                                    out.predicted == nullptr ? nullptr : out.predicted + begin, out.token_scaling};
      layer.logits(begin, z);
      shard.reduce(z, labels.data(), ctx);
      shard.merge(rows, n, labels.data(), part.predicted, ctx);
      detail::tiled_cross_entropy<R, Capped, Weighted, I, A> loss(rows, labels, class_weight, part, scale, opt, t.vocab,
                                                                  ctx);
      loss.columns(own.first, own.cols);
      loss.finish(upstream.size == 1 ? upstream : vector_view<const A>{upstream.data + begin, n});
      if (!t.out.any()) return;
      loss.gradient(0, z);
      layer.backward(begin, z);
    });
    layer.finish();
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_KERNEL_HPP
