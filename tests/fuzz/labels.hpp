// What cases of losses have in common: labels, and the batches of a policy.
#ifndef TIGON_TESTS_FUZZ_LABELS_HPP
#define TIGON_TESTS_FUZZ_LABELS_HPP

#include <tigon/losses/sequence/policy_options.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "problem.hpp"

namespace tigon::fuzz {

/// Labels of so many classes, one in five of them ignored. In a few cases, unless nobody looks at them, one is outside.
template <class P>
twin<std::int64_t>& some_labels(P& p, twin<std::int64_t>& target, std::size_t classes, std::int64_t ignored = -100,
                                bool may_be_outside = true) {
  generator next(p.in.seed());
  for (std::size_t k = 0; k < target.size(); ++k)
    target.set(k, static_cast<double>(next() % 5 == 0 ? ignored : static_cast<std::int64_t>(next() % classes)));
  if (may_be_outside && target.size() != 0 && p.in.one_in(16)) {
    target.set(p.in.below(target.size()), p.in.pick({static_cast<double>(classes), -1.0, -9e18, 9e18, 2147483648.0}));
    p.may_refuse = true;
  }
  return target;
}

/// What a mean over labels divides by.
inline double counted_labels(const argument& target, std::int64_t ignored = -100) {
  double counted = 0;
  for (std::size_t k = 0; k < target.size(); ++k) counted += target.wanted(k) != static_cast<double>(ignored);
  return std::max(counted, 1.0);
}

/// Options of a policy's loss, and batch sequences of len tokens. Near the clipping bounds a ratio decides by a hair:
/// old log-probabilities are away from them.
template <class P>
struct some_policy {
  using A = typename P::A;
  tigon::policy_options opt;
  twin<std::int64_t>& ids;
  twin<std::uint8_t>& mask;
  twin<A>&old_logp, &ref_logp, &advantages;

  some_policy(P& p, std::size_t batch, std::size_t len, std::size_t vocab)
      : ids(p.template matrix<std::int64_t>("ids", batch, len)),
        mask(p.template matrix<std::uint8_t>("mask", batch, len)),
        old_logp(p.template matrix<A>("old_logp", batch, len)),
        ref_logp(p.template matrix<A>("ref_logp", batch, len)),
        advantages(p.filled(p.template vector<A>("advantages", batch), 0, 1, false)) {
    using enum tigon::policy_loss;
    opt.type = p.in.pick({grpo, bnpo, dr_grpo, dapo, luspo, cispo, sapo, vespo, gmpo});
    opt.beta = p.in.pick({0.04, 0.0}), opt.reduce = p.in.one_in(2), opt.temperature = p.in.pick({1.0, 0.8});
    p.note_options(static_cast<int>(opt.type), opt.beta, opt.reduce, opt.temperature);
    generator next(p.in.seed());
    const double about = -std::log(static_cast<double>(vocab)) - 0.5;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      ids.set(k, static_cast<double>(next() % vocab)), mask.set(k, next() % 4 != 0);
      old_logp.set(k, about + 0.3 * next.normal()), ref_logp.set(k, about + 0.3 * next.normal());
    }
    if (p.in.one_in(16)) ids.set(p.in.below(ids.size()), static_cast<double>(vocab)), p.may_refuse = true;
  }

  /// Losses that the options make.
  std::size_t results() const { return opt.reduce ? 1 : ids.size(); }
  template <class S>
  auto batch(S s) const {
    using N = std::conditional_t<S::is_reference, double, A>;
    return tigon::policy_batch<N>{.ids = ids.at(s),
                                  .advantages = advantages.vec(s),
                                  .old_logp = old_logp.at(s),
                                  .ref_logp = ref_logp.at(s),
                                  .mask = mask.at(s)};
  }
};

}  // namespace tigon::fuzz

#endif  // TIGON_TESTS_FUZZ_LABELS_HPP
