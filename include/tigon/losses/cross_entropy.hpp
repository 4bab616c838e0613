// Softmax cross entropy with the gradient of the logits made in the forward pass.
#ifndef TIGON_LOSSES_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_CROSS_ENTROPY_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>

namespace tigon {

/// Softmax cross entropy over the last axis. For a row with target t, s = softcap * tanh(logits / softcap) (or the
/// logits themselves), m = max_j s, d = sum_j exp(s_j - m) without the maximal element's own 1:
///
///   lse   = m + log1p(d),   p_j = exp(s_j - m) / (1 + d),   -log p_t = (m - s_t) + log1p(d)
///   main  = (1 - l) w_t (-log p_t) + l / vocab * sum_j w_j (lse - s_j)          l = label_smoothing, w = class weight
///   loss  = a main + b z lse^2                                                  z = lse_square_scale
///   dlogits_j = k_j ((a ((1 - l) w_t + l / vocab sum w) + 2 b z lse) p_j - a l / vocab w_j - a (1 - l) w_t [j = t])
///   k_j   = 1 - (s_j / softcap)^2, or 1
///   sum, none: a = b = 1.  mean: a = 1 / (sum of w_t over the kept rows), b = 1 / (number of kept rows)
///
/// Formula    docs/formulas/cross_entropy.md. Leaving the maximum's 1 out of the sum keeps the loss exact where a
///            target is predicted with confidence; the target's gradient uses p_t - 1 = expm1(log p_t) for the same
///            reason.
/// Shapes     logits, dlogits [rows, vocab]; target [rows]; class weight [vocab] or `absent`; loss [1], or [rows] with
///            reduction::none; metrics as loss, predicted_tokens [rows], kept_rows [1]. vocab >= 1, rows may be 0.
/// Types      logits and dlogits one of f32, bf16, f16, f64; loss and metrics f32 (f64 for f64); target std::int32_t or
///            std::int64_t.
/// Precision  f32 (f64 for f64) inside; totals in f64; one rounding at dlogits.
/// Writes     loss, dlogits (unless its data is null), the metrics that have memory. A row whose target is ignore_index
///            is not read; its loss and gradient are 0, its predicted token -1.
/// Aliasing   dlogits may be logits, which are then overwritten. Otherwise no output shares an element with another
///            argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace, and index (in
///            every build) for a target outside [0, vocab) that is not ignore_index; before the first write.
/// Edges      no kept row: loss 0, gradients 0. NaN in a row: that row is NaN, its predicted token -1. Without softcap
///            +inf and a row of -inf are the same as NaN, and -inf at the target gives loss inf and a finite gradient.
///            With softcap an infinite logit is what the formula says, s = +-softcap, of gradient 0, and the row is
///            finite: its predicted token is the first +inf, of a row of -inf 0. A gradient below the smallest normal
///            f32 (f64) is written as 0, and a gradient of 0 stays 0 for any upstream gradient.
/// Max error  loss 4e-7 of |reference| + its root mean square where sums are f32; dlogits f32 1e-6, bf16 4e-3 of the
///            same (tests/losses/cross_entropy_test.cpp).
///
/// ```cpp
/// std::vector<float> logits(4 * 100, 0.5f), dlogits(logits.size()), loss(1), upstream(1, 2);
/// const std::vector<std::int64_t> target{1, -100, 3, 99};
/// const tigon::matrix_view in(logits.data(), 4, 100), gradient(dlogits.data(), 4, 100);
/// tigon::cross_entropy_forward(in, std::span(target), loss, gradient, {.label_smoothing = 0.1});
/// tigon::cross_entropy_backward(gradient, upstream, gradient);  // for a gradient of the loss other than 1
/// ```
struct cross_entropy_options;

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
  expect_labels_of<B>(name, targets, logits.cols, opt.ignore_index);
  ctx.workspace().expect(name, cross_entropy_workspace<B, T>(logits.rows, logits.cols, ctx));

  workspace::frame frame(ctx.workspace());
  using K = kernel_for<op::cross_entropy, B>;
  const loss_rows_of<B, A> rows(name, frame, targets, logits.cols, weight, of.metrics, opt, ctx);
  K::template forward<B, T, I>(logits, labels, rows.weight, of.dlogits, rows.out, rows.scale, opt, ctx);
  if (!backward) return rows.finish(targets, of.loss, of.metrics, opt);
  if constexpr (host_memory<B>)
    if (upstream.size() == 1 && upstream[0] == A(1)) return;
  K::template backward<B, T>(of.dlogits, upstream, of.dlogits, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Loss, metrics and dlogits. See cross_entropy_options for the contract.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void cross_entropy_forward(in_matrix<T> logits, const Target& target,
                           std::type_identity_t<std::span<accumulator_t<T>>> loss, matrix_view<T> dlogits,
                           cross_entropy_options opt = {}, const Weight& class_weight = absent,
                           cross_entropy_metrics<accumulator_t<T>> metrics = {}, context& ctx = default_context<B>()) {
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
                                      const Weight& class_weight = absent, context& ctx = default_context<B>()) {
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
                            context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("cross_entropy_backward");
  args.in("saved_dlogits", saved_dlogits, dlogits.rows, dlogits.cols);
  args.in("upstream", upstream, upstream.size() == 1 ? 1 : dlogits.rows);
  args.out("dlogits", dlogits).may_be("saved_dlogits");
  args.check();
  kernel_for<op::cross_entropy, B>::template backward<B, T>(saved_dlogits, upstream, dlogits, ctx);
}

TIGON_EXPLAINS(cross_entropy_forward)
TIGON_EXPLAINS(cross_entropy_backward_recompute)
TIGON_EXPLAINS(cross_entropy_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_CROSS_ENTROPY_HPP
