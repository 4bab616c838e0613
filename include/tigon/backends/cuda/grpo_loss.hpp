// Policy losses of given logits on a GPU: rows of logits, and a thread a token between them.
#ifndef TIGON_BACKENDS_CUDA_GRPO_LOSS_HPP
#define TIGON_BACKENDS_CUDA_GRPO_LOSS_HPP

#include <tigon/backends/cuda/policy.hpp>
// Behind it: it says how these are compiled.
#include <tigon/losses/sequence/grpo_loss_kernel.hpp>

namespace tigon {

template <>
struct kernel<op::grpo_loss, backends::cuda> {
  template <class T>
  using saved = std::span<lse_parts<accumulator_t<T>>>;

  static constexpr std::size_t policy_workspace(std::size_t rows, std::size_t batch) {
    return gpu::sums_of_policy(rows, batch);
  }

  template <backend B, element T>
  static void forward(in_matrix<T> logits, const std::int64_t* column, const detail::policy<accumulator_t<T>>& policy,
                      lse_parts<accumulator_t<T>>* saved_lse, detail::policy_output<accumulator_t<T>> out,
                      context& ctx) {
    gpu::refuse_function("grpo_loss", policy);
    workspace::frame frame(ctx.workspace());
    kernel_for<op::selective_log_softmax, B>::template forward<B, T>(
        logits, column, policy.opt.temperature, frame.template take<accumulator_t<T>>(logits.rows), saved_lse, ctx);
    gpu::evaluate(policy, gpu::logp_of_logits<T>{logits, column, saved_lse, policy.opt.temperature}, out, ctx);
  }

  template <backend B, element T>
  static void backward(in_matrix<T> logits, const std::int64_t* column, const detail::policy<accumulator_t<T>>& policy,
                       const lse_parts<accumulator_t<T>>* saved_lse, std::span<const accumulator_t<T>> upstream,
                       matrix_view<T> dlogits, context& ctx) {
    using A = accumulator_t<T>;
    gpu::refuse_function("grpo_loss", policy);
    workspace::frame frame(ctx.workspace());
    A* const u = frame.template take<A>(logits.rows);
    gpu::gradient_of(policy, 0, policy.at.rows(),
                     gpu::logp_of_logits<T>{logits, column, saved_lse, policy.opt.temperature}, upstream, u, ctx);
    kernel_for<op::selective_log_softmax, B>::template backward<B, T>(
        logits, saved_lse, selected_gradient<A>{column, u}, selected_gradient<A>{}, policy.opt.temperature, dlogits,
        ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_GRPO_LOSS_HPP
