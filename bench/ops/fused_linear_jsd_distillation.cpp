#include <tigon/losses/fused_linear_jsd_distillation.hpp>

#include "ops/distillation.hpp"

namespace tigon_bench {

op_entry fused_linear_jsd_distillation() {
  return linear_loss_entry(
      "fused_linear_jsd_distillation", {2048, 1024, 32000}, []<class B, class T>(const request& r) {
        return distillation_plan<B, T>(r, [](const distillation_case<T>& c, tigon::context& ctx) {
          if constexpr (std::same_as<B, plain>)
            c.in_steps(ctx, {0.5, 0.5}, [](tigon::context& context, const auto&... all) {
              return passes::jsd_of_logits<T, tigon::accumulator_t<T>>(context, all...);
            });
          else
            tigon::fused_linear_jsd_distillation_forward<B>(c.student(), c.teacher(), c.target.span(), {c.loss.span()},
                                                            c.gradients(), {}, ctx);
        });
      });
}

}  // namespace tigon_bench
