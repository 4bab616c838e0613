// What attn_res's kernel is made of: the softmax over blocks, and the maps of its weights.
#ifndef TIGON_OPS_DEPTH_ATTN_RES_PROGRAM_HPP
#define TIGON_OPS_DEPTH_ATTN_RES_PROGRAM_HPP

#include <tigon/rows/row.hpp>

#include <cstddef>
#include <limits>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {

/// Blocks that are read side by side. Where fewer are left, the last of them stands in, with weight 0.
inline constexpr std::size_t blocks_together = 4;

/// Softmax over the blocks, a few at a time: where a higher score follows, the sum so far is scaled down. Scores are
/// f64, because the error of a score is the relative error of its weight.
template <class A>
struct depth_softmax {
  double top = -std::numeric_limits<double>::infinity();
  double score[blocks_together];
  A weight[blocks_together], before = A(0), sum = A(0);  ///< of the blocks last added, and of all before them

  TIGON_INLINE void add(std::size_t k, double s) { score[k] = s; }
  /// Takes `count` scores.
  TIGON_INLINE void weigh(std::size_t count) {
    const double lower = top;
    for (std::size_t k = 0; k < count; ++k) top = math::max(top, score[k]);
    before = math::exp_nonpositive(static_cast<A>(lower - top));
    sum *= before;
    for (std::size_t k = 0; k < blocks_together; ++k) {
      weight[k] = k < count ? math::exp_nonpositive(static_cast<A>(score[k] - top)) : A(0);
      sum += weight[k];
    }
  }
  /// The factor of a weight that is part of the mean, after the last.
  TIGON_INLINE A factor(bool last) const { return last ? A(1) / sum : A(1); }
};

/// u = w_query w_norm
struct product_program {
  template <class V>
  TIGON_INLINE V map(V query, V norm) const {
    return query * norm;
  }
};

/// What a column adds to the sum of squares of a block, and to the product of which its score is made: u is that above.
template <class V>
TIGON_INLINE pack<V, 2> score_terms(V x, V u) {
  return {{x * x, x * u}};
}

/// dw_query = p w_norm, or dw_norm = p w_query;   or added to what it is
struct attn_res_weight_gradient {
  template <class V>
  TIGON_INLINE V map(V p, V other) const {
    return p * other;
  }
  template <class V>
  TIGON_INLINE V map(V p, V other, V dw) const {
    return fma(p, other, dw);
  }
};

/// dw_query = p w_norm,   dw_norm = p w_query;   or added to what they are
struct attn_res_weight_gradients {
  template <class V>
  TIGON_INLINE pack<V, 2> map(V p, V query, V norm) const {
    return {{p * norm, p * query}};
  }
  template <class V>
  TIGON_INLINE pack<V, 2> map(V p, V query, V norm, V dquery, V dnorm) const {
    return {{fma(p, norm, dquery), fma(p, query, dnorm)}};
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_ATTN_RES_PROGRAM_HPP
