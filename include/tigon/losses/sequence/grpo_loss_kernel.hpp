// The generic kernel of grpo_loss. No structs: what the second pass over a row multiplies with is the loss of its
// token, from the element at the token's column, and masked rows are left before they are read.
#ifndef TIGON_LOSSES_SEQUENCE_GRPO_LOSS_KERNEL_HPP
#define TIGON_LOSSES_SEQUENCE_GRPO_LOSS_KERNEL_HPP

#include <tigon/losses/sequence/grpo_loss_options.hpp>

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
    for_rows<B, A>(ctx, logits.rows, logits.cols, {.scratch = 1}, [=] TIGON_FN(auto row) {
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
      row.map(reads(cached{e}), writes(cached{dlogits, in_place}), [=](auto p) { return normal_or_zero(p * factor); });
      if (row.first()) row.put(dlogits, static_cast<std::size_t>(k), -u * inverse * static_cast<A>(math::expm1(log_p)));
    });
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_GRPO_LOSS_KERNEL_HPP
