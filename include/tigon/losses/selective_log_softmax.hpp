// Log-probability of one given column of each row, and its gradient: the input of policy and preference losses.
#ifndef TIGON_LOSSES_SELECTIVE_LOG_SOFTMAX_HPP
#define TIGON_LOSSES_SELECTIVE_LOG_SOFTMAX_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/softmax/selective_log_softmax_kernel.hpp>

namespace tigon {

/// log softmax(logits / temperature) at the column k of each row, a row a token, for s = logits / temperature:
///
///   lse  = m + log1p(d),   m = max_j s,   d = sum_j exp(s_j - m) without the maximal element's own 1
///   logp = (s_k - m) - log1p(d)
///   dlogits_j = dlogp / temperature * ([j = k] - p_j),   p_j = exp(s_j - m) / (1 + d),   1 - p_k = -expm1(logp)
///
/// Formula    docs/formulas/policy.md. Leaving the maximum's 1 out of the sum keeps logp exact where it is near 0.
/// Shapes     ids, mask, logp, dlogp [batch, len]; logits, dlogits [batch * len, vocab], row b * len + t for token t of
///            sequence b, or [batch * (len + 1), vocab] as a model leaves them: position len of a sequence predicts
///            nothing. saved [rows of logits]. vocab >= 1, batch and len may be 0.
/// Types      logits and dlogits one of f32, bf16, f16, f64; logp, dlogp and saved f32 (f64 for f64); ids std::int32_t
///            or std::int64_t; mask of any type of numbers, 0 or 1, or `absent`.
/// Precision  f32 (f64 for f64) inside; one rounding at logp and dlogits.
/// Options    backward takes those of forward.
/// Writes     logp, 0 where masked; saved, where it has memory; dlogits, 0 where masked or at a position len. Masked
///            rows and positions len are not read, nor are their ids.
/// Aliasing   dlogits may be logits, which are then overwritten. Otherwise no output shares an element with another
///            argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (a temperature that is not above 0, or outside
///            option_range), workspace, and in every build index for an id outside [0, vocab) or a mask that is neither
///            0 nor 1; before the first write.
/// Edges      NaN or +inf in a row: that row is NaN. -inf at the id: logp -inf, finite gradient. A gradient below the
///            smallest normal f32 (f64) is written as 0, and a row with dlogp = 0 without being read.
/// Max error  logp 4e-7, dlogits f32 1e-6, bf16 4e-3 of |reference| + its root mean square
///            (tests/losses/selective_log_softmax_test.cpp).
///
/// ```cpp
/// std::vector<float> logits(4 * 100, 0.5f), dlogits(logits), numbers(4);
/// std::vector<tigon::lse_parts<float>> lse(4);
/// const std::vector<std::int64_t> tokens{1, 2, 3, 4};
/// const tigon::matrix_view in(logits.data(), 4, 100), gradient(dlogits.data(), 4, 100), logp(numbers.data(), 2, 2);
/// const tigon::matrix_view ids(tokens.data(), 2, 2);
/// tigon::selective_log_softmax_forward(in, ids, logp, {}, tigon::absent, lse);
/// tigon::selective_log_softmax_backward(in, ids, lse, logp, gradient);  // dlogp = logp
/// ```
struct selective_log_softmax_options;

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
                                   context& ctx = default_context<B>()) {
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
  using K = kernel_for<op::selective_log_softmax, B>;
  detail::select_columns_of<B, K>(name, at, ids, mask, logits.cols, column, false, ctx);
  K::template forward<B, T>(logits, column, opt.temperature, of_row, lse, ctx);
  detail::put_tokens<B, K>(at, of_row, logp, ctx);
}

/// dlogits from the gradient of logp, and what forward saved of the same logits.
template <class B = default_backend, class T>
void selective_log_softmax_backward(in_matrix<T> logits, const token_ids& ids,
                                    std::type_identity_t<std::span<const lse_parts<accumulator_t<T>>>> saved,
                                    std::type_identity_t<matrix_view<const accumulator_t<T>>> dlogp,
                                    matrix_view<T> dlogits, selective_log_softmax_options opt = {},
                                    const token_mask& mask = absent, context& ctx = default_context<B>()) {
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
  using K = kernel_for<op::selective_log_softmax, B>;
  detail::select_columns_of<B, K>(name, at, ids, mask, logits.cols, column, false, ctx);
  detail::take_tokens<B, K>(at, column, dlogp, u, ctx);
  K::template backward<B, T>(logits, saved.data(), selected_gradient<A>{column, u}, selected_gradient<A>{},
                             opt.temperature, dlogits, ctx);
}

TIGON_EXPLAINS(selective_log_softmax_forward)
TIGON_EXPLAINS(selective_log_softmax_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_SELECTIVE_LOG_SOFTMAX_HPP
