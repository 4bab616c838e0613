// Softmax cross entropy with the gradient of the logits made in the forward pass.
#ifndef TIGON_LOSSES_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_CROSS_ENTROPY_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/losses/parts/cross_entropy_terms.hpp>
#include <tigon/rows/row.hpp>

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
      const A own = kind.template squash_one<typename B::engine>(row.at(logits, column));
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
        const A m = row.max(reads(logits), [=](auto v) { return kind.squash(v); });
        const auto sums = row.map_sum(reads(logits, weight), writes(e), [=](auto v, auto w) {
          const auto s = kind.distance(v, m);
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
        row.map(reads(e, read, weight), writes(dlogits), [=](auto p, auto v, auto w) {
          return normal_or_zero((p * factor - w * subtract) * kind.slope(kind.squash(v)));
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

namespace detail {
inline namespace TIGON_ABI {

/// What forward and backward_recompute are called with; an upstream gradient where there is no loss.
template <element T>
struct logit_loss {
  matrix_view<const T> logits;
  matrix_view<T> dlogits;
  std::span<accumulator_t<T>> loss;
  cross_entropy_metrics<accumulator_t<T>> metrics;
  std::span<const accumulator_t<T>> upstream;
};

/// Checks and the call that they share.
template <class B, element T, class Target, class Weight>
void logit_cross_entropy(std::string_view name, const logit_loss<T>& of, const Target& target, Weight weight,
                         const cross_entropy_options& opt, context& ctx) {
  using A = accumulator_t<T>;
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const std::span<const I> targets(labels);
  const matrix_view<const T> logits = of.logits;
  const std::span<const A> upstream = of.upstream;
  const bool backward = upstream.data() != nullptr;
  arguments args(name);
  args.at_least_one("vocab", logits.cols);
  args.in("logits", logits);
  declare_labels(args, targets, weight, logits.rows, logits.cols);
  args.optional_in("upstream", upstream, upstream.size() == 1 ? 1 : logits.rows);
  if (backward) args.memory("dlogits", of.dlogits);
  args.optional_out("dlogits", of.dlogits, logits.rows, logits.cols).may_be("logits");
  if (!backward) declare_loss<A>(args, of.loss, of.metrics, logits.rows, opt.reduction);
  args.check();
  expect_loss_options<A>(args, opt);
  expect_labels(name, targets, logits.cols, opt.ignore_index);
  ctx.workspace().expect(name, cross_entropy_workspace<B, T>(logits.rows, logits.cols, ctx));

  workspace::frame frame(ctx.workspace());
  using K = kernel_for<op::cross_entropy, B>;
  const loss_rows<A> rows(frame, targets, logits.cols, weight, of.metrics, opt);
  K::template forward<B, T, I>(logits, labels, rows.weight, of.dlogits, rows.out, rows.scale, opt, ctx);
  if (!backward) return rows.finish(targets, of.loss, of.metrics, opt);
  if (upstream.size() != 1 || upstream[0] != A(1)) K::template backward<B, T>(of.dlogits, upstream, of.dlogits, ctx);
}

}  // namespace TIGON_ABI
}  // namespace detail

/// Loss, metrics and dlogits. See cross_entropy_options for the contract.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void cross_entropy_forward(in_matrix<T> logits, const Target& target,
                           std::type_identity_t<std::span<accumulator_t<T>>> loss, matrix_view<T> dlogits,
                           cross_entropy_options opt = {}, const Weight& class_weight = absent,
                           cross_entropy_metrics<accumulator_t<T>> metrics = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(class_weight);
  static_assert(admits_parameter<T, decltype(weight)>());
  detail::logit_cross_entropy<B, T>("cross_entropy_forward", {logits, dlogits, loss, metrics, {}}, target, weight, opt,
                                    ctx);
}

/// upstream * dlogits from the logits, for a forward call without dlogits: between the two nothing is kept but the
/// logits and the targets. upstream is one number, or one a row for reduction::none; where it is not the number 1, the
/// gradient is rounded once more. dlogits may be logits. See cross_entropy_options for the contract.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void cross_entropy_backward_recompute(in_matrix<T> logits, const Target& target,
                                      std::type_identity_t<std::span<const accumulator_t<T>>> upstream,
                                      matrix_view<T> dlogits, cross_entropy_options opt = {},
                                      const Weight& class_weight = absent, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(class_weight);
  static_assert(admits_parameter<T, decltype(weight)>());
  using A = accumulator_t<T>;
  const A none{};
  constexpr std::string_view name = "cross_entropy_backward_recompute";
  expects(name).that(upstream.data() != nullptr || logits.rows == 0, error_code::shape, "upstream", "empty",
                     "one number, or one for each row");
  const std::span<const A> g = upstream.data() != nullptr ? upstream : std::span<const A>(&none, 1);
  detail::logit_cross_entropy<B, T>(name, {logits, dlogits, {}, {}, g}, target, weight, opt, ctx);
}

/// dlogits = upstream * saved: the gradient for another upstream gradient than 1, one number or one a row (for
/// reduction::none). dlogits may be the saved gradient itself.
template <class B = default_backend, class T>
void cross_entropy_backward(in_matrix<T> saved_dlogits,
                            std::type_identity_t<std::span<const accumulator_t<T>>> upstream, matrix_view<T> dlogits,
                            context& ctx = default_context()) {
  static_assert(admits<B, T>());
  arguments args("cross_entropy_backward");
  args.in("saved_dlogits", saved_dlogits, dlogits.rows, dlogits.cols);
  args.in("upstream", upstream, upstream.size() == 1 ? 1 : dlogits.rows);
  args.out("dlogits", dlogits).may_be("saved_dlogits");
  args.check();
  kernel_for<op::cross_entropy, B>::template backward<B, T>(saved_dlogits, upstream, dlogits, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_CROSS_ENTROPY_HPP
