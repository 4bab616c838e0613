// Log-probability of one given column a row, and its gradient: what policy and preference losses are made of.
#ifndef TIGON_LOSSES_SELECTIVE_LOG_SOFTMAX_HPP
#define TIGON_LOSSES_SELECTIVE_LOG_SOFTMAX_HPP

#include <tigon/losses/softmax/selective_log_softmax_kernel.hpp>

namespace tigon {

/// Bytes of workspace that selective_log_softmax_forward and _backward take for so many rows of logits.
template <class B = default_backend, class T>
constexpr std::size_t selective_log_softmax_workspace(std::size_t rows) {
  using A = accumulator_t<T>;
  return workspace::bytes_for<std::int64_t>(rows) + workspace::bytes_for<A>(rows) +
         workspace::bytes_for<lse_parts<A>>(rows);
}

/// logp, and in `saved` what backward needs. See selective_log_softmax_options for the contract.
template <class B = default_backend, class Z, class T = std::remove_const_t<Z>>
void selective_log_softmax_forward(matrix_view<Z> logits, const token_ids& ids,
                                   std::type_identity_t<matrix_view<accumulator_t<T>>> logp,
                                   selective_log_softmax_options opt = {}, const token_mask& mask = absent,
                                   std::type_identity_t<std::span<lse_parts<accumulator_t<T>>>> saved = {},
                                   context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  constexpr std::string_view name = "selective_log_softmax_forward";
  arguments args(name);
  args.at_least_one("vocab", logits.cols);
  args.in("logits", logits);
  const detail::token_rows at = detail::declare_tokens(args, name, ids, mask, logits.rows);
  args.optional_out("saved", saved, logits.rows);
  args.out("logp", logp, at.batch, at.len);
  args.check();
  detail::expect_temperature<A>(args, opt.temperature);
  ctx.workspace().expect(name, selective_log_softmax_workspace<B, T>(logits.rows));

  workspace::frame frame(ctx.workspace());
  auto* column = frame.template take<std::int64_t>(logits.rows);
  A* of_row = frame.template take<A>(logits.rows);
  auto* lse = saved.data() != nullptr ? saved.data() : frame.template take<lse_parts<A>>(logits.rows);
  detail::select_columns(name, at, ids, mask, logits.cols, column);
  kernel_for<op::selective_log_softmax, B>::template forward<B, T>(logits, column, opt.temperature, of_row, lse, ctx);
  if (at.len == 0) return;
  for (std::size_t b = 0; b < at.batch; ++b) std::copy_n(of_row + b * at.stride, at.len, logp.row(b));
}

/// dlogits from the gradient of logp, and what forward saved of the same logits.
template <class B = default_backend, class T>
void selective_log_softmax_backward(in_matrix<T> logits, const token_ids& ids,
                                    std::type_identity_t<std::span<const lse_parts<accumulator_t<T>>>> saved,
                                    std::type_identity_t<matrix_view<const accumulator_t<T>>> dlogp,
                                    matrix_view<T> dlogits, selective_log_softmax_options opt = {},
                                    const token_mask& mask = absent, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  constexpr std::string_view name = "selective_log_softmax_backward";
  arguments args(name);
  args.at_least_one("vocab", logits.cols);
  args.in("logits", logits);
  const detail::token_rows at = detail::declare_tokens(args, name, ids, mask, logits.rows);
  args.in("saved", saved, logits.rows);
  args.in("dlogp", dlogp, at.batch, at.len);
  args.out("dlogits", dlogits, logits.rows, logits.cols).may_be("logits");
  args.check();
  detail::expect_temperature<A>(args, opt.temperature);
  ctx.workspace().expect(name, selective_log_softmax_workspace<B, T>(logits.rows));

  workspace::frame frame(ctx.workspace());
  auto* column = frame.template take<std::int64_t>(logits.rows);
  A* u = frame.template take<A>(logits.rows);
  detail::select_columns(name, at, ids, mask, logits.cols, column);
  for (std::size_t i = 0; i < logits.rows; ++i) u[i] = column[i] < 0 ? A(0) : dlogp.row(i / at.stride)[i % at.stride];
  kernel_for<op::selective_log_softmax, B>::template backward<B, T>(
      logits, saved.data(), selected_gradient<A>{column, u}, selected_gradient<A>{}, opt.temperature, dlogits, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_SELECTIVE_LOG_SOFTMAX_HPP
