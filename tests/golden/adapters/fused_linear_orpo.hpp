#include <tigon/losses/fused_linear_orpo.hpp>

#include "../pairs.hpp"

namespace golden::adapters {

struct fused_linear_orpo {
  // The products are those of fused_linear_dpo, whose cases run on every backend that has its own.

  template <class B, class T>
  static results run(const problem& p) {
    preference_problem<T> q(p);
    const tigon::fused_linear_orpo_options opt{.pairs = pair_options(p),
                                               .beta = p.opt.number("beta"),
                                               .compute_nll_loss = p.opt.flag("compute_nll_loss", true)};
    pair_results out(q.sequences / 2);
    tigon::fused_linear_orpo_forward<B>(q.x, tigon::matrix_view<const T>(q.w), q.targets(), q.loss, q.dx.view(),
                                        q.dw.view(), opt, q.bias, q.dbias, q.nll_targets(), out.spans());
    results named = out.named();
    tigon::fused_linear_orpo_backward<B>(q.dx, q.dw, upstream_of(p), q.dx.view(), q.dw.view(), q.dbias, q.dbias);
    q.add_to(named);
    return named;
  }
};

}  // namespace golden::adapters
