// Negative log-likelihood and entropy of a linear layer's output whose classes are split over ranks, each of which is a
// GPU.
#ifndef TIGON_BACKENDS_CUDA_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP
#define TIGON_BACKENDS_CUDA_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP

#include <tigon/backends/cuda/ranks.hpp>
#include <tigon/backends/cuda/shard_linear.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/ranks/vocab_parallel_fused_linear_scaled_cross_entropy_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// The part of a row that a rank has, with s in units of the temperature: its largest logit, the sum below it, the
/// label's logit, and as number `weighted` sum_j exp(s_j - top) (s_j - top).
template <class A, class I>
struct scaled_reduction_of_shard : rows_of_shard<A, I> {
  using rows_of_shard<A, I>::logits;
  static constexpr row_passes passes = row_passes::reduces;

  rank_message<A> to;
  tempered_powers<exponentials::fast, A> powers;

  template <int N>
  bool begins_accesses() const {
    return gpu::begins_accesses<N>(logits.data, logits.row_stride);
  }

  template <class Part, class Label>
  TIGON_DEVICE_INLINE void row(Part& part, std::size_t i, const Label& label, no_state) const {
    const auto put = [&](number_of_rank k, A v) { to.number(static_cast<unsigned>(k), i) = v; };
    A top(0), rest(0), sum[2] = {A(0), A(0)};
    if (label.counts) {
      top = largest_of_row<A>(part, -std::numeric_limits<A>::infinity());
      const A from = top == -std::numeric_limits<A>::infinity() ? std::numeric_limits<A>::lowest() : top;
      part.each([&](unsigned, const auto& e) {
        numbers_of<A>(e, [&](int, A v) {
          const A p = powers.of(v - from);
          sum[0] += p, sum[1] += p == A(0) ? A(0) : p * ((v - from) * powers.inverse);
        });
      });
      part.template reduce<add>(sum);
      rest = sum[0] - A(1);
      if (rest < A(1)) rest = rest_of_row<A>(part, powers, from);
    }
    if (!part.first()) return;
    put(number_of_rank::top, top), put(number_of_rank::rest, rest);
    put(number_of_rank::own, label.owned ? label.own : A(0)), put(number_of_rank::weighted, sum[1]);
  }
};

/// What the gradient of a row needs of all ranks' numbers.
template <class A>
struct scaled_sums_of_row {
  A top, rest;
  A u;      ///< sum_j p_j (s_j - top)
  A below;  ///< s - top at the label
  A nll;
};
/// The ranks' numbers of a row to its results and to that.
template <class A, class I>
struct merge_scaled_losses {
  rank_messages<A> all;
  labels_of_rows<I> labels;
  tigon::detail::scaled_cross_entropy_rows<A> rows;
  A inverse;  ///< 1 / temperature
  scaled_sums_of_row<A>* to;

  TIGON_DEVICE_INLINE void operator()(std::size_t i) const {
    const I t = labels.target[i];
    if (!labels.in_range(t)) {
      const bool ignored = static_cast<std::int64_t>(t) == labels.ignored;
      const A none = ignored ? A(0) : std::numeric_limits<A>::quiet_NaN();
      return rows.put(i, none, none, none);
    }
    const double scale = static_cast<double>(inverse);
    const merged_row<A> row(all, i, tigon::detail::logits_times{scale}, false);
    double moment = 0;  // sum_j exp(s_j - top) (s_j - top)
    for (unsigned r = 0; r < all.ranks; ++r) {
      const rank_message<A> of = all.of(r);
      const auto number = [&](number_of_rank k) { return static_cast<double>(of.number(static_cast<unsigned>(k), i)); };
      const double below = (number(number_of_rank::top) - row.parts.top) * scale, p = math::exp(below);
      if (!(p == 0)) moment += p * (number(number_of_rank::weighted) + below * (number(number_of_rank::rest) + 1));
    }
    scaled_sums_of_row<A> sums;
    sums.top = static_cast<A>(row.parts.top);
    sums.rest = sums.top == -std::numeric_limits<A>::infinity() ? std::numeric_limits<A>::quiet_NaN()
                                                                : static_cast<A>(row.parts.rest);
    sums.u = static_cast<A>(moment) / (A(1) + sums.rest);
    sums.below = (row.own - sums.top) * inverse;
    const A tail = math::log1p(sums.rest);
    sums.nll = tail - sums.below;
    to[i] = sums;
    rows.put(i, sums.nll, tail - sums.u, sums.top * inverse + tail);
  }
};

/// Gradients of this rank's columns. D may lie where the rows of logits begin.
template <class A, class D, class I>
struct scaled_gradient_of_shard : rows_of_shard<A, I> {
  using rows_of_shard<A, I>::logits;
  static constexpr row_passes passes = sizeof(D) == sizeof(A) ? row_passes::maps : row_passes::several;

  matrix_view<D> dlogits;
  tigon::detail::scaled_cross_entropy_rows<A> rows;
  tempered_powers<exponentials_for<D>, A> powers;
  const scaled_sums_of_row<A>* sums;

  template <int N>
  bool begins_accesses() const {
    return gpu::begins_accesses<N>(logits.data, logits.row_stride) &&
           gpu::begins_accesses<N>(dlogits.data, dlogits.row_stride);
  }

  template <class Part, class Label>
  TIGON_DEVICE_INLINE void row(Part& part, std::size_t i, const Label& label, no_state) const {
    if (!label.counts) return part.clear(dlogits.row(i));
    const scaled_sums_of_row<A> of = sums[i];
    const A top = of.top, u = of.u, inverse = powers.inverse, factor = inverse / (A(1) + of.rest);
    const A g = rows.upstream_nll != nullptr ? rows.upstream_nll[i * rows.step_nll] : A(0);
    const A h = rows.upstream_entropy != nullptr ? rows.upstream_entropy[i * rows.step_entropy] : A(0);
    const A of_p = g * factor, of_slope = h * factor;
    part.template arrive<D>();
    part.map(dlogits.row(i), [&](unsigned, const auto& e) {
      return mapped<D>(e, [&](A v, int) {
        const A p = powers.of(v - top), s = p == A(0) ? A(0) : (v - top) * inverse;  // where p is 0, v may be -inf
        return normal_product(p * (of_p - of_slope * (s - u)), A(1));
      });
    });
    // p_t - 1 cancels where p_t is near 1.
    if (!label.owned || !part.has(label.column)) return;
    const A p_t = math::exp(-of.nll), bent = p_t == A(0) ? A(0) : h * p_t * (of.below - u);
    dlogits.row(i)[label.column] = as_element<D>(inverse * (g * math::expm1(-of.nll) - bent));
  }
};

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::vocab_parallel_fused_linear_scaled_cross_entropy, backends::cuda> {
  template <class>
  using saved = no_state;

  /// Bytes of workspace.
  template <backend B, layer_types T>
  static std::size_t workspace_bytes(detail::layer_extents of, std::size_t ranks, std::size_t chunk, const context&,
                                     parameters trained) {
    using A = accumulator_t<T>;
    return workspace::bytes_for<A>(chunk, of.vocab) + gpu::rank_gather<A>::workspace_bytes(ranks, chunk, 4, false) +
           workspace::bytes_for<gpu::scaled_sums_of_row<A>>(chunk) +
           gpu::linear_shard_chunks<B, T>::bytes(of, ranks, chunk, trained);
  }

  /// Results and gradients in one pass.
  template <backend B, layer_types T, token_id I>
  static void forward(const detail::linear_shard_loss<T>& t, std::span<const I> target,
                      detail::scaled_cross_entropy_rows<accumulator_t<T>> rows,
                      fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using D = typename gpu::linear_chunks<B, T>::D;
    const detail::shard_columns own = t.own();
    const std::size_t chunk = t.chunk.rows;
    const unsigned cols = gpu::columns(own.cols);
    workspace::frame frame(ctx.workspace());
    A* const logits = frame.template take<A>(chunk * own.cols);
    const gpu::rank_gather<A> messages(frame, t.comm, chunk, 4, false);
    auto* const sums = frame.template take<gpu::scaled_sums_of_row<A>>(chunk);
    gpu::linear_shard_chunks<B, T> layer(frame, t, ctx);
    const gpu::tempered_powers<gpu::exponentials::fast, A> powers(opt.temperature);
    detail::for_chunks(target.size(), chunk, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, own.cols);
      const gpu::labels_of_shard<I> labels{
          {target.data() + begin, opt.ignore_index, gpu::columns(t.vocab)}, own.first, cols};
      layer.logits(begin, z);
      gpu::each_row_of_logits(ctx, gpu::scaled_reduction_of_shard<A, I>{{z, cols, labels}, messages.mine(n), powers},
                              n);
      const gpu::rank_messages<A> all = messages.gather(n);
      gpu::for_each_of(ctx, n, gpu::merge_scaled_losses<A, I>{all, labels.all, rows.from(begin), powers.inverse, sums});
      if (!t.out.any()) return;
      const matrix_view<D> d = layer.gradient_of(z);
      if (cols != 0)
        gpu::each_row_of_logits(
            ctx,
            gpu::scaled_gradient_of_shard<A, D, I>{{z, cols, labels}, d, rows.from(begin), {opt.temperature}, sums}, n);
      layer.backward(begin, d);
    });
    layer.finish();
  }
  template <backend B, layer_types T, token_id I>
  static void backward(const detail::linear_shard_loss<T>& t, std::span<const I> target,
                       detail::scaled_cross_entropy_rows<accumulator_t<T>> rows,
                       fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    forward<B, T, I>(t, target, rows, opt, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP
