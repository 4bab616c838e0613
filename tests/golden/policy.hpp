// What the adapters of the policy losses have in common.
#ifndef TIGON_TESTS_GOLDEN_POLICY_HPP
#define TIGON_TESTS_GOLDEN_POLICY_HPP

#include <tigon/losses/sequence/policy.hpp>

#include <cmath>

#include "tensors.hpp"

namespace golden {

TIGON_NOINLINE inline tigon::policy_options policy_options_of(const problem& p, tigon::luspo_reduction luspo) {
  using type = tigon::policy_loss;
  const std::pair<std::string_view, type> types[] = {
      {"grpo", type::grpo},   {"bnpo", type::bnpo},   {"dr_grpo", type::dr_grpo}, {"dapo", type::dapo},
      {"luspo", type::luspo}, {"cispo", type::cispo}, {"sapo", type::sapo},       {"vespo", type::vespo}};
  tigon::policy_options out;
  const std::string name = p.opt.text("loss_type");
  const auto found = std::find_if(std::begin(types), std::end(types), [&](const auto& t) { return t.first == name; });
  if (found == std::end(types)) throw cannot_run("loss_type " + name + " is unknown");
  out.type = found->second;
  out.luspo = luspo;
  if (p.opt.text("importance_sampling_level", "token") == "sequence") out.level = tigon::importance::sequence;
  out.reduce = p.opt.flag("reduce", true);
  out.temperature = p.opt.number("temperature", 1);
  out.beta = p.opt.number("beta");
  out.epsilon_low = p.opt.number("eps_low"), out.epsilon_high = p.opt.number("eps_high");
  out.delta = p.opt.number("delta");
  out.bias_corrected_kl = p.opt.flag("use_bias_correction_kl");
  out.tau_positive = p.opt.number("sapo_temperature_pos", 1),
  out.tau_negative = p.opt.number("sapo_temperature_neg", 1);
  out.k_positive = p.opt.number("vespo_k_pos"), out.lambda_positive = p.opt.number("vespo_lambda_pos");
  out.k_negative = p.opt.number("vespo_k_neg"), out.lambda_negative = p.opt.number("vespo_lambda_neg");
  out.max_length = p.opt.number("max_completion_length");
  out.denominator = p.opt.number("num_items_in_batch");
  return out;
}

/// The inputs of a policy loss beside logits, and its results.
struct policy_case {
  std::size_t batch, len;
  std::vector<std::int64_t> ids, mask;
  std::vector<float> advantages, old_logp, ref_logp, sampling_ratio, upstream, loss, kl, clipped;

  TIGON_NOINLINE policy_case(const problem& p, std::string_view ids_name, std::string_view mask_name, bool reduce)
      : batch(p.input(ids_name).rows()),
        len(p.input(ids_name).cols()),
        ids(vector_of<std::int64_t>(p.input(ids_name))),
        advantages(vector_of<float>(p.input("advantages"))),
        upstream(vector_of<float>(p.upstream("loss"))),
        loss(reduce ? 1 : ids.size()),
        kl(loss.size()),
        clipped(loss.size()) {
    const auto read = [&](auto& to, std::string_view name) {
      if (p.in.contains(name)) to = vector_of<typename std::remove_cvref_t<decltype(to)>::value_type>(p.input(name));
    };
    read(mask, mask_name), read(old_logp, "old_logp"), read(ref_logp, "ref_logp");
    read(sampling_ratio, "vllm_is_ratio");
  }
  TIGON_NOINLINE tigon::policy_batch<float> given() const {
    const auto view = [&](const std::vector<float>& v) {
      return v.empty() ? tigon::matrix_view<const float>{}
                       : tigon::matrix_view<const float>(v.data(), batch, v.size() / batch);
    };
    tigon::policy_batch<float> out{.ids = tigon::matrix_view(ids.data(), batch, len),
                                   .advantages = advantages,
                                   .old_logp = view(old_logp),
                                   .ref_logp = view(ref_logp),
                                   .sampling_ratio = view(sampling_ratio)};
    if (!mask.empty()) out.mask = tigon::matrix_view(mask.data(), batch, len);
    return out;
  }
  /// Liger's vespo counts the sampling ratio of masked tokens too, and that of a sequence once for each of its tokens:
  /// here one number a sequence, their product.
  TIGON_NOINLINE void count_all_ratios() {
    if (sampling_ratio.empty()) return;
    const std::size_t each = sampling_ratio.size() / batch;
    std::vector<float> product;
    for (std::size_t b = 0; b < batch; ++b) {
      double log_sum = 0;
      for (std::size_t t = 0; t < len; ++t)
        log_sum += std::log(static_cast<double>(sampling_ratio[b * each + t % each]));
      product.push_back(static_cast<float>(std::exp(log_sum)));
    }
    sampling_ratio = product;
  }
  tigon::policy_metrics<float> metrics(bool reference) {
    return {reference ? std::span<float>(kl) : std::span<float>{}, clipped};
  }
  results named() const {
    return {{"loss", values_of(loss)},
            {"kl", values_of(kl)},
            {"kl_mean", values_of(kl)},
            {"is_clipped", values_of(clipped)},
            {"clip_ratio", values_of(clipped)}};
  }
};

}  // namespace golden

#endif  // TIGON_TESTS_GOLDEN_POLICY_HPP
