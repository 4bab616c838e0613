#include <tigon/losses/fused_linear_dpo.hpp>

#include "../pairs.hpp"

namespace golden::adapters {

struct fused_linear_dpo {
  using op = tigon::op::fused_linear_dpo;
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
    tigon::fused_linear_dpo_forward<B>(q.layer(), {q.targets(), q.nll_targets()}, out.spans(q.loss), q.gradients(), opt,
                                       q.reference());
    results named = out.named();
    q.template scale_gradients<tigon::op::fused_linear_dpo, B>(p);
    q.add_to(named);
    return named;
  }
};

}  // namespace golden::adapters
