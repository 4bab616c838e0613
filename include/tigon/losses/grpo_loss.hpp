// Policy-gradient losses of the GRPO family on given logits.
#ifndef TIGON_LOSSES_GRPO_LOSS_HPP
#define TIGON_LOSSES_GRPO_LOSS_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/sequence/grpo_loss_kernel.hpp>

namespace tigon {

/// Policy-gradient losses of the GRPO family. For token t of sequence b, with its log-probability logp, advantage A and
/// mask mu, n_b = sum_t mu:
///
///   r = logp - old_logp (0 without old_logp, but with its gradient),   d = ref_logp - logp,   phi(d) = exp(d) - 1 - d
///   ratio   token: rho = exp(r);  sequence: rho = exp(sum_t mu r / max(n_b, 1)) for all its tokens
///   f       grpo, bnpo, dr_grpo, dapo, luspo: -min(min(rho, delta) A, clip(rho, 1 - epsilon_low, 1 + epsilon_high) A)
///           cispo: -[min(rho, epsilon_high)] A logp;  sapo: -4 / tau sigmoid(tau (rho - 1)) A
///           gmpo: -exp(sum_t mu v / max(n_b, 1)) A for all tokens, the ratio rho of their sequence,
///           v = min(r, epsilon_high) where A >= 0, max(r, -epsilon_low) otherwise
///           vespo: -[exp(lambda + k S - lambda exp(S))] A logp, S of the sequence;  no gradient through [ ]
///           own: what a function of the user's own says (grpo_loss_forward_backward and fused_linear_grpo_forward
///           with a token_loss)
///   loss_bt = f * sampling_ratio (vespo: f) + beta K,   K = phi(d), or rho phi(d) with bias_corrected_kl
///   loss    = sum over b, t of weight * loss_bt; weight = mu times
///             grpo, gmpo, sapo: 1 / (batch max(n_b, 1));  bnpo: 1 / max(sum mu, 1);  dr_grpo: 1 / (batch max_length)
///             dapo, cispo, vespo, own: 1 / denominator (0: 1 / max(sum mu, 1));  luspo: 1 / batch, or luspo_reduction
///
/// Formula    docs/formulas/policy.md, with every gradient. phi is a series for |d| < 1/4, where exp(d) - 1 - d
///            cancels.
/// Precision  f64 between log-probabilities and the loss or their gradient.
/// Throws     tigon::error, argument: own without a function or a function without own; a scalar that is negative or 0
///            where it may not be, or outside option_range; level sequence or a delta for cispo, sapo, vespo or gmpo,
///            beta without reference, an advantage that is not finite.
/// Edges      no token that counts: loss 0, gradients 0. A ratio that overflows: with A > 0 clipped, with A < 0 loss
///            inf. NaN in a token: its loss and gradient are NaN.
struct policy_options;

namespace detail {
inline namespace TIGON_ABI {
/// Declares logits and what a policy loss reads beside them.
template <class B, class A>
token_rows declare_grpo(arguments& args, std::string_view op, extent logits, const policy_batch<A>& batch,
                        const policy_options& opt, const token_loss* own = nullptr) {
  args.at_least_one("vocab", logits.cols);
  args.in("logits", logits);
  const token_rows at = declare_policy(args, op, batch, opt, logits.rows, batch.ref_logp.data != nullptr, own);
  expect_finite_advantages<B>(op, batch.advantages);
  return at;
}
/// The gradient of the loss, with dlogits not yet declared.
template <class A>
void declare_upstream(arguments& args, token_rows at, const policy_options& opt, std::span<const A> upstream) {
  if (!upstream.empty()) args.in("upstream", upstream, opt.reduce ? 1 : at.batch * at.len);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that grpo_loss_forward and _backward take for so many rows of logits of so many sequences.
template <class B = default_backend, class T>
constexpr std::size_t grpo_loss_workspace(std::size_t rows, std::size_t batch) {
  using A = accumulator_t<T>;
  return workspace::bytes_for<std::int64_t>(rows) + workspace::bytes_for<double>(rows) + workspace::bytes_for<A>(rows) +
         workspace::bytes_for<lse_parts<A>>(rows) + workspace::bytes_for<double>(3, batch) +
         detail::policy_workspace<B>(rows, batch);
}

/// The losses of policy_options on log-probabilities of logits; in `saved` what backward needs:
///
///   logp = log softmax(logits / temperature) at the ids,   u = d loss / d logp
///   dlogits_j = u / temperature ([j = id] - p_j)
///
/// Formula    docs/formulas/policy.md.
/// Shapes     ids, mask, old_logp, ref_logp [batch, len]; sampling_ratio [batch, len] or [batch, 1]; advantages
///            [batch]; logits, dlogits [batch * len, vocab] or [batch * (len + 1), vocab], as selective_log_softmax;
///            saved [rows of logits]; loss and metrics [1], or [batch * len] with reduce = false; upstream as loss, or
///            empty for 1. vocab >= 1, batch and len may be 0.
/// Types      logits and dlogits one of f32, bf16, f16, f64; ids std::int32_t or std::int64_t; mask of any type of
///            numbers, 0 or 1; everything else f32 (f64 for f64).
/// Precision  log-probabilities as selective_log_softmax; f64 between them and the loss or u; one rounding at dlogits.
///            A u beyond the range of f32, of a ratio above e^88, is infinite, and its row of dlogits infinite or NaN.
/// Options    backward takes those of forward.
/// Writes     loss; saved and the metrics, where they have memory; dlogits. Masked tokens and positions len are not
///            read; their loss and gradient are 0.
/// Aliasing   dlogits may be logits, which are then overwritten. Otherwise no output shares an element with another
///            argument; any layout.
/// Memory     a few numbers a row of logits; see grpo_loss_workspace.
/// Throws     tigon::error: as policy_options and selective_log_softmax; before the first write.
/// Max error  loss 1e-5, dlogits f32 1e-5, bf16 4e-3 of |reference| + its root mean square: what f32 holds of
///            log-probabilities (tests/losses/grpo_loss_test.cpp).
///
/// ```cpp
/// std::vector<float> logits(4 * 100, 0.5f), dlogits(logits), loss(1), upstream(1, 1);
/// std::vector<tigon::lse_parts<float>> lse(4);
/// const std::vector<std::int64_t> tokens{1, 2, 3, 4};  // two sequences
/// const std::vector<float> advantages{1, -1};
/// const tigon::matrix_view in(logits.data(), 4, 100), gradient(dlogits.data(), 4, 100);
/// const tigon::policy_batch<float> batch{tigon::matrix_view(tokens.data(), 2, 2), advantages};
/// tigon::grpo_loss_forward(in, batch, loss, lse, {.beta = 0});
/// tigon::grpo_loss_backward(in, batch, lse, upstream, gradient, {.beta = 0});
/// ```
template <class B = default_backend, class Z, class T = std::remove_const_t<Z>>
void grpo_loss_forward(matrix_view<Z> logits, const std::type_identity_t<policy_batch<accumulator_t<T>>>& batch,
                       std::type_identity_t<std::span<accumulator_t<T>>> loss,
                       std::type_identity_t<std::span<lse_parts<accumulator_t<T>>>> saved, policy_options opt = {},
                       std::type_identity_t<policy_metrics<accumulator_t<T>>> metrics = {},
                       context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  constexpr std::string_view name = "grpo_loss_forward";
  arguments args(name);
  const detail::token_rows at = detail::declare_grpo<B, A>(args, name, logits, batch, opt);
  detail::declare_policy_results<A>(args, at, opt, {loss, metrics}, batch.ref_logp.data != nullptr);
  args.optional_out("saved", saved, logits.rows);
  args.check();
  ctx.workspace().expect(name, grpo_loss_workspace<B, T>(logits.rows, at.batch));

  workspace::frame frame(ctx.workspace());
  auto* column = frame.template take<std::int64_t>(logits.rows);
  auto* partial = frame.template take<double>(3 * at.batch);
  auto* lse = saved.data() != nullptr ? saved.data() : frame.template take<lse_parts<A>>(logits.rows);
  const auto policy = detail::policy<A>::template on<B>(batch, opt, at, nullptr);
  detail::select_columns_of<B, kernel_for<op::selective_log_softmax, B>>(name, at, batch.ids, batch.mask, logits.cols,
                                                                         column, policy.padded(), ctx);
  kernel_for<op::grpo_loss, B>::template forward<B, T>(logits, column, policy, lse,
                                                       detail::policy_output<A>{loss, metrics, partial}, ctx);
}

/// dlogits, for the batch and the options of forward and what that saved. See grpo_loss_forward for the contract.
template <class B = default_backend, class T>
void grpo_loss_backward(in_matrix<T> logits, const std::type_identity_t<policy_batch<accumulator_t<T>>>& batch,
                        std::type_identity_t<std::span<const lse_parts<accumulator_t<T>>>> saved,
                        std::type_identity_t<std::span<const accumulator_t<T>>> upstream, matrix_view<T> dlogits,
                        policy_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  constexpr std::string_view name = "grpo_loss_backward";
  arguments args(name);
  const detail::token_rows at = detail::declare_grpo<B, A>(args, name, logits, batch, opt);
  args.in("saved", saved, logits.rows);
  detail::declare_upstream<A>(args, at, opt, upstream);
  args.out("dlogits", dlogits, logits.rows, logits.cols).may_be("logits");
  args.check();
  ctx.workspace().expect(name, grpo_loss_workspace<B, T>(logits.rows, at.batch));

  workspace::frame frame(ctx.workspace());
  auto* column = frame.template take<std::int64_t>(logits.rows);
  const auto policy = detail::policy<A>::template on<B>(batch, opt, at, nullptr);
  detail::select_columns_of<B, kernel_for<op::selective_log_softmax, B>>(name, at, batch.ids, batch.mask, logits.cols,
                                                                         column, policy.padded(), ctx);
  kernel_for<op::grpo_loss, B>::template backward<B, T>(logits, column, policy, saved.data(), upstream, dlogits, ctx);
}

/// Bytes of workspace that grpo_loss_forward_backward takes.
template <class B = default_backend, class T>
std::size_t grpo_loss_forward_backward_workspace(std::size_t rows, std::size_t batch, std::size_t vocab,
                                                 const context& ctx = default_context<B>()) {
  return grpo_loss_workspace<B, T>(rows, batch) + workspace::bytes_for<detail::policy_sequence>(batch) +
         simd::scratch_workspace<B, accumulator_t<T>>(vocab, 1, ctx);
}

namespace detail {
inline namespace TIGON_ABI {
template <class B, element T, class A = accumulator_t<T>>
void grpo_loss_at_once(matrix_view<const T> logits, const policy_call<A>& call, matrix_view<T> dlogits, context& ctx) {
  using K = kernel_for<op::grpo_loss, B>;
  constexpr std::string_view name = "grpo_loss_forward_backward";
  const auto& [batch, to, opt, upstream, own] = call;
  arguments args(name);
  const token_rows at = declare_grpo<B, A>(args, name, logits, batch, opt, own);
  declare_policy_results<A>(args, at, opt, to, batch.ref_logp.data != nullptr);
  declare_upstream<A>(args, at, opt, upstream);
  args.out("dlogits", dlogits, logits.rows, logits.cols).may_be("logits");
  args.check();
  ctx.workspace().expect(name, grpo_loss_forward_backward_workspace<B, T>(logits.rows, at.batch, logits.cols, ctx));

  workspace::frame frame(ctx.workspace());
  auto* column = frame.template take<std::int64_t>(logits.rows);
  auto* partial = frame.template take<double>(3 * at.batch);
  auto* sequences = frame.template take<policy_sequence>(at.batch);
  const auto losses = policy<A>::template on<B>(batch, opt, at, own);
  select_columns_of<B, kernel_for<op::selective_log_softmax, B>>(name, at, batch.ids, batch.mask, logits.cols, column,
                                                                 losses.padded(), ctx);
  constexpr bool generic_rows = runs_kernel_of<op::selective_log_softmax, B, backends::generic>;
  if constexpr (generic_rows && requires { &K::template forward_backward<B, T>; })
    if (losses.by_token()) {
      double* logp = frame.template take<double>(logits.rows);
      for (std::size_t b = 0; b < at.batch; ++b) sequences[b] = losses.sequence(b, nullptr);
      K::template forward_backward<B, T>(logits, column, losses, sequences, upstream, logp, dlogits, ctx);
      return losses.template evaluate<B>(logp, {to.loss, to.metrics, partial}, ctx);
    }
  auto* lse = frame.template take<lse_parts<A>>(logits.rows);
  K::template forward<B, T>(logits, column, losses, lse, detail::policy_output<A>{to.loss, to.metrics, partial}, ctx);
  K::template backward<B, T>(logits, column, losses, lse, upstream, dlogits, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Loss, metrics and dlogits in one call, for an upstream gradient that is known beforehand: faster than two calls
/// where the loss of a token needs no other token (level token, all types but vespo and gmpo), because then each row is
/// read from memory once. See grpo_loss_forward for the contract.
template <class B = default_backend, class T>
void grpo_loss_forward_backward(in_matrix<T> logits, const std::type_identity_t<policy_batch<accumulator_t<T>>>& batch,
                                std::type_identity_t<std::span<accumulator_t<T>>> loss, matrix_view<T> dlogits,
                                policy_options opt = {},
                                std::type_identity_t<policy_metrics<accumulator_t<T>>> metrics = {},
                                std::type_identity_t<std::span<const accumulator_t<T>>> upstream = {},
                                context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::grpo_loss_at_once<B, T>(logits, {batch, {loss, metrics}, opt, upstream}, dlogits, ctx);
}

/// The same with a policy loss of your own. opt.type is policy_loss::own; the gradient is that of the loss.
template <class B = default_backend, class T>
void grpo_loss_forward_backward(in_matrix<T> logits, const std::type_identity_t<policy_batch<accumulator_t<T>>>& batch,
                                token_loss f, const std::type_identity_t<policy_results<accumulator_t<T>>>& to,
                                matrix_view<T> dlogits, const policy_options& opt,
                                context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::grpo_loss_at_once<B, T>(logits, {batch, to, opt, {}, &f}, dlogits, ctx);
}

TIGON_EXPLAINS(grpo_loss_forward)
TIGON_EXPLAINS(grpo_loss_backward)
TIGON_EXPLAINS(grpo_loss_forward_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_GRPO_LOSS_HPP
