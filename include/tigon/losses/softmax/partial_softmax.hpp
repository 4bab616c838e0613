// Softmax of a row that is computed in parts: the columns of one rank, or one tile after the other.
#ifndef TIGON_LOSSES_SOFTMAX_PARTIAL_SOFTMAX_HPP
#define TIGON_LOSSES_SOFTMAX_PARTIAL_SOFTMAX_HPP

#include <tigon/losses/softmax/row_softmax.hpp>
#include <tigon/losses/softmax/selective_log_softmax_options.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// The softmax of a part of a row: `parts`, and if Weighted sum_j w_j (s_j - top). Without a column, or of -inf alone,
/// there is no mass: top = -inf, rest = -1, and the sum is taken from the lowest number.
template <class A>
struct softmax_part {
  lse_parts<A> parts;
  A weighted = 0;
};

/// The exponentials are left in e, which may be the logits' own row.
template <bool Weighted, class Row, class A, class Kind, class Z, class W>
TIGON_INLINE softmax_part<A> part_of_row(const Row& row, vector_view<A> e, Kind kind, Z logits, W weight) {
  softmax_part<A> out;
  const A top = kind.top_of(row.max(reads(logits), [](auto v) { return v; }));
  const auto from = kind.from(top == -std::numeric_limits<A>::infinity() ? std::numeric_limits<A>::lowest() : top);
  A sum;
  if constexpr (Weighted) {
    const auto sums = row.map_sum(reads(cached{logits}, weight), writes(e), [=](auto v, auto w) {
      const auto s = from.distance(v);
      const auto p = simd::exp_of_distance<true>(s);
      const decltype(v) zero(A(0));
      return pack{p, p, select(w == zero, zero, w * s)};
    });
    sum = sums[0], out.weighted = sums[1];
  } else {
    sum = row.map_sum(reads(cached{logits}), writes(e), [=](auto v) {
      const auto p = simd::exp_of_distance<true>(from.distance(v));
      return pack{p, p};
    });
  }
  // Where sum - 1 cancels, the rest is summed without the maximum.
  out.parts = {top, sum - A(1)};
  if (out.parts.rest < A(1)) out.parts.rest = sum_without_one(row, e);
  return out;
}

// Parts of a row are put together in f64, so that in f32 nothing is lost however many there are.

/// A kind of logits, for the two below: s = scale logit.
struct logits_times {
  double scale;
  TIGON_INLINE double difference(double logit, double other) const { return (logit - other) * scale; }
};

/// all = all and part: the larger maximum keeps its excluded 1, the other's is summed.
template <class A, class Kind>
TIGON_INLINE void add_part(lse_parts<double>& all, lse_parts<A> part_of_row, Kind kind) {
  const lse_parts<double> part{part_of_row.top, part_of_row.rest};
  if (part.top > all.top)
    all = {part.top, part.rest + (all.rest + 1) * math::exp(kind.difference(all.top, part.top))};
  else if (part.top == -std::numeric_limits<double>::infinity())
    all.rest += (part.rest + 1) * 0.0;
  else
    all.rest += (part.rest + 1) * math::exp(kind.difference(part.top, all.top));
}

/// sum_j w_j (s_j - to) from sum_j w_j (s_j - from), where the weights add up to w; both are logits.
template <class Kind>
TIGON_INLINE double seen_from(double sum, double from, double to, Kind kind, double w) {
  return w == 0 ? sum : sum + kind.difference(from, to) * w;
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_SOFTMAX_PARTIAL_SOFTMAX_HPP
