#ifndef EXAMPLE_SUPPORT_ROUTER_BALANCE_HPP
#define EXAMPLE_SUPPORT_ROUTER_BALANCE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "products.hpp"

namespace example {

/// The auxiliary loss that gives experts equal numbers of tokens (Fedus, Zoph and Shazeer, "Switch Transformers",
/// 2021), of the routers of one layer, or of several layers together, as transformers has it. Over their n rows of
/// logits:
///
///   s[t] = softmax(logits[t]),   f[e] = choices of e / n,   P[e] = mean over t of s[t,e]
///   loss = experts * sum_e f[e] P[e],   the number of choices of a token where all experts are chosen alike
///   dlogits[t,e] = experts / n * s[t,e] (f[e] - sum over e' of f[e'] s[t,e'])       f is a count, a constant
///
/// In f64 and in one order: a router's logits are few, and the bits do not depend on the threads.
class router_balance {
 public:
  explicit router_balance(std::size_t experts) : choices_(experts), sums_(experts), scores_(experts) {}

  /// Rows of one layer more.
  void add(matrix<const float> logits, matrix<const std::int32_t> chosen) {
    rows_ += static_cast<double>(logits.rows);
    for (std::size_t t = 0; t < logits.rows; ++t) {
      for (std::size_t j = 0; j < chosen.cols; ++j) choices_[static_cast<std::size_t>(chosen.row(t)[j])] += 1;
      softmax(logits.row(t));
      for (std::size_t e = 0; e < scores_.size(); ++e) sums_[e] += scores_[e];
    }
  }

  double loss() const {
    double sum = 0;
    for (std::size_t e = 0; e < sums_.size(); ++e) sum += choices_[e] * sums_[e];
    return static_cast<double>(sums_.size()) * sum / (rows_ * rows_);
  }

  /// dlogits += factor times the gradient, for logits of a layer that was added. All layers have been.
  void add_gradient(double factor, matrix<const float> logits, matrix<float> dlogits) {
    const double of_row = factor * static_cast<double>(sums_.size()) / (rows_ * rows_);
    for (std::size_t t = 0; t < dlogits.rows; ++t) {
      softmax(logits.row(t));
      double mean = 0;
      for (std::size_t e = 0; e < scores_.size(); ++e) mean += choices_[e] * scores_[e];
      for (std::size_t e = 0; e < scores_.size(); ++e)
        dlogits.row(t)[e] += static_cast<float>(of_row * scores_[e] * (choices_[e] - mean));
    }
  }

 private:
  void softmax(const float* z) {
    const double top = static_cast<double>(*std::max_element(z, z + scores_.size()));
    double sum = 0;
    for (std::size_t e = 0; e < scores_.size(); ++e) sum += scores_[e] = std::exp(static_cast<double>(z[e]) - top);
    for (double& s : scores_) s /= sum;
  }

  std::vector<double> choices_, sums_, scores_;
  double rows_ = 0;
};

}  // namespace example
#endif
