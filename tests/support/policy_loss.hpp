// The policy losses in f64, as their definitions read, and inputs that keep away from their kinks.
#ifndef TIGON_TESTS_SUPPORT_POLICY_LOSS_HPP
#define TIGON_TESTS_SUPPORT_POLICY_LOSS_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <ostream>
#include <tigon/losses/sequence/policy.hpp>
#include <vector>

#include "guarded.hpp"
#include "problem.hpp"

namespace tigon::test {

/// log softmax(z / temperature) of a row.
struct log_softmax_row {
  const double* z;
  double temperature, top;
  long double tail;  ///< log-sum-exp above the maximum

  TIGON_TEST_NOINLINE log_softmax_row(const double* row, std::size_t vocab, double t)
      : z(row), temperature(t), top(*std::max_element(row, row + vocab)) {
    const auto first = std::find(row, row + vocab, top);
    long double others = 0;
    for (const double* v = row; v < row + vocab; ++v)
      if (v != first) others += std::exp((static_cast<long double>(*v) - top) / temperature);
    tail = std::log1p(others);
  }
  double at(std::size_t k) const {
    return static_cast<double>((static_cast<long double>(z[k]) - top) / temperature - tail);
  }
};

/// What the reference takes: empty vectors for what is absent; sampling_ratio of `batch` or `batch * len` numbers.
struct policy_inputs {
  std::size_t batch, len;
  std::vector<std::int64_t> ids, mask;
  std::vector<double> advantages, old_logp, ref_logp, sampling_ratio;
};

struct policy_outputs {
  double total = 0, kl_mean = 0, clip_ratio = 0;
  std::vector<double> loss, kl, clipped;
};

/// Loss and metrics of the log-probabilities [batch, len]; `frozen` are the same where gradients stop.
TIGON_TEST_NOINLINE inline policy_outputs policy_reference(const policy_inputs& in, const policy_options& opt,
                                                           const std::vector<double>& logp,
                                                           const std::vector<double>& frozen) {
  using enum policy_loss;
  const std::size_t n = in.batch * in.len;
  const auto mu = [&](std::size_t i) { return in.mask.empty() ? 1.0 : static_cast<double>(in.mask[i]); };
  const bool per_sequence = in.sampling_ratio.size() == in.batch && in.len != 1;
  const auto omega = [&](std::size_t i) {
    return in.sampling_ratio.empty() ? 1.0 : in.sampling_ratio[per_sequence ? i / in.len : i];
  };
  double all = 0;
  for (std::size_t i = 0; i < n; ++i) all += mu(i);
  policy_outputs out;
  for (std::size_t b = 0; b < in.batch; ++b) {
    const std::size_t first = b * in.len, last = first + in.len;
    const double a = in.advantages[b];
    double count = 0, mean = 0, clipped_mean = 0, s = 0;
    const auto old = [&](std::size_t i) { return in.old_logp.empty() ? frozen[i] : in.old_logp[i]; };
    for (std::size_t i = first; i < last; ++i) {
      if (mu(i) == 0) continue;
      const double r = logp[i] - old(i);
      clipped_mean += a >= 0 ? std::min(r, opt.epsilon_high) : std::max(r, -opt.epsilon_low);
      ++count, mean += r, s += std::clamp(frozen[i] - old(i), -20.0, 20.0);
      if (!in.sampling_ratio.empty() && !per_sequence) s += std::clamp(std::log(omega(i)), std::log(1e-8), 20.0);
    }
    if (!in.sampling_ratio.empty() && per_sequence) s += std::clamp(std::log(omega(first)), std::log(1e-8), 20.0);
    mean /= std::max(count, 1.0), clipped_mean /= std::max(count, 1.0);
    s = std::clamp(s, std::log(1e-8), 20.0);
    const double k = a >= 0 ? opt.k_positive : opt.k_negative;
    const double lambda = std::max(a >= 0 ? opt.lambda_positive : opt.lambda_negative, 1e-4);
    const double vespo_weight = std::exp(lambda + k * s - lambda * std::exp(s));
    const bool one_number = opt.level == importance::sequence && opt.beta == 0 &&
                            (in.sampling_ratio.empty() || per_sequence);  // a luspo loss of shape [batch, 1]
    const bool padded = opt.type == luspo && opt.luspo == luspo_reduction::padded && !one_number && opt.reduce;
    for (std::size_t i = first; i < last; ++i) {
      double loss = 0, kl = 0, clipped = 0;
      if (mu(i) != 0 || padded) {
        const double log_ratio = opt.type == gmpo                    ? clipped_mean
                                 : opt.level == importance::sequence ? mean
                                                                     : logp[i] - old(i);
        const double rho = std::exp(log_ratio);
        switch (opt.type) {
          case cispo: {
            const double frozen_rho = std::exp(frozen[i] - old(i));
            loss = -std::min(frozen_rho, opt.epsilon_high) * a * logp[i] * omega(i);
            clipped = frozen_rho > opt.epsilon_high && a > 0;
            break;
          }
          case sapo: {
            const double tau = a > 0 ? opt.tau_positive : opt.tau_negative;
            loss = -4 / tau / (1 + std::exp(-tau * (rho - 1))) * a * omega(i);
            break;
          }
          case gmpo: {
            loss = -rho * a * omega(i);
            const double r = logp[i] - old(i);
            clipped = a >= 0 ? r > opt.epsilon_high : r < -opt.epsilon_low;
            break;
          }
          case vespo: loss = -vespo_weight * a * logp[i]; break;
          default: {
            const double free = opt.delta > 0 ? std::min(rho, opt.delta) : rho;
            const double inside = std::clamp(rho, 1 - opt.epsilon_low, 1 + opt.epsilon_high);
            loss = -std::min(free * a, inside * a) * omega(i);
            clipped = (rho < 1 - opt.epsilon_low && a < 0) || (rho > 1 + opt.epsilon_high && a > 0);
          }
        }
        if (!in.ref_logp.empty()) {
          const long double d = static_cast<long double>(in.ref_logp[i]) - logp[i];
          kl = static_cast<double>(std::expm1(d) - d) * (opt.bias_corrected_kl ? rho : 1);
          loss += opt.beta * kl;
        }
      }
      const double batch = static_cast<double>(in.batch), len = static_cast<double>(in.len);
      double weight = 0;
      switch (opt.type) {
        case grpo:
        case gmpo:
        case sapo: weight = mu(i) / (batch * std::max(count, 1.0)); break;
        case bnpo: weight = mu(i) / std::max(all, 1.0); break;
        case dr_grpo: weight = mu(i) / (batch * (opt.max_length > 0 ? opt.max_length : len)); break;
        case luspo:
          if (opt.luspo == luspo_reduction::sequences || (opt.luspo == luspo_reduction::padded && one_number))
            weight = mu(i) / batch;
          else
            weight = (padded ? 1 : mu(i)) * count / (batch * len);
          break;
        default: weight = mu(i) / (opt.denominator > 0 ? opt.denominator : std::max(all, 1.0));
      }
      if (weight != 0) out.total += weight * loss;
      out.loss.push_back(mu(i) == 0 ? 0 : loss), out.kl.push_back(mu(i) == 0 ? 0 : kl);
      out.clipped.push_back(mu(i) == 0 ? 0 : clipped);
      out.kl_mean += out.kl.back() / std::max(all, 1.0), out.clip_ratio += out.clipped.back() / std::max(all, 1.0);
    }
  }
  return out;
}

/// Ratios of every kind: above, between and below the bounds 0.8, 1.1, 1.4 and 1.5, none within 3 % of one; at sequence
/// level too, because the tokens of a sequence differ by less. Advantages of both signs, sequences of several lengths,
/// the last one without any token that counts. All numbers are f32 numbers.
TIGON_TEST_NOINLINE inline policy_inputs policy_example(std::size_t batch, std::size_t len, std::size_t vocab,
                                                        const std::vector<double>& logp, std::uint64_t seed = 5) {
  policy_inputs in{batch, len, {}, {}, {}, {}, {}, {}};
  std::mt19937_64 generator(seed);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(generator);
  };
  const auto rounded = [](double v) { return static_cast<double>(static_cast<float>(v)); };
  const double ratios[] = {0.2, -0.5, 0.37, 0.6, -0.1, 0.04};
  for (std::size_t b = 0; b < batch; ++b) {
    in.advantages.push_back(rounded((b % 2 == 0 ? -1 : 1) * uniform(0.5, 1.5)));
    for (std::size_t t = 0; t < len; ++t) {
      const std::size_t i = b * len + t;
      in.ids.push_back(static_cast<std::int64_t>(generator() % vocab));
      in.mask.push_back(b + 1 < batch && (t == 0 || t + b % 3 < len));
      in.old_logp.push_back(rounded(logp[i] - ratios[(b + b / 2) % 6] + uniform(-0.005, 0.005)));
      in.ref_logp.push_back(rounded(logp[i] + uniform(-0.8, 0.8)));
      in.sampling_ratio.push_back(rounded(uniform(0.5, 1.5)));
    }
  }
  return in;
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_POLICY_LOSS_HPP
