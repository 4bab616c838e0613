// What the doors of grpo_loss share: checks, and log-probabilities from what forward saved.
#ifndef TIGON_LOSSES_PARTS_GRPO_LOSS_CONTRACT_HPP
#define TIGON_LOSSES_PARTS_GRPO_LOSS_CONTRACT_HPP

#include <tigon/losses/parts/policy.hpp>

namespace tigon {

namespace op {
struct grpo_loss {
  static constexpr std::string_view name = "grpo_loss";
};
}  // namespace op

namespace detail {
inline namespace TIGON_ABI {

/// logp of every row that has a column, in f64: what the parts of lse hold is more than one f32 number does.
template <class B, element T, class A = accumulator_t<T>>
void log_probabilities(matrix_view<const T> logits, const std::int64_t* column, const lse_parts<A>* lse,
                       const policy<A>& of, double* logp, context& ctx) {
  for_host_tasks<B>(ctx, of.at.batch, [&](std::size_t b, std::size_t) {
    for (std::size_t i = b * of.at.stride; i < (b + 1) * of.at.stride; ++i)
      logp[i] = column[i] < 0 ? 0 : lse[i].log_p(static_cast<A>(logits.row(i)[column[i]]), of.opt.temperature);
  });
}

/// Declares logits and what a policy loss reads beside them.
template <class A>
token_rows declare_grpo(arguments& args, std::string_view op, extent logits, const policy_batch<A>& batch,
                        const policy_options& opt, const token_loss* own = nullptr) {
  args.at_least_one("vocab", logits.cols);
  args.in("logits", logits);
  return declare_policy(args, op, batch, opt, logits.rows, batch.ref_logp.data != nullptr, own);
}
/// The gradient of the loss, with dlogits not yet declared.
template <class A>
void declare_upstream(arguments& args, token_rows at, const policy_options& opt, std::span<const A> upstream) {
  if (!upstream.empty()) args.in("upstream", upstream, opt.reduce ? 1 : at.batch * at.len);
}

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_PARTS_GRPO_LOSS_CONTRACT_HPP
