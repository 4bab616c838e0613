// Cross entropy of a row whose softmax is known: the loss, and what its gradient is made of.
#ifndef TIGON_LOSSES_SOFTMAX_LABEL_TERMS_HPP
#define TIGON_LOSSES_SOFTMAX_LABEL_TERMS_HPP

#include <tigon/losses/linear/chosen_rows.hpp>
#include <tigon/losses/softmax/cross_entropy_options.hpp>
#include <tigon/losses/softmax/row_softmax.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// out = factor * d; a 0, such as those of an ignored row, stays 0 for any factor.
template <class A, class Row, class Out, class In>
TIGON_INLINE void multiply_row(const Row& row, Out out, In d, A factor) {
  if (math::abs(factor) <= std::numeric_limits<A>::max())
    row.map(reads(d), writes(out), [=](auto v) { return v * factor; });
  else
    row.map(reads(d), writes(out), [=](auto v) {
      const decltype(v) zero(A(0));
      return select(v == zero, zero, v * factor);
    });
}

/// The results of an ignored row.
TIGON_INLINE void put_ignored(const cross_entropy_rows& out, std::size_t i) {
  out.loss[i] = out.z_loss[i] = 0;
  if (out.predicted != nullptr) out.predicted[i] = -1;
}
/// The results of the rows that count, which come first, go to their places of `rows` rows; the others are ignored.
inline void spread_results(const cross_entropy_rows& out, std::size_t rows, chosen_rows kept) {
  spread_numbers(out.loss, rows, kept, 0.0);
  spread_numbers(out.z_loss, rows, kept, 0.0);
  spread_numbers(out.predicted, rows, kept, std::int64_t{-1});
}

/// The terms of one row in the contract of cross_entropy_options, from
///   top       the largest logit
///   own, w_t  the target's logit and class weight
///   d         sum_j exp(s_j - max s) without the maximum's own 1
///   weighted  sum_j w_j (s_j - max s), where labels are smoothed
/// dlogits_j = slope_j (factor exp(s_j - max s) - subtract w_j), but at the target. `up` is `token` times the upstream
/// gradient.
template <class A>
struct cross_entropy_terms {
  A smoothing, z, a, b, uniform, weight_sum;
  bool token_scaling;

  cross_entropy_terms(const cross_entropy_options& opt, const cross_entropy_scale& scale, const cross_entropy_rows& out,
                      std::size_t vocab)
      : smoothing(static_cast<A>(opt.label_smoothing)),
        z(static_cast<A>(opt.lse_square_scale)),
        a(static_cast<A>(scale.main)),
        b(static_cast<A>(scale.z)),
        uniform(smoothing / static_cast<A>(vocab)),
        weight_sum(static_cast<A>(scale.weight_sum)),
        token_scaling(out.token_scaling) {}

  struct row {
    A d, w_t, tail, lse, minus_log_p, p_t;
    A token;  ///< by which this row's loss and gradient are scaled
  };
  template <class Kind>
  TIGON_INLINE row of(Kind logits, A top, A own, A d, A w_t) const {
    const A tail = math::log1p(d), below = static_cast<A>(logits.difference(own, top));
    const A p_t = math::exp(below) / (A(1) + d);
    return {d, w_t, tail, static_cast<A>(logits.value(top)) + tail, tail - below, p_t, token_scaling ? p_t : A(1)};
  }

  /// A row that is NaN has no predicted token.
  TIGON_INLINE void put_loss(const cross_entropy_rows& out, std::size_t i, const row& r, A weighted) const {
    const A smooth = smoothing > A(0) ? uniform * (weight_sum * r.tail - weighted) : A(0);
    const A main = (A(1) - smoothing) * r.w_t * r.minus_log_p + smooth;
    const A z_loss = z == A(0) ? A(0) : b * z * r.lse * r.lse;
    out.z_loss[i] = static_cast<double>(r.token * z_loss);
    out.loss[i] = static_cast<double>(r.token * (a * main + z_loss));
    if (out.predicted != nullptr && math::is_nan(r.lse)) out.predicted[i] = -1;
  }

  TIGON_INLINE A factor(const row& r, A up) const {
    return up * (a * ((A(1) - smoothing) * r.w_t + uniform * weight_sum) + A(2) * b * z * r.lse) / (A(1) + r.d);
  }
  TIGON_INLINE A subtract(A up) const { return up * a * uniform; }
  /// The gradient at the target, apart from the others: p_t - 1 cancels where p_t is near 1.
  template <class Kind>
  TIGON_INLINE A at_target(const row& r, A up, Kind logits, A own) const {
    const A main = (A(1) - smoothing) * r.w_t * math::expm1(-r.minus_log_p) + uniform * (weight_sum * r.p_t - r.w_t);
    return up * (a * main + A(2) * b * z * r.lse * r.p_t) * logits.slope(own);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_SOFTMAX_LABEL_TERMS_HPP
