#include <tigon/losses/fused_linear_jsd_distillation.hpp>

#include "../distillation.hpp"

namespace golden::adapters {

struct fused_linear_distill_jsd {
  using op = tigon::op::fused_linear_jsd_distillation;

  template <class B, class T>
  static results run(const problem& p) {
    distillation<T> d(p, "target");
    tigon::fused_linear_jsd_distillation_forward<B>(d.student(), d.teacher(), d.labels, d.losses(), d.gradients(),
                                                    {distillation_options(p, true, d.upstream), p.opt.number("beta")});
    return d.named();
  }
};

}  // namespace golden::adapters
