#include <tigon/losses/fused_linear_kto.hpp>

#include "../preference.hpp"

namespace golden::adapters {

struct fused_linear_kto {
  using op = tigon::op::fused_linear_kto;
  static constexpr bool products = true;

  template <class B, class T>
  static results run(const problem& p) {
    preference_problem<T> q(p);
    const tigon::fused_linear_kto_options opt{
        .sequences = {.ignore_index = static_cast<std::int64_t>(p.opt.number("ignore_index", -100))},
        .beta = p.opt.number("beta"),
        .average_log_prob = p.opt.flag("average_log_prob")};
    const auto labels = vector_of<std::uint8_t>(p.input("preference_labels"));
    const auto kl = p.in.contains("kl") ? vector_of<float>(p.input("kl")) : std::vector<float>();
    std::vector<float> sums(6);
    const auto sum = [&](std::size_t k) { return std::span(sums).subspan(k, 1); };
    tigon::fused_linear_kto_forward<B>(q.layer(), {q.targets(), labels}, kl,
                                       {.loss = q.loss,
                                        .chosen_logps_sum = sum(0),
                                        .rejected_logps_sum = sum(1),
                                        .chosen_logits_sum = sum(2),
                                        .rejected_logits_sum = sum(3),
                                        .chosen_rewards_sum = sum(4),
                                        .rejected_rewards_sum = sum(5)},
                                       q.gradients(), opt, q.reference());
    results named{{"chosen_logps_sum", {sums[0]}},   {"rejected_logps_sum", {sums[1]}},
                  {"chosen_logits_sum", {sums[2]}},  {"rejected_logits_sum", {sums[3]}},
                  {"chosen_rewards_sum", {sums[4]}}, {"rejected_rewards_sum", {sums[5]}}};
    q.template scale_gradients<tigon::op::fused_linear_kto, B>(p);
    q.add_to(named);
    return named;
  }
};

}  // namespace golden::adapters
