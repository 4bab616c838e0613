// The router of a mixture of experts for one token: the choice, the weights of what is chosen, and their gradients.
#ifndef TIGON_OPS_MOE_ROUTER_SCORES_HPP
#define TIGON_OPS_MOE_ROUTER_SCORES_HPP

#include <tigon/rows/row.hpp>

#include <cstddef>
#include <limits>

namespace tigon {

/// What makes a score of a logit.
enum class router_score {
  softmax,  ///< over all experts (Mixtral, Qwen)
  sigmoid,  ///< of each alone (DeepSeek-V3)
};

namespace detail {
inline namespace TIGON_ABI {

/// Whether a is chosen before b: a NaN before all numbers, so that it is seen.
template <class A>
TIGON_INLINE bool ranks_above(A a, A b) {
  return a > b || (math::is_nan(a) && !math::is_nan(b));
}

/// best: the indices of the k largest of n keys, the largest first; of equal ones, the lower index.
template <class A, class I>
TIGON_INLINE void select_largest(const A* key, std::size_t n, I* best, std::size_t k) {
  if (k == 0) return;
  const auto of = [=](std::size_t j) { return key[static_cast<std::size_t>(best[j])]; };
  std::size_t count = 0;
  for (std::size_t e = 0; e < n; ++e) {
    if (count == k && !ranks_above(key[e], of(k - 1))) continue;
    std::size_t at = count < k ? count++ : k - 1;
    for (; at > 0 && ranks_above(key[e], of(at - 1)); --at) best[at] = best[at - 1];
    best[at] = static_cast<I>(e);
  }
}

template <class A>
TIGON_INLINE A log_sigmoid(A z) {
  return math::min(A(0), z) - math::log1p(math::exp_nonpositive(-math::abs(z)));
}

/// The scores of a row of logits as far as all of them are needed: e^(z - top) / total.
template <class A>
struct row_scores {
  A top = 0, total = 1;

  template <class Row, class T>
  static TIGON_INLINE row_scores of(const Row& row, matrix_view<const T> logits) {
    A top = row.max(reads(logits), [](auto v) { return v; });
    if (top == -std::numeric_limits<A>::infinity()) top = A(0);
    const A sum = row.sum(reads(logits), [=](auto v) { return simd::exp_nonpositive(v - top); });
    return {top, sum == A(0) ? A(1) : sum};
  }
  template <class V>
  TIGON_INLINE V score(V z) const {
    return simd::exp_nonpositive(z - top) * (A(1) / total);
  }
};

/// The scores that the options select, and the k chosen logits of a token.
template <class A>
struct chosen_scores {
  router_score score;
  bool normalise;
  row_scores<A> whole;

  /// weight[j], without the scale, of the logits there. Normalised ones are a softmax of the logarithms of the scores:
  /// no sum of scores is 0 while one of the logits is above -inf.
  TIGON_INLINE void weigh(A* weight, std::size_t k) const {
    const bool soft = score == router_score::softmax;
    if (!normalise) {
      for (std::size_t j = 0; j < k; ++j)
        weight[j] = soft ? math::exp_nonpositive(weight[j] - whole.top) / whole.total : math::sigmoid(weight[j]);
      return;
    }
    A top = -std::numeric_limits<A>::infinity(), sum = 0;
    for (std::size_t j = 0; j < k; ++j) {
      if (!soft) weight[j] = log_sigmoid(weight[j]);
      if (ranks_above(weight[j], top)) top = weight[j];
    }
    if (top == -std::numeric_limits<A>::infinity()) top = A(0);
    for (std::size_t j = 0; j < k; ++j) sum += weight[j] = math::exp_nonpositive(weight[j] - top);
    for (std::size_t j = 0; j < k; ++j) weight[j] /= sum == A(0) ? A(1) : sum;
  }

  /// slope[j], of logits on entry: the gradient of the j-th chosen logit, from the weights and their gradients d.
  /// Returns the sum of weight d that it has taken off.
  TIGON_INLINE A differentiate(const A* weight, const A* d, A* slope, std::size_t k) const {
    const bool soft = score == router_score::softmax;
    A sum = 0;
    if (soft || normalise)
      for (std::size_t j = 0; j < k; ++j) sum += weight[j] * d[j];
    for (std::size_t j = 0; j < k; ++j) {
      const A rest = soft ? A(1) : math::sigmoid_both(slope[j]).of_minus_x;
      slope[j] = weight[j] * (d[j] - sum) * rest;
    }
    return sum;
  }
};

/// to[j] = from[at[j]], and back: to[at[j]] = from[j].
template <class A, class T, class I>
TIGON_INLINE void take_chosen(const T* from, const I* at, std::size_t k, A* to) {
  for (std::size_t j = 0; j < k; ++j) to[j] = static_cast<A>(from[static_cast<std::size_t>(at[j])]);
}
template <class A, class T, class I>
TIGON_INLINE void put_chosen(const A* from, const I* at, std::size_t k, T* to) {
  for (std::size_t j = 0; j < k; ++j) to[static_cast<std::size_t>(at[j])] = static_cast<T>(from[j]);
}
/// to[j] = scale * from[j]
template <class A, class From, class To>
TIGON_INLINE void put_scaled(const From* from, std::size_t k, A scale, To* to) {
  for (std::size_t j = 0; j < k; ++j) to[j] = static_cast<To>(scale * static_cast<A>(from[j]));
}

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#endif  // TIGON_OPS_MOE_ROUTER_SCORES_HPP
