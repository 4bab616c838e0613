// The generic kernel of vocab_parallel_fused_linear_cross_entropy.
#ifndef TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_KERNEL_HPP
#define TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_KERNEL_HPP

#include <tigon/losses/ranks/shard_cross_entropy.hpp>
#include <tigon/losses/ranks/vocab_parallel_fused_linear_cross_entropy_options.hpp>
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>

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

namespace detail {
inline namespace TIGON_ABI {
/// Rows of a chunk of logits.
template <class B, class A>
std::size_t cross_entropy_shard_chunk(std::size_t rows, std::size_t hidden, std::size_t vocab, std::size_t ranks,
                                      const context& ctx) {
  return shard_chunk_rows<A>(B::chunk, rows, hidden, vocab, ranks, ctx);
}

/// What a kernel has of the options: those of the loss; of a device all, because `upstream` is a number of the host.
template <class B>
auto options_of_kernel(vocab_parallel_fused_linear_cross_entropy_options opt, bool backward) {
  if (backward) opt.upstream = 1;
  if constexpr (host_memory<B>)
    return opt.loss;
  else
    return opt;
}

/// The call that forward and backward share. columns: those of every rank.
template <class B, layer_types T, token_id I, class Weight>
void compute_shard_cross_entropy(std::string_view name, const shard_cross_entropy_call<T>& of,
                                 const shard_columns* columns, std::span<const I> targets, Weight weight,
                                 std::size_t chunk, const vocab_parallel_fused_linear_cross_entropy_options& opt,
                                 context& ctx) {
  using A = accumulator_t<T>;
  const linear_layer<T>& head = of.part.layer;
  const vocab_shard shard = of.part.shard;
  const std::size_t rows = head.x.rows, ranks = of.comm.size();
  const call_of_ranks<B> guard;
  workspace::frame frame(ctx.workspace());
  const loss_rows_of<row_backend<B>, A> of_rows(name, frame, targets, shard.vocab, weight, of.to.metrics, opt.loss,
                                                ctx);
  cross_entropy_rows out = of_rows.out;
  out.token_scaling = opt.token_scaling;
  using K = kernel_for<op::vocab_parallel_fused_linear_cross_entropy, B>;
  const auto kept = kept_labels<I>::template of<B>(frame, targets, rows, opt.loss.ignore_index);
  const auto g = kept.template of_kept<A>(frame, of.upstream);
  const linear_shard_loss<T> t{
      of.comm,     columns,
      shard.vocab, shard_chunk_of(kept.rows(), chunk, of.part, ranks, of.gradients.dx.data != nullptr),
      head,        of.gradients,
      kept.rows()};
  const vector_view<const A> upstream{g.data(), g.size()};
  const auto options = options_of_kernel<B>(opt, of.backward);
  if (of.backward)
    return K::template backward<B, T, I>(t, kept.labels(), of_rows.weight, upstream, out, of_rows.scale, options, ctx);
  K::template forward<B, T, I>(t, kept.labels(), of_rows.weight, upstream, out, of_rows.scale, options, ctx);
  spread_results(of_rows.out, rows, kept.rows());
  of_rows.finish(targets, of.to.loss, of.to.metrics, opt.loss);
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_RANKS_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_KERNEL_HPP
