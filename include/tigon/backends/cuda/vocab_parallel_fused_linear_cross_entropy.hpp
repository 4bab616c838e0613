// Cross entropy of a linear layer's output whose classes are split over ranks, each of which is a GPU.
#ifndef TIGON_BACKENDS_CUDA_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_HPP
#define TIGON_BACKENDS_CUDA_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_HPP

#include <tigon/backends/cuda/cross_entropy.hpp>
#include <tigon/backends/cuda/ranks.hpp>
#include <tigon/backends/cuda/shard_linear.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/ranks/vocab_parallel_fused_linear_cross_entropy_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// The ranks' numbers of a row to its loss, and to what its gradient is made of.
template <bool Capped, bool Weighted, class A, class I>
struct merge_losses {
  rank_messages<A> all;
  labels_of_rows<I> labels;
  const A* weight;  ///< of all classes; null: 1
  loss_scale<A> scale;
  A upstream;  ///< times those of `scale`
  cross_entropy_rows out;
  tigon::detail::cross_entropy_terms<A> without_scale;
  tigon::detail::logits_kind<Capped, A> kind;
  gradient_of_row<A>* to;

  TIGON_DEVICE_INLINE void operator()(std::size_t i) const {
    const I t = labels.target[i];
    if (!labels.in_range(t)) {
      tigon::detail::put_ignored(out, i);
      if (static_cast<std::int64_t>(t) != labels.ignored) out.loss[i] = std::numeric_limits<double>::quiet_NaN();
      return;
    }
    auto terms = without_scale;
    terms.a = static_cast<A>(scale.on_device->main), terms.b = static_cast<A>(scale.on_device->z);
    terms.weight_sum = static_cast<A>(scale.on_device->weight_sum);
    const merged_row<A> row(all, i, kind, out.predicted != nullptr);
    double weighted = 0;
    if constexpr (Weighted)
      for (unsigned r = 0; r < all.ranks; ++r) weighted += merged_row<A>::weighted(all.of(r), i, row.parts.top, kind);
    const A top = static_cast<A>(row.parts.top);
    const A d = top == -std::numeric_limits<A>::infinity() ? std::numeric_limits<A>::quiet_NaN()
                                                           : static_cast<A>(row.parts.rest);
    const auto of_row = terms.of(kind, top, row.own, d, weight == nullptr ? A(1) : weight[t]);
    if (out.predicted != nullptr) out.predicted[i] = row.predicted;
    terms.put_loss(out, i, of_row, static_cast<A>(weighted));
    A up = of_row.token * upstream;
    if (scale.upstream != nullptr) up *= scale.upstream[i * scale.upstream_step];
    to[i] = {top, terms.factor(of_row, up), terms.subtract(up), terms.at_target(of_row, up, kind, row.own)};
  }
};
/// For gradient_of_shard.
template <class A>
struct merged_gradients {
  const gradient_of_row<A>* rows;
  TIGON_DEVICE_INLINE gradient_of_row<A> row(std::size_t i) const { return rows[i]; }
  TIGON_DEVICE_INLINE A own(std::size_t i, A) const { return rows[i].own; }
};

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::vocab_parallel_fused_linear_cross_entropy, backends::cuda> {
  template <class>
  using saved = no_state;
  using options = vocab_parallel_fused_linear_cross_entropy_options;

  /// Bytes of workspace beside those of labels and losses of rows.
  template <backend B, layer_types T>
  static std::size_t workspace_bytes(detail::layer_extents of, std::size_t ranks, std::size_t chunk, const context&,
                                     parameters trained) {
    using A = accumulator_t<T>;
    return workspace::bytes_for<A>(chunk, of.vocab) + gpu::rank_gather<A>::workspace_bytes(ranks, chunk, 5, true) +
           workspace::bytes_for<gpu::gradient_of_row<A>>(chunk) +
           gpu::linear_shard_chunks<B, T>::bytes(of, ranks, chunk, trained);
  }

  /// Everything in one pass. upstream: none, one number, or one a row, in memory of the device.
  template <backend B, layer_types T, token_id I>
  static void forward(const detail::linear_shard_loss<T>& t, std::span<const I> target,
                      const accumulator_t<T>* class_weight, vector_view<const accumulator_t<T>> upstream,
                      cross_entropy_rows out, gpu::loss_scale<accumulator_t<T>> scale, const options& opt,
                      context& ctx) {
    scale.upstream = upstream.data, scale.upstream_step = upstream.size == 1 ? 0 : 1;
    const call<T, I> of{t, target, class_weight, scale, out, opt};
    if (opt.loss.softcap > 0)
      run<B, true, true>(of, ctx);
    else if (opt.loss.label_smoothing > 0)
      run<B, false, true>(of, ctx);
    else
      run<B, false, false>(of, ctx);
  }
  template <backend B, layer_types T, token_id I>
  static void backward(const detail::linear_shard_loss<T>& t, std::span<const I> target,
                       const accumulator_t<T>* class_weight, vector_view<const accumulator_t<T>> upstream,
                       cross_entropy_rows out, gpu::loss_scale<accumulator_t<T>> scale, const options& opt,
                       context& ctx) {
    forward<B, T, I>(t, target, class_weight, upstream, out, scale, opt, ctx);
  }

 private:
  template <layer_types T, token_id I>
  struct call {
    const detail::linear_shard_loss<T>& t;
    std::span<const I> target;
    const accumulator_t<T>* weight;  ///< of all classes; null: 1
    gpu::loss_scale<accumulator_t<T>> scale;
    cross_entropy_rows out;
    const options& opt;
  };

  template <backend B, bool Capped, bool Weighted, layer_types T, token_id I>
  static void run(const call<T, I>& of, context& ctx) {
    using A = accumulator_t<T>;
    using D = typename gpu::linear_chunks<B, T>::D;
    using gradients = gpu::merged_gradients<A>;
    const detail::shard_columns own = of.t.own();
    const std::size_t chunk = of.t.chunk.rows;
    const bool predicts = of.out.predicted != nullptr;
    const unsigned cols = gpu::columns(own.cols), numbers = 3 + Weighted + predicts;
    const A* const own_weight = of.weight == nullptr ? nullptr : of.weight + own.first;
    const auto kind = detail::logits_kind<Capped, A>::of(of.opt.loss.softcap);
    workspace::frame frame(ctx.workspace());
    A* const logits = frame.template take<A>(chunk * own.cols);
    const gpu::rank_gather<A> messages(frame, of.t.comm, chunk, numbers, predicts);
    auto* const rows = frame.template take<gpu::gradient_of_row<A>>(chunk);
    gpu::linear_shard_chunks<B, T> layer(frame, of.t, ctx);
    if constexpr (Weighted)
      gpu::launch(ctx, gpu::sum_class_weights<A>, dim3(1), dim3(1024), own_weight, cols, messages.mine(0));
    detail::for_chunks(of.target.size(), chunk, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, own.cols);
      const gpu::labels_of_shard<I> labels{
          {of.target.data() + begin, of.opt.loss.ignore_index, gpu::columns(of.t.vocab)}, own.first, cols};
      layer.logits(begin, z);
      gpu::each_row_of_logits(ctx,
                              gpu::reduction_of_shard<Capped, Weighted, A, I>{
                                  {z, cols, labels}, own_weight, messages.mine(n), predicts, kind},
                              n);
      const cross_entropy_rows out{of.out.loss + begin, of.out.z_loss + begin,
                                   predicts ? of.out.predicted + begin : nullptr, of.out.token_scaling};
      const gpu::rank_messages<A> all = messages.gather(n);
      gpu::for_each_of(ctx, n,
                       gpu::merge_losses<Capped, Weighted, A, I>{all,
                                                                 labels.all,
                                                                 of.weight,
                                                                 of.scale.from(begin),
                                                                 static_cast<A>(of.opt.upstream),
                                                                 out,
                                                                 {of.opt.loss, {}, out, of.t.vocab},
                                                                 kind,
                                                                 rows});
      if (!of.t.out.any()) return;
      const matrix_view<D> d = layer.gradient_of(z);
      if (cols != 0)
        gpu::each_row_of_logits(ctx,
                                gpu::gradient_of_shard<Capped, Weighted, A, D, I, gradients>{
                                    {z, cols, labels}, d, own_weight, gradients{rows}, kind},
                                n);
      layer.backward(begin, d);
    });
    layer.finish();
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_HPP
