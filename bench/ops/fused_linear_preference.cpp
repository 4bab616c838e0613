#include <tigon/losses/fused_linear_preference.hpp>

#include "ops/preference.hpp"
#include "ops/squared.hpp"

namespace tigon_bench {
op_entry fused_linear_preference() {
  return linear_loss_entry("fused_linear_preference", {2048, 2048, 32000}, []<class B, class T>(const request& r) {
    return preference_plan<B, T>(r, 1024, 2, true, [](const preference_case<T>& c, tigon::context& ctx) {
      const squared_margin f;
      if constexpr (std::same_as<B, plain>) {
        c.in_steps(ctx, passes::of_pairs(c.sequences, true, true, f));
      } else {
        tigon::fused_linear_preference_forward<B>(c.layer(), {c.target()}, f, {c.loss.span()}, c.gradients(), {},
                                                  c.reference(), ctx);
      }
    });
  });
}

}  // namespace tigon_bench
