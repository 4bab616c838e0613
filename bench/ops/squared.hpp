// Losses of one's own, for the benchmarks of the doors that take one.
#ifndef TIGON_BENCH_OPS_SQUARED_HPP
#define TIGON_BENCH_OPS_SQUARED_HPP

#include <tigon/losses/fused_linear_distillation.hpp>
#include <tigon/losses/fused_linear_preference.hpp>
#include <tigon/losses/fused_linear_unpaired_preference.hpp>

namespace tigon_bench {

/// Half the squared distance of the logits.
template <class A>
struct squared_error {
  static constexpr bool takes_neg_inf = false;
  struct terms {
    template <class V>
    TIGON_INLINE tigon::pack<V, 4> operator()(V v, V t) const {
      const V r = v - t;
      return {{r, r, r * r, r}};
    }
    TIGON_INLINE tigon::soft_loss_row<A> finish(A square, A) const { return {square / 2, 0, 1}; }
  };
  template <class Row>
  TIGON_INLINE terms operator()(Row, tigon::vector_view<A>, tigon::vector_view<A>) const {
    return {};
  }
};

/// Half the squared distance of a pair's ratios to a margin of 1.
struct squared_margin {
  tigon::pair_value operator()(const tigon::preference_pair& p) const {
    const double u = p.chosen_ratio - p.rejected_ratio - 1;
    return {u * u / 2, u, -u, {}};
  }
};

/// Half the squared distance of a sequence's ratio to 1.
struct squared_ratio {
  tigon::sequence_value operator()(const tigon::preference_sequence& s) const {
    const double u = s.ratio - 1;
    return {u * u / 2, u};
  }
};

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_SQUARED_HPP
