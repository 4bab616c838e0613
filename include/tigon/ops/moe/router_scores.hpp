// The router of a mixture of experts for one token: the choice, the weights of what is chosen, and their gradients.
#ifndef TIGON_OPS_MOE_ROUTER_SCORES_HPP
#define TIGON_OPS_MOE_ROUTER_SCORES_HPP

#include <tigon/rows/row.hpp>

#include <cstddef>
#include <limits>

namespace tigon {

/// What makes a score of a logit.
enum class router_score {
  softmax,        ///< over all experts (Mixtral, Qwen)
  sigmoid,        ///< of each alone (DeepSeek-V3)
  sqrt_softplus,  ///< of each alone (DeepSeek-V4)
};

/// What makes a score of a group of experts.
enum class router_group_score {
  two_largest,  ///< the sum of the two largest scores in it (DeepSeek-V3); of a group of one expert, its score
  largest,      ///< the largest score in it (DeepSeek-V2)
};

namespace detail {
inline namespace TIGON_ABI {

/// Whether a is chosen before b: a NaN before all numbers, so that it is seen.
template <class A>
TIGON_INLINE bool ranks_above(A a, A b) {
  return a > b || (math::is_nan(a) && !math::is_nan(b));
}

/// best: the indices of the k largest of the keys that it is offered, the largest first; of equal ones, the one that
/// was offered first.
template <class A, class I>
struct k_largest {
  const A* key;
  I* best;
  std::size_t k, count = 0;

  TIGON_INLINE A of(std::size_t j) const { return key[static_cast<std::size_t>(best[j])]; }
  /// The keys of [first, first + n), where k is above 0.
  TIGON_INLINE void offer(std::size_t first, std::size_t n) {
    for (std::size_t e = first; e < first + n; ++e) {
      if (count == k && !ranks_above(key[e], of(k - 1))) continue;
      std::size_t at = count < k ? count++ : k - 1;
      for (; at > 0 && ranks_above(key[e], of(at - 1)); --at) best[at] = best[at - 1];
      best[at] = static_cast<I>(e);
    }
  }
};

/// Whether the g-th of n numbers is among the largest ones, as many as are kept; of equal ones, the lower index.
template <class A>
TIGON_INLINE bool is_kept(const A* of, std::size_t n, std::size_t g, std::size_t kept) {
  std::size_t above = 0;
  for (std::size_t h = 0; h < n; ++h) above += h < g ? !ranks_above(of[g], of[h]) : ranks_above(of[h], of[g]);
  return above < kept;
}

/// Below it log(1 + e^z) is e^z, in f64 too.
inline constexpr int lowest_softplus = -40;

/// log(1 + e^z)
template <class V>
TIGON_INLINE V softplus(V z) {
  using A = typename V::value_type;
  return max(V(A(0)), z) + simd::log1p(simd::exp_nonpositive(-abs(z)));
}

/// sqrt(log(1 + e^z)); where that is e^(z/2), which does not underflow where e^z does, e^((z - top)/2).
template <class V>
TIGON_INLINE V sqrt_softplus(V z, V top = V(typename V::value_type(0))) {
  using A = typename V::value_type;
  const V low = simd::exp_nonpositive(V(A(0.5)) * (z - top));
  return select(z < V(A(lowest_softplus)), low, sqrt(softplus(z)));
}

/// The derivative of log(sqrt(log(1 + e^z))).
template <class A>
TIGON_INLINE A log_slope_of_sqrt_softplus(A z) {
  if (z < A(lowest_softplus)) return A(0.5);
  return A(0.5) * math::sigmoid(z) / softplus(math::lane<A>(z)).r;
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

  /// Of one logit.
  TIGON_INLINE A of(A z) const {
    if (score == router_score::softmax) return math::exp_nonpositive(z - whole.top) / whole.total;
    return score == router_score::sigmoid ? math::sigmoid(z) : sqrt_softplus(math::lane<A>(z)).r;
  }

  /// weight[j], without the scale, of the logits there. Normalised ones are a softmax of the logarithms of the scores:
  /// no sum of scores is 0 while one of the logits is above -inf. With square roots that is done where all scores are
  /// e^(z/2); otherwise the sum is not close to 0.
  TIGON_INLINE void weigh(A* weight, std::size_t k) const {
    if (!normalise) {
      for (std::size_t j = 0; j < k; ++j) weight[j] = of(weight[j]);
      return;
    }
    const bool roots = score == router_score::sqrt_softplus;
    A top = -std::numeric_limits<A>::infinity(), sum = 0;
    for (std::size_t j = 0; j < k; ++j) {
      if (score == router_score::sigmoid) weight[j] = log_sigmoid(weight[j]);
      if (ranks_above(weight[j], top)) top = weight[j];
    }
    if (top == -std::numeric_limits<A>::infinity() || (roots && !(top < A(lowest_softplus)))) top = A(0);
    for (std::size_t j = 0; j < k; ++j) {
      const math::lane<A> z(weight[j]);
      sum += weight[j] = roots ? sqrt_softplus(z, math::lane<A>(top)).r : math::exp_nonpositive(weight[j] - top);
    }
    for (std::size_t j = 0; j < k; ++j) weight[j] /= sum == A(0) ? A(1) : sum;
  }

  /// The derivative of the logarithm of a score by its logit, without what a softmax takes off.
  TIGON_INLINE A log_slope(A z) const {
    if (score == router_score::softmax) return A(1);
    return score == router_score::sigmoid ? math::sigmoid_both(z).of_minus_x : log_slope_of_sqrt_softplus(z);
  }

  /// slope[j], of logits on entry: the gradient of the j-th chosen logit, from the weights and their gradients d.
  /// Returns the sum of weight d that it has taken off.
  TIGON_INLINE A differentiate(const A* weight, const A* d, A* slope, std::size_t k) const {
    A sum = 0;
    if (score == router_score::softmax || normalise)
      for (std::size_t j = 0; j < k; ++j) sum += weight[j] * d[j];
    for (std::size_t j = 0; j < k; ++j) slope[j] = weight[j] * (d[j] - sum) * log_slope(slope[j]);
    return sum;
  }
};

/// The choice of a token by its keys, which are scores with their biases, or logits where there is no bias.
template <class A>
struct expert_choice {
  chosen_scores<A> scores;
  bool biased;
  std::size_t groups, kept;
  router_group_score group_score;

  /// What the g-th group, of n experts, is compared by. The sum of two scores of a softmax is compared by its logarithm
  /// where keys are logits: it needs nothing of the other experts, which may be NaN.
  TIGON_INLINE A of_group(const A* key, std::size_t g, std::size_t n) const {
    const bool pair = group_score == router_group_score::two_largest && n > 1;
    std::size_t at[2];
    k_largest<A, std::size_t> top{key, at, pair ? std::size_t{2} : std::size_t{1}};
    top.offer(g * n, n);
    if (!pair) return top.of(0);
    const A first = top.of(0), second = top.of(1);
    if (biased) return first + second;
    if (scores.score != router_score::softmax) return scores.of(first) + scores.of(second);
    return first + math::log1p(math::exp_nonpositive(first == second ? A(0) : second - first));
  }

  /// best: the k experts of the largest keys in the groups that are kept. `values` has room for a number of each group.
  template <class I>
  TIGON_INLINE void choose(const A* key, std::size_t experts, A* values, I* best, std::size_t k) const {
    if (k == 0) return;
    k_largest<A, I> top{key, best, k};
    if (kept == groups) return top.offer(0, experts);
    const std::size_t n = experts / groups;
    for (std::size_t g = 0; g < groups; ++g) values[g] = of_group(key, g, n);
    for (std::size_t g = 0; g < groups; ++g)
      if (is_kept(values, groups, g, kept)) top.offer(g * n, n);
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
