#ifndef EXAMPLE_TRAIN_LLAMA_BALANCE_HPP
#define EXAMPLE_TRAIN_LLAMA_BALANCE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../support/products.hpp"

namespace example {

/// The auxiliary loss that gives the experts of a layer equal numbers of tokens (Fedus, Zoph and Shazeer, "Switch
/// Transformers", 2021), of one router and one pass:
///
///   s[t] = softmax(logits[t]),   f[e] = choices of e / all choices,   P[e] = mean over t of s[t,e]
///   loss = experts * sum_e f[e] P[e],   1 where all experts are chosen alike
///   dlogits[t,e] = experts / tokens * s[t,e] (f[e] - sum over e' of f[e'] s[t,e'])       f is a count, a constant
///
/// In f64 and in one order: a router's logits are few, and the bits do not depend on the threads.
class router_balance {
 public:
  router_balance(matrix<const float> logits, matrix<const std::int32_t> chosen)
      : experts_(logits.cols), scores_(logits.rows * logits.cols), share_(logits.cols) {
    const double part = 1 / static_cast<double>(chosen.rows * chosen.cols);
    for (std::size_t t = 0; t < logits.rows; ++t) {
      for (std::size_t j = 0; j < chosen.cols; ++j) share_[static_cast<std::size_t>(chosen.row(t)[j])] += part;
      const float* z = logits.row(t);
      const double top = static_cast<double>(*std::max_element(z, z + experts_));
      double sum = 0;
      for (std::size_t e = 0; e < experts_; ++e) sum += score(t)[e] = std::exp(static_cast<double>(z[e]) - top);
      for (std::size_t e = 0; e < experts_; ++e) score(t)[e] /= sum;
    }
  }

  double loss() const {
    double sum = 0;
    for (std::size_t i = 0; i < scores_.size(); ++i) sum += share_[i % experts_] * scores_[i];
    return per_token() * sum;
  }

  /// dlogits += factor times the gradient.
  void add_gradient(double factor, matrix<float> dlogits) {
    for (std::size_t t = 0; t < dlogits.rows; ++t) {
      double mean = 0;
      for (std::size_t e = 0; e < experts_; ++e) mean += share_[e] * score(t)[e];
      for (std::size_t e = 0; e < experts_; ++e)
        dlogits.row(t)[e] += static_cast<float>(factor * per_token() * score(t)[e] * (share_[e] - mean));
    }
  }

 private:
  double* score(std::size_t t) { return scores_.data() + t * experts_; }
  double per_token() const {
    return static_cast<double>(experts_) * static_cast<double>(experts_) / static_cast<double>(scores_.size());
  }

  std::size_t experts_;
  std::vector<double> scores_, share_;
};

}  // namespace example
#endif
