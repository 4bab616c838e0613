// Policy-gradient losses of the GRPO family on given logits. No structs: what the second pass over a row multiplies with
// is the loss of its token, from the element at the token's column, and masked rows are left before they are read.
#ifndef TIGON_LOSSES_GRPO_LOSS_HPP
#define TIGON_LOSSES_GRPO_LOSS_HPP

#include <tigon/losses/parts/grpo_loss_contract.hpp>

namespace tigon {

template <>
struct kernel<op::grpo_loss, backends::generic> {
  template <class T>
  using saved = std::span<lse_parts<accumulator_t<T>>>;

  /// column: of every row of logits, negative where it is not read.
  template <backend B, element T>
  static void forward(in_matrix<T> logits, const std::int64_t* column, const detail::policy<accumulator_t<T>>& policy,
                      lse_parts<accumulator_t<T>>* saved_lse, detail::policy_output<accumulator_t<T>> out,
                      context& ctx) {
    using A = accumulator_t<T>;
    workspace::frame frame(ctx.workspace());
    double* logp = frame.template take<double>(logits.rows);
    kernel_for<op::selective_log_softmax, B>::template forward<B, T>(
        logits, column, policy.opt.temperature, frame.template take<A>(logits.rows), saved_lse, ctx);
    detail::log_probabilities<B, T>(logits, column, saved_lse, policy, logp, ctx);
    policy.template evaluate<B>(logp, out, ctx);
  }

  template <backend B, element T>
  static void backward(in_matrix<T> logits, const std::int64_t* column, const detail::policy<accumulator_t<T>>& policy,
                       const lse_parts<accumulator_t<T>>* saved_lse, std::span<const accumulator_t<T>> upstream,
                       matrix_view<T> dlogits, context& ctx) {
    using A = accumulator_t<T>;
    workspace::frame frame(ctx.workspace());
    double* logp = frame.template take<double>(logits.rows);
    A* u = frame.template take<A>(logits.rows);
    detail::log_probabilities<B, T>(logits, column, saved_lse, policy, logp, ctx);
    policy.template gradient<B>(logp, upstream, u, ctx);
    kernel_for<op::selective_log_softmax, B>::template backward<B, T>(
        logits, saved_lse, selected_gradient<A>{column, u}, selected_gradient<A>{}, policy.opt.temperature, dlogits,
        ctx);
  }

  /// Both in one pass, for losses by_token(): u of a row is known as soon as its logp is. logp: of every row.
  template <backend B, element T>
  static void forward_backward(in_matrix<T> logits, const std::int64_t* column,
                               const detail::policy<accumulator_t<T>>& of, const detail::policy_sequence* sequences,
                               std::span<const accumulator_t<T>> upstream, double* logp, matrix_view<T> dlogits,
                               context& ctx) {
    using A = accumulator_t<T>;
    const auto* policy = &of;
    const double temperature = of.opt.temperature;
    const A inverse = static_cast<A>(1 / temperature);
    const detail::tempered<A> by(temperature);
    const bool in_place = dlogits.data == logits.data;
    for_rows_with_scratch<B, A>(ctx, logits.rows, logits.cols, 1, [=] TIGON_FN(auto row) {
      A u(0);
      lse_parts<A> lse;
      double log_p = 0;
      const std::int64_t k = column[row.i];
      vector_view<A> e = row.scratch(0);
      if constexpr (std::same_as<T, A>)
        if (in_place) e = {dlogits.row(row.i), row.cols};
      if (k >= 0) {
        const A own = row.at(logits, static_cast<std::size_t>(k));
        const A top = math::max(std::numeric_limits<A>::lowest(), row.max(reads(logits), [](auto v) { return v; }));
        const A sum = detail::tempered_exponentials<typename B::engine>(row, e, logits, top, by);
        lse = {top, sum - A(1)};
        if (lse.rest < A(1)) lse.rest = detail::sum_without_one(row, e);
        log_p = lse.log_p(own, temperature);
        u = policy->gradient_of_token(row.i, log_p, sequences, upstream);
      }
      if (row.first()) logp[row.i] = log_p;
      if (u == A(0)) return row.map(reads(constant(A(0))), writes(dlogits), [](auto zero) { return zero; });
      const A factor = -u * inverse / (A(1) + lse.rest);
      // The logits are an operand, because dlogits may be they: their lines are then cached and not to be streamed.
      row.map(reads(e, logits), writes(dlogits), [=](auto p, auto) { return normal_or_zero(p * factor); });
      if (row.first()) row.put(dlogits, static_cast<std::size_t>(k), -u * inverse * static_cast<A>(math::expm1(log_p)));
    });
  }
};

/// Bytes of workspace that grpo_loss_forward and _backward take for so many rows of logits of so many sequences.
template <class B = default_backend, class T>
constexpr std::size_t grpo_loss_workspace(std::size_t rows, std::size_t batch) {
  using A = accumulator_t<T>;
  return workspace::bytes_for<std::int64_t>(rows) + workspace::bytes_for<double>(rows) + workspace::bytes_for<A>(rows) +
         workspace::bytes_for<lse_parts<A>>(rows) + workspace::bytes_for<double>(3, batch);
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
/// Options    backward: as in forward.
/// Writes     loss; saved and the metrics, where they have memory; dlogits. Masked tokens and positions len are not
///            read; their loss and gradient are 0.
/// Aliasing   dlogits may be logits, which are then gone. Otherwise any layout in which no written element is shared.
/// Memory     a few numbers a row of logits; see grpo_loss_workspace.
/// Throws     tigon::error: as policy_options and selective_log_softmax; before the first write.
/// Max error  loss 1e-5, dlogits f32 1e-5, bf16 4e-3 of |reference| + its root mean square: what f32 holds of
///            log-probabilities (tests/losses/grpo_loss_test.cpp).
template <class B = default_backend, class Z, class T = std::remove_const_t<Z>>
void grpo_loss_forward(matrix_view<Z> logits, const std::type_identity_t<policy_batch<accumulator_t<T>>>& batch,
                       std::type_identity_t<std::span<accumulator_t<T>>> loss,
                       std::type_identity_t<std::span<lse_parts<accumulator_t<T>>>> saved, policy_options opt = {},
                       std::type_identity_t<policy_metrics<accumulator_t<T>>> metrics = {},
                       context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  constexpr std::string_view name = "grpo_loss_forward";
  arguments args(name);
  const detail::token_rows at = detail::declare_grpo<A>(args, name, logits, batch, opt);
  detail::declare_policy_results<A>(args, at, opt, {loss, metrics}, batch.ref_logp.data != nullptr);
  args.optional_out("saved", saved, logits.rows);
  args.check();
  ctx.workspace().expect(name, grpo_loss_workspace<B, T>(logits.rows, at.batch));

  workspace::frame frame(ctx.workspace());
  auto* column = frame.template take<std::int64_t>(logits.rows);
  auto* partial = frame.template take<double>(3 * at.batch);
  auto* lse = saved.data() != nullptr ? saved.data() : frame.template take<lse_parts<A>>(logits.rows);
  const detail::policy<A> policy(batch, opt, at, nullptr);
  detail::select_columns(name, at, batch.ids, batch.mask, logits.cols, column, policy.padded());
  kernel_for<op::grpo_loss, B>::template forward<B, T>(logits, column, policy, lse,
                                                       detail::policy_output<A>{loss, metrics, partial}, ctx);
}

/// dlogits, for the batch and the options of forward and what that saved. See grpo_loss_forward for the contract.
template <class B = default_backend, class T>
void grpo_loss_backward(in_matrix<T> logits, const std::type_identity_t<policy_batch<accumulator_t<T>>>& batch,
                        std::type_identity_t<std::span<const lse_parts<accumulator_t<T>>>> saved,
                        std::type_identity_t<std::span<const accumulator_t<T>>> upstream, matrix_view<T> dlogits,
                        policy_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  constexpr std::string_view name = "grpo_loss_backward";
  arguments args(name);
  const detail::token_rows at = detail::declare_grpo<A>(args, name, logits, batch, opt);
  args.in("saved", saved, logits.rows);
  detail::declare_upstream<A>(args, at, opt, upstream);
  args.out("dlogits", dlogits, logits.rows, logits.cols).may_be("logits");
  args.check();
  ctx.workspace().expect(name, grpo_loss_workspace<B, T>(logits.rows, at.batch));

  workspace::frame frame(ctx.workspace());
  auto* column = frame.template take<std::int64_t>(logits.rows);
  const detail::policy<A> policy(batch, opt, at, nullptr);
  detail::select_columns(name, at, batch.ids, batch.mask, logits.cols, column, policy.padded());
  kernel_for<op::grpo_loss, B>::template backward<B, T>(logits, column, policy, saved.data(), upstream, dlogits, ctx);
}

/// Bytes of workspace that grpo_loss_forward_backward takes.
template <class B = default_backend, class T>
std::size_t grpo_loss_forward_backward_workspace(std::size_t rows, std::size_t batch, std::size_t vocab,
                                                 const context& ctx = default_context()) {
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
  const token_rows at = declare_grpo<A>(args, name, logits, batch, opt, own);
  declare_policy_results<A>(args, at, opt, to, batch.ref_logp.data != nullptr);
  declare_upstream<A>(args, at, opt, upstream);
  args.out("dlogits", dlogits, logits.rows, logits.cols).may_be("logits");
  args.check();
  ctx.workspace().expect(name, grpo_loss_forward_backward_workspace<B, T>(logits.rows, at.batch, logits.cols, ctx));

  workspace::frame frame(ctx.workspace());
  auto* column = frame.template take<std::int64_t>(logits.rows);
  auto* partial = frame.template take<double>(3 * at.batch);
  auto* sequences = frame.template take<policy_sequence>(at.batch);
  const policy<A> losses(batch, opt, at, own);
  select_columns(name, at, batch.ids, batch.mask, logits.cols, column, losses.padded());
  constexpr bool generic_rows = std::same_as<provider_t<op::selective_log_softmax, B>, backends::generic>;
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
/// where the loss of a token needs no other token (level token, all types but vespo), because then each row is read
/// from memory once. See grpo_loss_forward for the contract.
template <class B = default_backend, class T>
void grpo_loss_forward_backward(in_matrix<T> logits, const std::type_identity_t<policy_batch<accumulator_t<T>>>& batch,
                                std::type_identity_t<std::span<accumulator_t<T>>> loss, matrix_view<T> dlogits,
                                policy_options opt = {},
                                std::type_identity_t<policy_metrics<accumulator_t<T>>> metrics = {},
                                std::type_identity_t<std::span<const accumulator_t<T>>> upstream = {},
                                context& ctx = default_context()) {
  static_assert(admits<B, T>());
  detail::grpo_loss_at_once<B, T>(logits, {batch, {loss, metrics}, opt, upstream}, dlogits, ctx);
}

/// The same with a policy loss of one's own. opt.type is policy_loss::own; the gradient is that of the loss.
template <class B = default_backend, class T>
void grpo_loss_forward_backward(in_matrix<T> logits, const std::type_identity_t<policy_batch<accumulator_t<T>>>& batch,
                                token_loss f, const std::type_identity_t<policy_results<accumulator_t<T>>>& to,
                                matrix_view<T> dlogits, const policy_options& opt, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  detail::grpo_loss_at_once<B, T>(logits, {batch, to, opt, {}, &f}, dlogits, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_GRPO_LOSS_HPP
