// Arguments of the policy losses, and of log-probabilities of tokens.
#ifndef TIGON_TORCH_POLICY_HPP
#define TIGON_TORCH_POLICY_HPP

#include <tigon/losses/sequence/policy_options.hpp>

#include "call.hpp"

namespace tigon_torch {

inline tigon::policy_options policy_options_of(const policy_options& o) {
  tigon::policy_options opt;
  opt.type = static_cast<tigon::policy_loss>(o.type), opt.level = static_cast<tigon::importance>(o.level);
  opt.reduce = o.reduce, opt.bias_corrected_kl = o.bias_corrected_kl;
  opt.luspo = static_cast<tigon::luspo_reduction>(o.luspo);
  opt.temperature = o.temperature, opt.beta = o.beta;
  opt.epsilon_low = o.epsilon_low, opt.epsilon_high = o.epsilon_high;
  opt.delta = o.delta, opt.max_log_ratio = o.max_log_ratio;
  opt.tau_positive = o.tau_positive, opt.tau_negative = o.tau_negative;
  opt.k_positive = o.k_positive, opt.lambda_positive = o.lambda_positive;
  opt.k_negative = o.k_negative, opt.lambda_negative = o.lambda_negative;
  opt.max_length = o.max_length, opt.denominator = o.denominator;
  return opt;
}
template <class A>
tigon::policy_batch<A> batch_of(const policy_batch& b) {
  tigon::policy_batch<A> batch{view<const std::int64_t>(b.ids), view<const A>(b.advantages)};
  batch.old_logp = view<const A>(b.old_logp), batch.ref_logp = view<const A>(b.ref_logp);
  batch.sampling_ratio = view<const A>(b.sampling_ratio);
  if (b.mask.data != nullptr) batch.mask = view<const A>(b.mask);
  return batch;
}

/// Two numbers a row of logits, as vectors hold them.
template <class Parts>
std::span<Parts> parts_of(const vector& v) {
  return {static_cast<Parts*>(v.data), v.size / 2};
}

}  // namespace tigon_torch

#endif  // TIGON_TORCH_POLICY_HPP
