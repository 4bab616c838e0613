// Softmax cross entropy with the gradient of the logits made in the forward pass.
#ifndef TIGON_LOSSES_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_CROSS_ENTROPY_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>

namespace tigon {

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
