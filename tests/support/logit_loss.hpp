// Cross entropy by its definition, for the tests of everything that ends in it.
#ifndef TIGON_TESTS_SUPPORT_LOGIT_LOSS_HPP
#define TIGON_TESTS_SUPPORT_LOGIT_LOSS_HPP

#include <tigon/losses/softmax/cross_entropy_options.hpp>

#include <complex>
#include <random>
#include <vector>

#include "guarded.hpp"

namespace tigon::test {

/// Loss of a row before reduction, main part and lse^2 apart. It is written with the target as the point of reference,
/// not the maximum, and for any number type. `weight` is a number for every class.
template <class N>
struct row_of_loss {
  std::vector<N> capped;
  N minus_log_p, lse, main;

  TIGON_TEST_NOINLINE row_of_loss(const std::vector<N>& logits, std::size_t target, const std::vector<double>& weight,
                                  const cross_entropy_options& opt) {
    using std::exp, std::log, std::tanh;
    using real = decltype(std::real(N()));
    const real cap = opt.softcap, smoothing = opt.label_smoothing;
    for (const N& v : logits) capped.push_back(cap > 0 ? cap * tanh(v / cap) : v);
    N others = 0, uniform = 0;
    for (std::size_t j = 0; j < capped.size(); ++j)
      if (j != target) others += exp(capped[j] - capped[target]);
    if constexpr (std::same_as<N, real>)
      minus_log_p = std::log1p(others);
    else
      minus_log_p = log(N(1) + others);
    lse = capped[target] + minus_log_p;
    for (std::size_t j = 0; j < capped.size(); ++j) uniform += real(weight[j]) * (lse - capped[j]);
    main = (1 - smoothing) * real(weight[target]) * minus_log_p + smoothing / real(capped.size()) * uniform;
  }
};

/// Per-row losses (a main + b z lse^2 and its second part) and gradients of the logits, in long double.
struct loss_reference {
  std::vector<double> loss, z_loss, dlogits, p_target;
  double total = 0, z_total = 0;

  TIGON_TEST_NOINLINE loss_reference(const std::vector<double>& logits, const std::vector<std::int64_t>& target,
                                     std::size_t vocab, const std::vector<double>& weight,
                                     const cross_entropy_options& opt) {
    double kept = 0, kept_weight = 0, weight_sum = 0;
    for (const double w : weight) weight_sum += w;
    for (const std::int64_t t : target)
      if (t != opt.ignore_index) ++kept, kept_weight += weight[static_cast<std::size_t>(t)];
    const bool mean = opt.reduction == reduction::mean;
    const auto inverse = [&](double n) -> long double {
      return !mean ? 1 : opt.denominator != 0 ? 1 / (long double)opt.denominator : n == 0 ? 0 : 1 / (long double)n;
    };
    const long double a = inverse(kept_weight), b = inverse(kept), z = opt.lse_square_scale;
    const long double l = opt.label_smoothing, uniform = l / static_cast<long double>(vocab);
    for (std::size_t i = 0; i < target.size(); ++i) {
      if (target[i] == opt.ignore_index) {
        loss.push_back(0), z_loss.push_back(0), p_target.push_back(0);
        dlogits.insert(dlogits.end(), vocab, 0);
        continue;
      }
      const auto t = static_cast<std::size_t>(target[i]);
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(i * vocab);
      const row_of_loss<long double> row(std::vector<long double>(begin, begin + static_cast<std::ptrdiff_t>(vocab)), t,
                                         weight, opt);
      z_loss.push_back(static_cast<double>(b * z * row.lse * row.lse));
      loss.push_back(static_cast<double>(a * row.main + b * z * row.lse * row.lse));
      p_target.push_back(static_cast<double>(std::exp(-row.minus_log_p)));
      total += loss.back(), z_total += z_loss.back();
      for (std::size_t j = 0; j < vocab; ++j) {
        const long double s = row.capped[j], p = std::exp(s - row.capped[t] - row.minus_log_p);
        // At the target p - 1 in one piece: it cancels where p is near 1, in any precision.
        const long double hard = weight[t] * (1 - l) * (j == t ? std::expm1(-row.minus_log_p) : p);
        const long double ds = a * (hard + uniform * (weight_sum * p - weight[j])) + 2 * b * z * row.lse * p;
        const long double slope = opt.softcap > 0 ? 1 - s / opt.softcap * (s / opt.softcap) : 1;
        dlogits.push_back(static_cast<double>(ds * slope));
      }
    }
  }
};

/// Labels of `vocab` classes; the second row of three or more is ignored.
TIGON_TEST_NOINLINE inline std::vector<std::int64_t> random_labels(std::size_t rows, std::size_t vocab,
                                                                   std::int64_t ignore_index, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<std::int64_t> out(rows);
  for (std::int64_t& t : out) t = static_cast<std::int64_t>(generator() % vocab);
  if (rows > 2) out[1] = ignore_index;
  return out;
}

/// Positive class weights, one of them zero where there are enough classes.
TIGON_TEST_NOINLINE inline std::vector<double> random_class_weights(std::size_t vocab, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<double> out(vocab);
  for (double& w : out) w = 0.5 + static_cast<double>(generator() % 1024) / 1024;
  if (vocab > 4) out[3] = 0;
  return out;
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_LOGIT_LOSS_HPP
