// Cross entropy of logits whose vocabulary is split over ranks, each of which is a GPU.
#ifndef TIGON_BACKENDS_CUDA_VOCAB_PARALLEL_CROSS_ENTROPY_HPP
#define TIGON_BACKENDS_CUDA_VOCAB_PARALLEL_CROSS_ENTROPY_HPP

#include <tigon/backends/cuda/cross_entropy.hpp>
#include <tigon/backends/cuda/ranks.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/ranks/vocab_parallel_cross_entropy_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// The ranks' numbers of a row to its loss, top and rest.
template <class A, class I>
struct merge_shards {
  rank_messages<A> all;
  rank_message<A> mine;
  labels_of_rows<I> labels;
  tigon::detail::smoothing_share<A> share;
  bool smooth, global;
  A of_class;  ///< 1 / K
  A *loss, *top, *rest;

  TIGON_DEVICE_INLINE void operator()(std::size_t i) const {
    const I t = labels.target[i];
    if (!labels.in_range(t)) {
      const bool ignored = static_cast<std::int64_t>(t) == labels.ignored;
      loss[i] = ignored ? A(0) : std::numeric_limits<A>::quiet_NaN();
      top[i] = rest[i] = A(0);
      return;
    }
    const tigon::detail::plain_logits<A> kind;
    const merged_row<A> row(all, i, kind, false);
    const A most = static_cast<A>(row.parts.top), d = static_cast<A>(row.parts.rest);
    const A tail = math::log1p(d), minus_log_p = tail - (row.own - most);
    A value = minus_log_p;
    if (smooth) {
      double sum = 0;  // of s_j - top over the K classes
      if (global)
        for (unsigned r = 0; r < all.ranks; ++r) sum += merged_row<A>::weighted(all.of(r), i, most, kind);
      else
        sum = merged_row<A>::weighted(mine, i, most, kind);
      value = (A(1) - share.target) * minus_log_p + share.target * (tail - static_cast<A>(sum) * of_class);
    }
    loss[i] = value, top[i] = most, rest[i] = d;
  }
};

/// What the gradient of a row is made of, from top and rest.
template <class A>
struct gradient_from_lse {
  const A *upstream, *top, *rest;
  std::size_t step;
  tigon::detail::smoothing_share<A> share;
  TIGON_DEVICE_INLINE gradient_of_row<A> row(std::size_t i) const {
    const A up = upstream[i * step];
    return {top[i], up / (A(1) + rest[i]), up * share.each, A(0)};
  }
  // p_t - 1 cancels where p_t is near 1.
  TIGON_DEVICE_INLINE A own(std::size_t i, A logit) const {
    const A log_p = (logit - top[i]) - math::log1p(rest[i]);
    return upstream[i * step] *
           ((A(1) - share.target) * math::expm1(log_p) + (share.target * math::exp(log_p) - share.each));
  }
};

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::vocab_parallel_cross_entropy, backends::cuda> {
  template <class T>
  using saved = vocab_parallel_statistics<accumulator_t<T>>;

  template <class T>
  static std::size_t workspace_bytes(std::size_t rows, std::size_t ranks,
                                     const vocab_parallel_cross_entropy_options& opt) {
    return gpu::rank_gather<accumulator_t<T>>::workspace_bytes(ranks, rows, numbers(opt), false);
  }

  template <backend B, element T, token_id I>
  static void forward(communicator_ref comm, vocab_shard shard, in_matrix<T> logits, std::span<const I> target,
                      vocab_parallel_results<accumulator_t<T>> to, vocab_parallel_cross_entropy_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t rows = logits.rows;
    if (rows == 0) return;
    const bool smooth = opt.label_smoothing > 0, global = opt.classes == smoothing_classes::global;
    workspace::frame frame(ctx.workspace());
    const gpu::rank_gather<A> messages(frame, comm, rows, numbers(opt), false);
    const gpu::rank_message<A> mine = messages.mine(rows);
    const auto labels = labels_of(shard, logits.cols, target, opt);
    const auto reduce = [&]<bool Weighted>() {
      gpu::each_row_of_logits(
          ctx, gpu::reduction_of_shard<false, Weighted, T, I>{{logits, labels.cols, labels}, nullptr, mine, false, {}},
          rows);
    };
    if (smooth) {
      gpu::launch(ctx, gpu::sum_class_weights<A>, dim3(1), dim3(1024), static_cast<const A*>(nullptr), labels.cols,
                  mine);
      reduce.template operator()<true>();
    } else {
      reduce.template operator()<false>();
    }
    const std::size_t k = global ? shard.vocab : logits.cols;
    const gpu::rank_messages<A> all = messages.gather(rows);
    gpu::for_each_of(ctx, rows,
                     gpu::merge_shards<A, I>{all,
                                             mine,
                                             labels.all,
                                             {opt, shard.vocab, logits.cols},
                                             smooth,
                                             global,
                                             A(1) / static_cast<A>(k),
                                             to.loss.data(),
                                             to.top.data(),
                                             to.rest.data()});
  }

  template <backend B, element T, token_id I>
  static void backward(vocab_shard shard, in_matrix<T> logits, std::span<const I> target,
                       std::span<const accumulator_t<T>> upstream, saved<T> from, matrix_view<T> dlogits,
                       vocab_parallel_cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using of_rows = gpu::gradient_from_lse<A>;
    if (logits.cols == 0) return;
    const auto labels = labels_of(shard, logits.cols, target, opt);
    const of_rows rows{upstream.data(),
                       from.top.data(),
                       from.rest.data(),
                       upstream.size() == 1 ? 0u : 1u,
                       {opt, shard.vocab, logits.cols}};
    const auto run = [&]<bool Weighted>() {
      gpu::each_row_of_logits(ctx,
                              gpu::gradient_of_shard<false, Weighted, T, T, I, of_rows>{
                                  {logits, labels.cols, labels}, dlogits, nullptr, rows, {}},
                              logits.rows);
    };
    opt.label_smoothing > 0 ? run.template operator()<true>() : run.template operator()<false>();
  }

 private:
  static unsigned numbers(const vocab_parallel_cross_entropy_options& opt) {
    return static_cast<unsigned>(detail::vocab_message(opt).kept);
  }
  template <class I>
  static gpu::labels_of_shard<I> labels_of(vocab_shard shard, std::size_t cols, std::span<const I> target,
                                           const vocab_parallel_cross_entropy_options& opt) {
    return {{target.data(), opt.ignore_index, gpu::columns(shard.vocab)}, shard.first, gpu::columns(cols)};
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_VOCAB_PARALLEL_CROSS_ENTROPY_HPP
