// The results of a loss on pairs, and the options that all of them have.
#ifndef TIGON_TESTS_GOLDEN_PAIRS_HPP
#define TIGON_TESTS_GOLDEN_PAIRS_HPP

#include <tigon/losses/fused_linear_preference.hpp>

#include "preference.hpp"

namespace golden {

inline tigon::preference_options pair_options(const problem& p) {
  return {.ignore_index = static_cast<std::int64_t>(p.opt.number("ignore_index", -100)),
          .alpha = p.opt.number("alpha", 1)};
}

struct pair_results {
  std::vector<float> chosen, rejected, chosen_rewards, rejected_rewards, means, metrics;

  explicit pair_results(std::size_t pairs)
      : chosen(pairs), rejected(pairs), chosen_rewards(pairs), rejected_rewards(pairs), means(3), metrics(2) {}
  tigon::preference_results<float> spans(std::span<float> loss) {
    const std::span<float> of(means);
    return {.loss = loss,
            .chosen_logps = chosen,
            .rejected_logps = rejected,
            .chosen_rewards = chosen_rewards,
            .rejected_rewards = rejected_rewards,
            .nll_loss = of.first(1),
            .chosen_logits_mean = of.subspan(1, 1),
            .rejected_logits_mean = of.subspan(2, 1),
            .metrics = metrics};
  }
  results named() const {
    return {{"chosen_logps", values_of(chosen)},
            {"rejected_logps", values_of(rejected)},
            {"chosen_rewards", values_of(chosen_rewards)},
            {"rejected_rewards", values_of(rejected_rewards)},
            {"nll_loss", {means[0]}},
            {"chosen_logits_mean", {means[1]}},
            {"rejected_logits_mean", {means[2]}},
            {"log_odds_ratio", {metrics[0]}},
            {"log_odds_chosen", {metrics[1]}}};
  }
};

}  // namespace golden

#endif  // TIGON_TESTS_GOLDEN_PAIRS_HPP
