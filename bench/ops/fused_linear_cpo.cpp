#include <tigon/losses/fused_linear_cpo.hpp>

#include "ops/preference.hpp"

namespace tigon_bench {

op_entry fused_linear_cpo() {
  return linear_loss_entry("fused_linear_cpo", {2048, 2048, 32000}, []<class B, class T>(const request& r) {
    return preference_plan<B, T>(r, 1024, 2, false, [](const preference_case<T>& c, tigon::context& ctx) {
      if constexpr (std::same_as<B, plain>) {
        c.in_steps(ctx, passes::of_pairs(c.sequences, false, true, passes::sigmoid_pair{0.1, 0, false}));
      } else {
        tigon::fused_linear_cpo_forward<B>(c.layer(), c.target(), {c.loss.span()}, c.gradients(), {}, ctx);
      }
    });
  });
}

}  // namespace tigon_bench
