// The kernel of cross entropy of logits. Losses that are made of it include this: unlike the doors it brings no backend,
// which may be made of those losses.
#ifndef TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_KERNEL_HPP
#define TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_KERNEL_HPP

#include <tigon/losses/softmax/cross_entropy_options.hpp>
#include <tigon/losses/softmax/label_terms.hpp>
#include <tigon/rows/row.hpp>

#include <cstdint>

namespace tigon {

template <>
struct kernel<op::cross_entropy, backends::generic> {
  template <class T>
  using saved = std::span<T>;  // dlogits

  template <backend B, element T, token_id I>
  static void forward(in_matrix<T> logits, std::span<const I> target, const accumulator_t<T>* class_weight,
                      matrix_view<T> dlogits, cross_entropy_rows out, cross_entropy_scale scale,
                      cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const in_vector<A> w{class_weight, logits.cols};
    if (opt.softcap > 0)
      forward_rows<B, true, true>(logits, target.data(), w, dlogits, out, scale, opt, ctx);
    else if (opt.label_smoothing > 0)
      forward_rows<B, false, true>(logits, target.data(), w, dlogits, out, scale, opt, ctx);
    else
      forward_rows<B, false, false>(logits, target.data(), w, dlogits, out, scale, opt, ctx);
  }

  /// dlogits = upstream * saved, with one number for all rows or one a row.
  template <backend B, element T>
  static void backward(in_matrix<T> saved_dlogits, std::span<const accumulator_t<T>> upstream, matrix_view<T> dlogits,
                       context& ctx) {
    const auto* g = upstream.data();
    const std::size_t step = upstream.size() == 1 ? 0 : 1;
    for_rows<B, accumulator_t<T>>(ctx, dlogits.rows, dlogits.cols, [=] TIGON_FN(auto row) {
      detail::multiply_row<accumulator_t<T>>(row, dlogits, saved_dlogits, g[row.i * step]);
    });
  }

  /// Weighted: every column has a weight in the uniform part of label smoothing, which may be 0.
  template <backend B, bool Capped, bool Weighted, element T, token_id I, class A>
  static void forward_rows(matrix_view<const T> logits, const I* target, in_vector<A> weight, matrix_view<T> dlogits,
                           cross_entropy_rows out, cross_entropy_scale scale, cross_entropy_options opt, context& ctx) {
    const auto kind = detail::logits_kind<Capped, A>::of(opt.softcap);
    const detail::cross_entropy_terms<A> terms(opt, scale, out, logits.cols);
    const std::int64_t ignored = opt.ignore_index;
    const bool write = dlogits.data != nullptr, in_place = dlogits.data == logits.data;
    constexpr bool narrow = !std::same_as<T, A>;
    // A row that is too long to prefetch the next one is cut into pieces that stay in L1.
    constexpr std::size_t piece = 8192;
    const bool in_pieces =
        !Weighted && !narrow && !prefetches_rows_of<B>(logits.cols * sizeof(T)) && logits.cols > piece;
    for_rows_with_scratch<B, A>(ctx, logits.rows, logits.cols, 1, [=] TIGON_FN(auto row) {
      const I t = target[row.i];
      if (static_cast<std::int64_t>(t) == ignored) {
        if (row.first()) detail::put_ignored(out, row.i);
        if (write) row.map(reads(constant(A(0))), writes(dlogits), [](auto zero) { return zero; });
        return;
      }
      const std::size_t column = static_cast<std::size_t>(t);
      const A own = row.at(logits, column);
      if (out.predicted != nullptr) {
        const auto best = detail::first_largest<A>(row, logits);
        if (row.first()) out.predicted[row.i] = static_cast<std::int64_t>(best.column);
      }
      // exp(s - m) is stored where the gradient will be, if that is in place and wide enough; its sum is made in the
      // same loop.
      vector_view<A> e = row.scratch(0);
      if constexpr (!narrow && !Capped)
        if (in_place) e = {dlogits.row(row.i), row.cols};
      A top, sum, weighted(0);
      detail::row_pieces<A> pieces(row.cols, in_pieces ? piece : row.cols);
      bool done = false;
      if constexpr (narrow && !Weighted) {
        // The target's logit is the pivot, so that no pass looks for the maximum; on overflow or underflow the maximum
        // is the pivot. Differences of 16-bit numbers are nearly exact, also large ones.
        const A below_own = row.map_sum(reads(logits), writes(e), [=](auto v) {
          const auto p = simd::exp_of_distance<false>(v - own);
          return pack{p, p};
        });
        pieces.set(0, own, below_own);
        done = below_own >= A(1) && below_own <= A(1ull << 40);
      }
      if constexpr (Weighted) {
        const A m = kind.top_of(row.max(reads(logits), [](auto v) { return v; }));
        const auto from = kind.from(m);
        const auto sums = row.map_sum(reads(logits, weight), writes(e), [=](auto v, auto w) {
          const auto s = from.distance(v);
          const auto p = simd::exp_of_distance<true>(s);
          const decltype(v) zero(A(0));
          return pack{p, p, select(w == zero, zero, w * s)};
        });
        pieces.set(0, m, sums[0]);
        weighted = sums[1];
      } else if (!done) {
        pieces.exponentials(row, logits, e);
      }
      top = pieces.join(sum);
      const auto of_row =
          terms.of(kind, top, own, pieces.without_one(row, e, sum), weight ? weight.data[column] : A(1));
      if (row.first()) terms.put_loss(out, row.i, of_row, weighted);
      if (!write) return;
      const A factor = terms.factor(of_row, of_row.token), subtract = terms.subtract(of_row.token);
      // The logits are an operand, because dlogits may be they: their lines are then cached and not to be streamed.
      const vector_view<const T> read{logits.row(row.i), row.cols};
      if constexpr (Capped) {
        const auto from = kind.from(top);
        row.map(reads(e, read, weight), writes(dlogits), [=](auto p, auto v, auto w) {
          return normal_or_zero((p * factor - w * subtract) * from.both(v).slope);
        });
      } else if constexpr (Weighted) {
        row.map(reads(e, weight, read), writes(dlogits),
                [=](auto p, auto w, auto) { return normal_or_zero(p * factor - w * subtract); });
      } else {
        pieces.multiply(row, e, read, dlogits, factor);
      }
      if (row.first()) row.put(dlogits, column, terms.at_target(of_row, of_row.token, kind, own));
    });
  }
};

/// Bytes of workspace that cross_entropy_forward takes.
template <class B = default_backend, class T>
std::size_t cross_entropy_workspace(std::size_t rows, std::size_t vocab, const context& ctx = default_context()) {
  using A = accumulator_t<T>;
  return 2 * workspace::bytes_for<double>(rows) + workspace::bytes_for<std::int64_t>(rows) +
         workspace::bytes_for<A>(vocab) + simd::scratch_workspace<B, A>(vocab, 1, ctx);
}

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_KERNEL_HPP
