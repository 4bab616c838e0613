// What losses on sequences make of log-probabilities of tokens: a few numbers, on the host.
#ifndef TIGON_BENCH_PLAIN_SEQUENCES_HPP
#define TIGON_BENCH_PLAIN_SEQUENCES_HPP

#include <tigon/losses/sequence/fused_linear_preference_options.hpp>
#include <tigon/losses/sequence/fused_linear_unpaired_preference_options.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace tigon_bench::passes {

/// Pairs, the chosen sequences first: means or sums of log-probabilities, a function of them, and alpha = 1 times the
/// nll of the chosen where it counts. f(preference_pair) returns a pair_value.
template <class F>
auto of_pairs(std::size_t sequences, bool average, bool with_nll, F f) {
  return [=]<class A>(std::span<const A> logp, std::span<const A> ref, A* u) {
    const std::size_t pairs = sequences / 2, len = logp.size() / sequences;
    const double tokens = static_cast<double>(len), p = static_cast<double>(pairs), unit = average ? 1 / tokens : 1;
    const auto of = [=](std::span<const A> values, std::size_t s) {
      double total = 0;
      for (std::size_t t = 0; t < len; ++t) total += values.empty() ? 0 : static_cast<double>(values[s * len + t]);
      return total * unit;
    };
    double loss = 0;
    for (std::size_t b = 0; b < pairs; ++b) {
      tigon::preference_pair pair;
      pair.chosen = of(logp, b), pair.rejected = of(logp, pairs + b);
      pair.chosen_ratio = pair.chosen - of(ref, b), pair.rejected_ratio = pair.rejected - of(ref, pairs + b);
      pair.chosen_tokens = pair.rejected_tokens = average ? 1 : tokens;
      const tigon::pair_value v = f(pair);
      loss += v.loss / p;
      if (with_nll) loss -= of(logp, b) / unit / (p * tokens);
      for (std::size_t t = 0; t < len; ++t) {
        u[b * len + t] = static_cast<A>(v.dchosen * unit / p - (with_nll ? 1 / (p * tokens) : 0));
        u[(pairs + b) * len + t] = static_cast<A>(v.drejected * unit / p);
      }
    }
    return loss;
  };
}

/// Sequences that are all desirable, by sums. f(preference_sequence) returns a sequence_value.
template <class F>
auto of_sequences(std::size_t sequences, F f) {
  return [=]<class A>(std::span<const A> logp, std::span<const A> ref, A* u) {
    const std::size_t len = logp.size() / sequences;
    const double n = static_cast<double>(sequences);
    double loss = 0;
    for (std::size_t b = 0; b < sequences; ++b) {
      tigon::preference_sequence s;
      s.index = b, s.desirable = true;
      double reference = 0;
      for (std::size_t t = 0; t < len; ++t) {
        s.logp += static_cast<double>(logp[b * len + t]);
        reference += ref.empty() ? 0 : static_cast<double>(ref[b * len + t]);
      }
      s.ratio = s.logp - reference;
      const tigon::sequence_value v = f(s);
      loss += v.loss / n;
      for (std::size_t t = 0; t < len; ++t) u[b * len + t] = static_cast<A>(v.dlogp / n);
    }
    return loss;
  };
}

/// grpo on the first step of a batch, where the ratio is 1: -advantage + beta (exp(d) - 1 - d), d = ref - logp.
template <class A>
auto of_policy(std::size_t sequences, std::span<const A> advantages, double beta) {
  return [=](std::span<const A> logp, std::span<const A> ref, A* u) {
    const std::size_t len = logp.size() / sequences;
    const double weight = 1 / static_cast<double>(logp.size());
    double loss = 0;
    for (std::size_t i = 0; i < logp.size(); ++i) {
      const double d = static_cast<double>(ref[i]) - static_cast<double>(logp[i]),
                   a = static_cast<double>(advantages[i / len]);
      loss += weight * (-a + beta * (std::expm1(d) - d));
      u[i] = static_cast<A>(weight * (-a - beta * std::expm1(d)));
    }
    return loss;
  };
}

// The losses of the library's own names, with their default options.
inline double logistic(double v) { return v < 0 ? std::exp(v) / (1 + std::exp(v)) : 1 / (1 + std::exp(-v)); }
inline double softplus(double v) { return std::max(v, 0.0) + std::log1p(std::exp(-std::abs(v))); }

/// -log sigmoid of u = beta (chosen - rejected) - margin, of log-probabilities, or of ratios to a reference.
struct sigmoid_pair {
  double beta, margin;
  bool of_ratios;

  tigon::pair_value operator()(const tigon::preference_pair& p) const {
    const double d = of_ratios ? p.chosen_ratio - p.rejected_ratio : p.chosen - p.rejected, u = beta * d - margin;
    return {softplus(-u), -beta * logistic(-u), beta * logistic(-u), {}};
  }
};
/// beta times -log sigmoid of the logarithm of the odds ratio.
struct odds_pair {
  double beta;

  tigon::pair_value operator()(const tigon::preference_pair& p) const {
    const double odds = (p.chosen - std::log(-std::expm1(p.chosen))) - (p.rejected - std::log(-std::expm1(p.rejected)));
    const double slope = -beta * logistic(-odds);
    return {beta * softplus(-odds), slope / -std::expm1(p.chosen), -slope / -std::expm1(p.rejected), {}};
  }
};
/// Kahneman-Tversky, without a baseline.
struct prospect {
  double beta;

  tigon::sequence_value operator()(const tigon::preference_sequence& s) const {
    const double u = beta * s.ratio;
    return {logistic(-u), -beta * logistic(u) * logistic(-u)};
  }
};

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_SEQUENCES_HPP
