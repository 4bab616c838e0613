#include <tigon/losses/fused_linear_preference.hpp>

#include "ops/preference.hpp"

namespace tigon_bench {
namespace {

/// A loss of one's own: half the squared distance of a pair's ratios to a margin of 1.
struct squared_margin {
  tigon::pair_value operator()(const tigon::preference_pair& p) const {
    const double u = p.chosen_ratio - p.rejected_ratio - 1;
    return {u * u / 2, u, -u, {}};
  }
};

}  // namespace

op_entry fused_linear_preference() {
  return linear_loss_entry("fused_linear_preference", {2048, 2048, 32000}, []<class B, class T>(const request& r) {
    return preference_plan<B, T>(r, 1024, 2, true, [](const preference_case<T>& c, tigon::context& ctx) {
      const squared_margin f;
      tigon::fused_linear_preference_forward<B>(c.layer(), {c.target()}, f, {c.loss.span()}, c.gradients(), {},
                                                c.reference(), ctx);
    });
  });
}

}  // namespace tigon_bench
