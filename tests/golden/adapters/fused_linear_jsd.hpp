#include <tigon/losses/fused_linear_jsd.hpp>

#include "../distillation.hpp"

namespace golden::adapters {

struct fused_linear_jsd {
  using op = tigon::op::fused_linear_jsd;

  template <class B, class T>
  static results run(const problem& p) {
    distillation<T> d(p, "labels");
    // Without labels every row counts, as with labels that are all 0.
    if (d.labels.empty()) d.labels.resize(d.x.rows);
    tigon::fused_linear_jsd_forward<B>(d.student(), d.teacher(), d.labels, d.loss, d.gradients(),
                                       {.beta = p.opt.number("beta"),
                                        .temperature = p.opt.number("temperature", 1),
                                        .ignore_index = static_cast<std::int64_t>(p.opt.number("ignore_index", -100)),
                                        .upstream = d.upstream});
    results named = d.named();
    named.erase("soft_loss"), named.erase("hard_loss");
    return named;
  }
};

}  // namespace golden::adapters
