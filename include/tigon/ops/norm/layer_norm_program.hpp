// LayerNorm of a row, forward and backward, as structs of reduce, finish and map (rows/reduce_map.hpp).
#ifndef TIGON_OPS_NORM_LAYER_NORM_PROGRAM_HPP
#define TIGON_OPS_NORM_LAYER_NORM_PROGRAM_HPP

#include <tigon/ops/norm/row_scale.hpp>

#include <array>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// y = (x - mean) rstd w + b. Reduces c = x and c^2, and again c = scale x - about, where row_moments requires it.
template <class A>
struct layer_norm_program {
  A cols, eps;

  using state = row_moments<A>;
  /// Of halves: x - mean need not be finite. `rest` is the rounding error of the mean.
  struct row {
    A mean, half, half_rest, twice_rstd;
  };
  template <class V>
  TIGON_INLINE pack<V, 2> reduce(V c) const {
    return {{c, c * c}};
  }
  template <class V>
  TIGON_INLINE pack<V, 2> reduce(state s, V x) const {
    return reduce(fma(x, V(s.scale), V(-s.about)));
  }
  TIGON_INLINE bool again(state& s, std::array<A, 2> sums) const {
    return s.again(sums[0] / cols, sums[1] / cols, eps, cols <= A(16));
  }
  TIGON_INLINE row finish(state s, std::array<A, 2>) const {
    const auto [about, rest, rstd] = s.about_mean_rstd(eps);
    return {about + rest, about / A(2), rest / A(2), rstd * A(2)};
  }
  TIGON_INLINE std::array<A, 2> save(row of) const { return {of.mean, of.twice_rstd / A(2)}; }
  template <class V>
  TIGON_INLINE V map(row of, V x, V w, V b) const {
    return fma((fma(x, V(A(0.5)), V(-of.half)) - V(of.half_rest)) * V(of.twice_rstd), w, b);
  }
};

/// h = dy w,   c1 = mean_j xh h,   c2 = mean_j h,   dx = rstd (h - c2 - xh c1),   dw += dy xh,   db += dy
/// Exact: the rounding error of the saved mean is the mean of x - mean, and xh and its sums are corrected by it.
template <bool Exact, class A>
struct layer_norm_gradient {
  A cols;

  struct row {
    A mean, rstd, c1, c2, error;
  };
  /// mean - x, because x - mean would load x first: one more operation that depends on the load.
  template <class V>
  TIGON_INLINE auto reduce(A mean, A, V dy, V x, V w) const {
    const V h = dy * w, c = mean - x;
    if constexpr (Exact)
      return pack{c * h, h, c};
    else
      return pack{c * h, h};
  }
  template <std::size_t N>
  TIGON_INLINE row finish(std::array<A, N> s, A mean, A rstd) const {
    const A error = Exact ? s[N - 1] / cols : A(0);
    return {mean, rstd, (s[0] - error * s[1]) * rstd / cols, s[1] / cols, error};
  }
  template <class V>
  TIGON_INLINE pack<V, 3> map(row of, V dy, V x, V w, V dw, V db) const {
    V c = x - of.mean;
    if constexpr (Exact) c = c + of.error;
    const V xh = c * of.rstd;
    return {{fma(xh, V(of.c1), fma(dy, w, V(-of.c2))) * of.rstd, fma(dy, xh, dw), db + dy}};
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_NORM_LAYER_NORM_PROGRAM_HPP
