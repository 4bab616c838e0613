// The tag and checks of grpo_loss.
#ifndef TIGON_LOSSES_SEQUENCE_GRPO_LOSS_OPTIONS_HPP
#define TIGON_LOSSES_SEQUENCE_GRPO_LOSS_OPTIONS_HPP

#include <tigon/losses/sequence/policy.hpp>

namespace tigon {

namespace op {
struct grpo_loss {
  static constexpr std::string_view name = "grpo_loss";
};
}  // namespace op

namespace detail {
inline namespace TIGON_ABI {
/// Bytes that a backend takes for sums of its own over the tokens of sequences.
template <class B>
constexpr std::size_t policy_workspace(std::size_t rows, std::size_t batch) {
  if constexpr (host_memory<B>)
    return 0;
  else
    return kernel_for<op::grpo_loss, B>::policy_workspace(rows, batch);
}

/// logp of every row that has a column, in f64: what the parts of lse hold is more than one f32 number does.
template <class B, element T, class A = accumulator_t<T>>
void log_probabilities(matrix_view<const T> logits, const std::int64_t* column, const lse_parts<A>* lse,
                       const policy<A>& of, double* logp, context& ctx) {
  for_host_tasks<B>(ctx, of.at.batch, [&](std::size_t b, std::size_t) {
    for (std::size_t i = b * of.at.stride; i < (b + 1) * of.at.stride; ++i)
      logp[i] = column[i] < 0 ? 0 : lse[i].log_p(static_cast<A>(logits.row(i)[column[i]]), of.opt.temperature);
  });
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_GRPO_LOSS_OPTIONS_HPP
