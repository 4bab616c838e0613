// The generic kernel of fused_linear_scaled_cross_entropy.
#ifndef TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_SCALED_CROSS_ENTROPY_KERNEL_HPP
#define TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_SCALED_CROSS_ENTROPY_KERNEL_HPP

#include <tigon/losses/linear/few_rows_linear.hpp>
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>
#include <tigon/losses/softmax/fused_linear_scaled_cross_entropy_options.hpp>

namespace tigon {

template <>
struct kernel<op::scaled_cross_entropy, backends::generic> {
  using forward_only = void;

  /// The results of the logits' rows and, where `gradient` is wanted, D, which overwrites the logits; in any case they
  /// are lost.
  template <backend B, class A, token_id I>
  static void forward(matrix_view<A> z, const I* target, detail::scaled_cross_entropy_rows<A> rows, bool gradient,
                      fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    const A inverse = static_cast<A>(1 / opt.temperature);
    const std::int64_t ignored = opt.ignore_index;
    const bool of_entropy = gradient && rows.upstream_entropy != nullptr;
    for_rows<B, A>(ctx, z.rows, z.cols, {.scratch = 1}, [=] TIGON_FN(auto row) {
      const I t = target[row.i];
      if (static_cast<std::int64_t>(t) == ignored) {
        if (row.first()) rows.put(row.i, A(0), A(0), A(0));
        if (gradient) row.map(reads(constant(A(0))), writes(z), [](auto zero) { return zero; });
        return;
      }
      const std::size_t column = static_cast<std::size_t>(t);
      const A own = row.at(z, column);
      const A top = row.max(reads(z), [](auto v) { return v; });
      // exp(s - m) overwrites the logits, unless D needs these once more.
      const vector_view<A> e = of_entropy ? row.scratch(0) : vector_view<A>{z.row(row.i), row.cols};
      const auto sums = row.map_sum(reads(cached{z}), writes(e), [=](auto v) {
        const auto s = (v - top) * inverse;
        const auto p = exp_nonpositive(s);
        const decltype(v) zero(A(0));
        return pack{p, p, select(p == zero, zero, p * s)};
      });
      // d = sum - 1. Where that cancels, the rest is summed without the maximum.
      A d = sums[0] - A(1);
      if (d < A(1)) {
        const auto rest = row.sum(reads(e), [](auto p) {
          const decltype(p) zero(A(0)), one(A(1));
          return pack{select(p == one, zero, p), select(p == one, one, zero)};
        });
        d = rest[0] + (rest[1] - A(1));
      }
      const A tail = math::log1p(d), u = sums[1] / (A(1) + d), below = (own - top) * inverse;
      const A nll = tail - below;
      if (row.first()) rows.put(row.i, nll, tail - u, top * inverse + tail);
      if (!gradient) return;
      const A g = rows.upstream_nll != nullptr ? rows.upstream_nll[row.i * rows.step_nll] : A(0);
      const A h = of_entropy ? rows.upstream_entropy[row.i * rows.step_entropy] : A(0);
      const A factor = inverse / (A(1) + d), of_p = g * factor, of_slope = h * factor;
      if (of_entropy) {
        row.map(reads(cached{e}, z), writes(z), [=](auto p, auto v) {
          // Where p is 0, s may be -inf.
          const decltype(v) zero(A(0)), s = select(p == zero, zero, (v - top) * inverse);
          return normal_or_zero(p * fnma(of_slope, s - u, of_p));
        });
      } else {
        row.map(reads(cached{z}), writes(z), [=](auto p) { return normal_or_zero(p * of_p); });
      }
      if (row.first()) {
        // The target's column is computed again: p_t - 1 cancels where p_t is near 1.
        const A p_t = math::exp(-nll), bent = p_t == A(0) ? A(0) : h * p_t * (below - u);
        row.put(z, column, inverse * (g * math::expm1(-nll) - bent));
      }
    });
  }
};

template <>
struct kernel<op::fused_linear_scaled_cross_entropy, backends::generic> {
  template <class>
  using saved = no_state;

  /// Results and gradients in one pass over the rows that count, of which labels and results are.
  template <backend B, layer_types T, token_id I>
  static void forward(linear_layer<T> head, linear_gradients<T> out, detail::chosen_rows kept,
                      std::span<const I> target, detail::scaled_cross_entropy_rows<accumulator_t<T>> rows,
                      fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t vocab = head.w.rows;
    const detail::kept_chunk chunk =
        detail::chunk_of<T>(kept, detail::chunk_rows<B, A>(head.x.rows, head.x.cols, vocab, ctx), head.x.rows,
                            detail::bytes_of_row<T>(head.x.cols, vocab), out.dx.data != nullptr);
    workspace::frame frame(ctx.workspace());
    A* logits = frame.template take<A>(chunk.rows * vocab);
    detail::kept_linear<B, T> layer(frame, head, out, kept, chunk, out.dx, ctx);
    detail::for_chunks(kept.n, chunk.rows, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, vocab);
      layer.logits(begin, z);
      kernel_for<op::scaled_cross_entropy, row_backend<B>>::template forward<row_backend<B>, A, I>(
          z, target.data() + begin, rows.from(begin), out.any(), opt, ctx);
      if (out.any()) layer.backward(begin, z);
    });
    layer.finish();
  }

  /// The gradients, from logits and sums that are computed again: a saved lse has lost the digits that p needs.
  template <backend B, layer_types T, token_id I>
  static void backward(linear_layer<T> head, linear_gradients<T> out, detail::chosen_rows kept,
                       std::span<const I> target, detail::scaled_cross_entropy_rows<accumulator_t<T>> rows,
                       fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    forward<B, T, I>(head, out, kept, target, rows, opt, ctx);
  }
};

namespace detail {
inline namespace TIGON_ABI {
/// Results of few rows in f64, and where they are rounded to.
template <class A>
class wide_results {
 public:
  wide_results(workspace::frame& frame, const scaled_cross_entropy_results<A>& to, std::size_t rows) : to_(to) {
    const auto wide = [&](std::span<A> of) {
      return of.data() == nullptr ? std::span<double>() : std::span(frame.template take<double>(rows), rows);
    };
    from_ = {wide(to.nll), wide(to.entropy), wide(to.lse)};
  }
  const scaled_cross_entropy_results<double>& from() const { return from_; }
  void round() const {
    const auto put = [](std::span<double> from, std::span<A> to) {
      for (std::size_t i = 0; i < from.size(); ++i) to[i] = static_cast<A>(from[i]);
    };
    put(from_.nll, to_.nll), put(from_.entropy, to_.entropy), put(from_.lse, to_.lse);
  }

 private:
  scaled_cross_entropy_results<A> to_;
  scaled_cross_entropy_results<double> from_;
};

/// Whether calls of few rows are computed in f64.
template <class B, layer_types T>
inline constexpr bool few_scaled_cross_entropy_in_f64 = few_rows_in_f64<B, T, op::fused_linear_scaled_cross_entropy> &&
                                                        few_rows_in_f64<row_backend<B>, T, op::scaled_cross_entropy>;

/// The call that forward and backward share; of few rows in f64 where B does.
template <class B, layer_types T, token_id I>
void compute_scaled_cross_entropy(const linear_layer<T>& head, const linear_gradients<T>& to,
                                  std::span<const I> targets, const scaled_cross_entropy_results<accumulator_t<T>>& out,
                                  const scaled_cross_entropy_upstream<accumulator_t<T>>& g,
                                  const fused_linear_scaled_cross_entropy_options& opt, context& ctx) {
  const std::size_t rows = head.x.rows;
  workspace::frame frame(ctx.workspace());
  const auto kept = kept_labels<I>::template of<B>(frame, targets, rows, opt.ignore_index);
  const auto of_nll = kept.of_kept(frame, g.nll), of_entropy = kept.of_kept(frame, g.entropy);
  const bool results = out.nll.data() != nullptr || out.entropy.data() != nullptr || out.lse.data() != nullptr;
  const auto run = [&]<layer_types L>(const linear_layer<L>& layer, const linear_gradients<L>& gradients,
                                      const scaled_cross_entropy_rows<accumulator_t<L>>& of_rows) {
    using K = kernel_for<op::fused_linear_scaled_cross_entropy, B>;
    if (!results && to.any())
      return K::template backward<B, L, I>(layer, gradients, kept.rows(), kept.labels(), of_rows, opt, ctx);
    K::template forward<B, L, I>(layer, gradients, kept.rows(), kept.labels(), of_rows, opt, ctx);
    of_rows.spread(rows, kept.rows());
  };
  if constexpr (few_scaled_cross_entropy_in_f64<B, T>)
    if (rows <= few_rows) {
      const wide_results<accumulator_t<T>> wide(frame, out, rows);
      run(layer_in_f64(head), gradients_in_f64(to),
          {wide.from(), {numbers_in_f64(frame, of_nll), numbers_in_f64(frame, of_entropy)}});
      return wide.round();
    }
  run(head, to, {out, {of_nll, of_entropy}});
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_SCALED_CROSS_ENTROPY_KERNEL_HPP
