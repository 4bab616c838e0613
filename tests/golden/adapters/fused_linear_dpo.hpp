#include <tigon/losses/fused_linear_dpo.hpp>

#include "../pairs.hpp"

namespace golden::adapters {

struct fused_linear_dpo {
  static constexpr bool products = true;

  static tigon::dpo_loss loss_of(const problem& p) {
    constexpr std::string_view names[] = {"sigmoid",   "hinge",    "exo_pair", "nca_pair", "robust", "bco_pair",
                                          "sppo_hard", "apo_zero", "apo_down", "discopop", "ipo"};
    const std::string name = p.opt.text("loss_type", "sigmoid");
    const auto at = std::ranges::find(names, name);
    if (at == std::end(names)) throw cannot_run("loss type " + name + " is unknown");
    return static_cast<tigon::dpo_loss>(at - names);
  }

  template <class B, class T>
  static results run(const problem& p) {
    preference_problem<T> q(p);
    const tigon::fused_linear_dpo_options opt{.pairs = pair_options(p),
                                              .loss = loss_of(p),
                                              .beta = p.opt.number("beta"),
                                              .label_smoothing = p.opt.number("label_smoothing"),
                                              .discopop_tau = p.opt.number("discopop_tau"),
                                              .compute_nll_loss = p.opt.flag("compute_nll_loss"),
                                              .average_log_prob = p.opt.flag("average_log_prob")};
    pair_results out(q.sequences / 2);
    tigon::fused_linear_dpo_forward<B>(q.x, tigon::matrix_view<const T>(q.w), q.targets(), q.loss, q.dx.view(),
                                       q.dw.view(), opt, q.bias, q.dbias, q.reference(), q.nll_targets(), out.spans());
    results named = out.named();
    tigon::fused_linear_dpo_backward<B>(q.dx, q.dw, upstream_of(p), q.dx.view(), q.dw.view(), q.dbias, q.dbias);
    q.add_to(named);
    return named;
  }
};

}  // namespace golden::adapters
