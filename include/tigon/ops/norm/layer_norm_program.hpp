// LayerNorm of a row, forward and backward, as structs of reduce, finish and map (rows/reduce_map.hpp).
#ifndef TIGON_OPS_NORM_LAYER_NORM_PROGRAM_HPP
#define TIGON_OPS_NORM_LAYER_NORM_PROGRAM_HPP

#include <tigon/ops/norm/row_scale.hpp>

#include <array>
#include <type_traits>

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
/// Exact: the rounding error of the saved mean is the mean of x - mean, and where it shows, xh and its sums are
/// corrected by it. Rows whose products leave the range of A are computed in f64, of p x for x, a power of two.
template <bool Exact, class A, bool InF64 = false>
struct layer_norm_gradient {
  A cols;

  using number = std::conditional_t<InF64, double, A>;
  struct row {
    number mean, rstd, c1, c2, shift;  ///< shift: of xh
    A saved;                           ///< rstd of the row itself
  };
  /// mean - x, because x - mean would load x first: one more operation that depends on the load.
  template <class V>
  TIGON_INLINE auto reduce(A mean, A rstd, V dy, V x, V w) const {
    const V h = dy * w, c = scaled(V(number(mean)), rstd) - scaled(x, rstd);
    if constexpr (Exact)
      return pack{c * h, h, c};
    else
      return pack{c * h, h};
  }
  template <std::size_t N>
  TIGON_INLINE row finish(std::array<number, N> s, A mean, A rstd) const {
    const number r = number(rstd) / scaled(number(1), rstd), n = cols;
    const number error = Exact && shows(mean, rstd) ? s[N - 1] / n : number(0);
    const number product = error == number(0) ? s[0] : s[0] - error * s[1];
    return {mean, r, product * r / n, s[1] / n, error * r, rstd};
  }
  TIGON_INLINE auto in_f64(const row& of) const
    requires(!InF64)
  {
    return in_f64_if(!holds_products(of.saved), layer_norm_gradient<true, A, true>{cols});
  }
  template <class V>
  TIGON_INLINE pack<V, 3> map(row of, V dy, V x, V w, V dw, V db) const {
    const V c = scaled(x, of.saved) - scaled(V(of.mean), of.saved);
    const V xh = Exact ? fma(c, V(of.rstd), V(of.shift)) : c * of.rstd;
    return {{fma(xh, V(of.c1), fma(dy, w, V(-of.c2))) * number(of.saved), fma(dy, xh, dw), db + dy}};
  }

 private:
  template <class V>
  static TIGON_INLINE V scaled(V v, A rstd) {
    if constexpr (InF64)
      return v * scale_in_f64(rstd);
    else
      return v;
  }
  /// Whether the rounding error of a mean, up to 2^-24 of it (f32), shows beside the deviations: where the mean is
  /// larger than four of them, and in rows of a few columns, whose dx nearly cancels.
  TIGON_INLINE bool shows(A mean, A rstd) const { return InF64 || cols <= A(16) || math::abs(mean) * rstd > A(4); }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_NORM_LAYER_NORM_PROGRAM_HPP
