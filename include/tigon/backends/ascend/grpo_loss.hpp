// Policy losses on logits: log-probabilities and dlogits row by row in blocks of the vocabulary. What is a number a
// token is computed beside the buffer.
#ifndef TIGON_BACKENDS_ASCEND_GRPO_LOSS_HPP
#define TIGON_BACKENDS_ASCEND_GRPO_LOSS_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/losses/grpo_loss.hpp>

namespace tigon {

template <>
struct kernel<op::grpo_loss, backends::ascend> : ub::kernel_of_rows_on_tiles<op::grpo_loss> {
  template <backend B, element T>
  static void forward(in_matrix<T> logits, const std::int64_t* column, const detail::policy<accumulator_t<T>>& policy,
                      lse_parts<accumulator_t<T>>* saved_lse, detail::policy_output<accumulator_t<T>> out,
                      context& ctx) {
    using tiles = ub::rows_on_tiles<B, op::grpo_loss, tiling::pass::forward>;
    lanes::template forward<tiles, T>(logits, column, policy, saved_lse, out, ctx);
  }
  static void forward_backward() = delete;  ///< a row's exponentials do not stay: two passes
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_GRPO_LOSS_HPP
