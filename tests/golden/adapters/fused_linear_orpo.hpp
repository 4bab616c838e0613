#include <tigon/losses/fused_linear_orpo.hpp>

#include "../pairs.hpp"

namespace golden::adapters {

struct fused_linear_orpo {
  using op = tigon::op::fused_linear_orpo;

  // The products are those of fused_linear_dpo, whose cases run on every backend that has its own.

  template <class B, class T>
  static results run(const problem& p) {
    preference_problem<T> q(p);
    const tigon::fused_linear_orpo_options opt{.pairs = pair_options(p),
                                               .beta = p.opt.number("beta"),
                                               .compute_nll_loss = p.opt.flag("compute_nll_loss", true)};
    pair_results out(q.sequences / 2);
    tigon::fused_linear_orpo_forward<B>(q.layer(), {q.targets(), q.nll_targets()}, out.spans(q.loss), q.gradients(),
                                        opt);
    results named = out.named();
    q.template scale_gradients<tigon::op::fused_linear_orpo, B>(p);
    q.add_to(named);
    return named;
  }
};

}  // namespace golden::adapters
