// The tag, options and operands of fused_linear_scaled_cross_entropy.
#ifndef TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_SCALED_CROSS_ENTROPY_OPTIONS_HPP
#define TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_SCALED_CROSS_ENTROPY_OPTIONS_HPP

#include <tigon/core/context.hpp>
#include <tigon/losses/linear/chosen_rows.hpp>

namespace tigon {

namespace op {
struct fused_linear_scaled_cross_entropy {
  static constexpr std::string_view name = "fused_linear_scaled_cross_entropy";
};
/// The kernel on a chunk of logits.
struct scaled_cross_entropy {
  static constexpr std::string_view name = "scaled_cross_entropy";
};
}  // namespace op

/// The contract is in losses/fused_linear_scaled_cross_entropy.hpp.
struct fused_linear_scaled_cross_entropy_options {
  double temperature = 1;  ///< from 1e-30 to 1e30
  std::int64_t ignore_index = -100;
};

/// A number a row each; a span without memory is not written.
template <class A>
struct scaled_cross_entropy_results {
  std::span<A> nll{}, entropy{}, lse{};
};

/// Upstream gradients, each one number, one a row, or without memory: 0.
template <class A>
struct scaled_cross_entropy_upstream {
  std::span<const A> nll{}, entropy{};
};

namespace detail {
inline namespace TIGON_ABI {
/// Results and upstream gradients of the rows that count, from some row on.
template <class A>
struct scaled_cross_entropy_rows {
  A *nll, *entropy, *lse;
  const A *upstream_nll, *upstream_entropy;
  std::size_t step_nll, step_entropy;  ///< to the next row's upstream gradient

  scaled_cross_entropy_rows(const scaled_cross_entropy_results<A>& out, const scaled_cross_entropy_upstream<A>& g)
      : nll(out.nll.data()),
        entropy(out.entropy.data()),
        lse(out.lse.data()),
        upstream_nll(g.nll.data()),
        upstream_entropy(g.entropy.data()),
        step_nll(g.nll.size() > 1),
        step_entropy(g.entropy.size() > 1) {}

  scaled_cross_entropy_rows from(std::size_t begin) const {
    auto rows = *this;
    const auto on = [=](auto*& p, std::size_t n) {
      if (p != nullptr) p += n;
    };
    on(rows.nll, begin), on(rows.entropy, begin), on(rows.lse, begin);
    on(rows.upstream_nll, begin * step_nll), on(rows.upstream_entropy, begin * step_entropy);
    return rows;
  }
  /// The results of the rows that count, which come first, go to their places of `count` rows; the others have 0.
  void spread(std::size_t count, chosen_rows kept) const {
    for (A* results : {nll, entropy, lse}) spread_numbers(results, count, kept, A(0));
  }
  TIGON_INLINE void put(std::size_t i, A row_nll, A row_entropy, A row_lse) const {
    if (nll != nullptr) nll[i] = row_nll;
    if (entropy != nullptr) entropy[i] = row_entropy;
    if (lse != nullptr) lse[i] = row_lse;
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_SCALED_CROSS_ENTROPY_OPTIONS_HPP
