#include <tigon/losses/fused_linear_cpo.hpp>

#include "../pairs.hpp"

namespace golden::adapters {

struct fused_linear_cpo {
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
    tigon::fused_linear_cpo_forward<B>(q.x, tigon::matrix_view<const T>(q.w), q.targets(), q.loss, q.dx.view(),
                                       q.dw.view(), opt, q.bias, q.dbias, out.spans());
    results named = out.named();
    tigon::fused_linear_cpo_backward<B>(q.dx, q.dw, upstream_of(p), q.dx.view(), q.dw.view(), q.dbias, q.dbias);
    q.add_to(named);
    return named;
  }
};

}  // namespace golden::adapters
