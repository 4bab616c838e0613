#include <tigon/losses/grpo_loss.hpp>

#include "../policy.hpp"

namespace golden::adapters {

struct grpo_loss {
  using op = tigon::op::grpo_loss;

  template <class B, class T>
  static results run(const problem& p) {
    // Liger's kernel averages luspo over all positions, a masked one's loss being 0.
    const tigon::policy_options opt = policy_options_of(p, tigon::luspo_reduction::tokens);
    policy_case c(p, "completion_ids", "mask", opt.reduce);
    if (opt.type == tigon::policy_loss::vespo) c.count_all_ratios();
    matrix<T> logits(p.input("logits"));
    std::vector<tigon::lse_parts<float>> saved(logits.rows);
    tigon::grpo_loss_forward<B>(logits.view(), c.given(), c.loss, saved, opt, c.metrics(!c.ref_logp.empty()));
    tigon::grpo_loss_backward<B>(logits, c.given(), saved, c.upstream, logits.view(), opt);
    results named = c.named();
    named["d_logits"] = values_of(logits);
    return named;
  }
};

}  // namespace golden::adapters
