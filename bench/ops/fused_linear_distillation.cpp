#include <tigon/losses/fused_linear_distillation.hpp>

#include "ops/distillation.hpp"

namespace tigon_bench {
namespace {

/// A soft loss of one's own: half the squared distance of the logits.
template <class A>
struct squared_error {
  static constexpr bool takes_neg_inf = false;
  struct terms {
    template <class V>
    TIGON_INLINE tigon::pack<V, 4> operator()(V v, V t) const {
      const V r = v - t;
      return {{r, r, r * r, r}};
    }
    TIGON_INLINE tigon::soft_loss_row<A> finish(A square, A) const { return {square / 2, 0, 1}; }
  };
  template <class Row>
  TIGON_INLINE terms operator()(Row, tigon::vector_view<A>, tigon::vector_view<A>) const {
    return {};
  }
};

}  // namespace

op_entry fused_linear_distillation() {
  return linear_loss_entry("fused_linear_distillation", {2048, 1024, 32000}, []<class B, class T>(const request& r) {
    return distillation_plan<B, T>(r, [](const distillation_case<T>& c, tigon::context& ctx) {
      tigon::fused_linear_distillation_forward<B>(c.student(), c.teacher(), c.target.span(),
                                                  squared_error<tigon::accumulator_t<T>>{}, {c.loss.span()},
                                                  c.gradients(), {}, ctx);
    });
  });
}

}  // namespace tigon_bench
