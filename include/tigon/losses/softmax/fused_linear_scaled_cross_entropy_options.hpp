// The contract of cross entropy and entropy at a temperature, and where the results of rows go.
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

/// With s = (x w^T + bias) / temperature and p = softmax(s), for a row with target t, m = max_j s_j,
/// d = sum_j exp(s_j - m) without the maximal element's own 1, and u = sum_j p_j (s_j - m):
///
///   nll     = (m - s_t) + log1p(d)                     entropy = log1p(d) - u          lse = m + log1p(d)
///   D_j     = (g (p_j - [j = t]) - h p_j ((s_j - m) - u)) / temperature      g, h: upstream of nll and of entropy
///   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j]
///
/// Formula    docs/formulas/fused_linear_scaled_cross_entropy.md.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; target, nll, entropy, lse
///            [rows]; upstream one number or [rows]. vocab >= 1; rows and hidden may be 0.
/// Types      x, w, bias and their gradients of one type, f32, bf16, f16 or f64; results and upstream f32 (f64 for
///            f64); target std::int32_t or std::int64_t.
///            With linear_types x and dx have one, w and bias one, their gradients one (no f64), and each its own
///            error.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64); one rounding at each output.
///            A call of at most 8 rows in f32 is f64 throughout (docs/formulas/fused_linear_cross_entropy.md, few rows).
/// Options    backward: as in forward.
/// Writes     the results that have memory, dx, dw, dbias; a gradient without memory is not computed. dw and dbias are
///            added to with gradient::accumulate.
/// Ignored    a row whose target is ignore_index is neither read, nor its upstream gradients, nor multiplied; its results
///            and dx are 0, whatever stands in x and w. The bits of a row's results and dx do not depend on which other
///            rows count, where they stand and how many there are. dw and dbias have the same bits for the same rows in
///            the same order, wherever ignored rows stand between them, in calls of as many rows, both with dx or without.
/// Aliasing   none: any layout in which no written element is shared.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk); for 16-bit w also an f32 dw; see
///            fused_linear_scaled_cross_entropy_workspace. w may come packed (linear_layer). A call of at most 8
///            rows in f32 has rows * vocab logits in f64.
/// Throws     tigon::error: shape, stride, alias, argument, workspace, and index (in every build) for a target outside
///            [0, vocab) that is not ignore_index; before the first write.
/// Edges      vocab = 1: zeros. NaN or +inf in a row of logits: that row is NaN. -inf at the target: nll inf, finite D. A D below
///            the smallest normal f32 (f64) is taken as 0.
/// Max error  results 2e-6 of |reference| + their root mean square, in bf16 too; gradients f32 2e-5, bf16 8e-3;
///            of at most 8 rows of f32 results and gradients within 2.4e-7 of their L2 norms
///            (tests/losses/fused_linear_scaled_cross_entropy_test.cpp).
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

/// Results of few rows in f64, and where they are rounded to.
template <class A>
class wide_results {
 public:
  wide_results(workspace::frame& frame, const scaled_cross_entropy_results<A>& to, std::size_t rows) : to_(to) {
    const auto wide = [&](std::span<A> of) {
      return of.data() == nullptr ? std::span<double>() : std::span(frame.template take<double>(rows), rows);
    };
    from_ = {wide(to.nll), wide(to.entropy), wide(to.lse)};
  }
  const scaled_cross_entropy_results<double>& from() const { return from_; }
  void round() const {
    const auto put = [](std::span<double> from, std::span<A> to) {
      for (std::size_t i = 0; i < from.size(); ++i) to[i] = static_cast<A>(from[i]);
    };
    put(from_.nll, to_.nll), put(from_.entropy, to_.entropy), put(from_.lse, to_.lse);
  }

 private:
  scaled_cross_entropy_results<A> to_;
  scaled_cross_entropy_results<double> from_;
};

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_SCALED_CROSS_ENTROPY_OPTIONS_HPP
