#include <tigon/losses/fused_linear_unpaired_preference.hpp>

#include "ops/preference.hpp"
#include "ops/squared.hpp"

namespace tigon_bench {
op_entry fused_linear_unpaired_preference() {
  return linear_loss_entry(
      "fused_linear_unpaired_preference", {2048, 2048, 32000}, []<class B, class T>(const request& r) {
        return preference_plan<B, T>(r, 1024, 1, true, [](const preference_case<T>& c, tigon::context& ctx) {
          const std::vector<std::uint8_t> desirable(c.sequences, 1);
          const squared_ratio f;
          if constexpr (std::same_as<B, plain>) {
            (void)desirable;
            c.in_steps(ctx, passes::of_sequences(c.sequences, f));
          } else {
            tigon::fused_linear_unpaired_preference_forward<B>(c.layer(), {c.target(), desirable}, f, {c.loss.span()},
                                                               c.gradients(), {}, c.reference(), ctx);
          }
        });
      });
}

}  // namespace tigon_bench
