#include <tigon/losses/fused_linear_dpo.hpp>

#include "ops/preference.hpp"

namespace tigon_bench {

op_entry fused_linear_dpo() {
  return linear_loss_entry("fused_linear_dpo", {2048, 2048, 32000}, []<class B, class T>(const request& r) {
    return preference_plan<B, T>(r, 512, 2, true, [](const preference_case<T>& c, tigon::context& ctx) {
      if constexpr (std::same_as<B, plain>) {
        c.in_steps(ctx, passes::of_pairs(c.sequences, false, false, passes::sigmoid_pair{0.1, 0, true}));
      } else {
        tigon::fused_linear_dpo_forward<B>(c.layer(), {c.target()}, {c.loss.span()}, c.gradients(), {}, c.reference(),
                                           ctx);
      }
    });
  });
}

}  // namespace tigon_bench
