#include <tigon/losses/fused_linear_cpo.hpp>

#include "../pairs.hpp"

namespace golden::adapters {

struct fused_linear_cpo {
  using op = tigon::op::fused_linear_cpo;

  // The products are those of fused_linear_dpo, whose cases run on every backend that has its own.

  template <class B, class T>
  static results run(const problem& p) {
    preference_problem<T> q(p);
    const tigon::fused_linear_cpo_options opt{.pairs = pair_options(p),
                                              .beta = p.opt.number("beta"),
                                              .label_smoothing = p.opt.number("label_smoothing"),
                                              .compute_nll_loss = p.opt.flag("compute_nll_loss", true),
                                              .average_log_prob = p.opt.flag("average_log_prob")};
    pair_results out(q.sequences / 2);
    tigon::fused_linear_cpo_forward<B>(q.layer(), q.targets(), out.spans(q.loss), q.gradients(), opt);
    results named = out.named();
    q.template scale_gradients<tigon::op::fused_linear_cpo, B>(p);
    q.add_to(named);
    return named;
  }
};

}  // namespace golden::adapters
