// RMSNorm of a row, forward and backward, as structs of reduce, finish and map (rows/reduce_map.hpp).
#ifndef TIGON_OPS_NORM_RMS_NORM_PROGRAM_HPP
#define TIGON_OPS_NORM_RMS_NORM_PROGRAM_HPP

#include <tigon/ops/norm/row_scale.hpp>

#include <limits>
#include <type_traits>

namespace tigon {

/// Where RMSNorm rounds to the storage type before the last step.
enum class casting {
  llama,  ///< the normalised row is rounded, then multiplied by the weight (Llama, Mistral, Qwen)
  gemma,  ///< one rounding, at y
  none,   ///< the same values as gemma
};

namespace detail {
inline namespace TIGON_ABI {

/// The normalised row, rounded as the casting rule says, v = x * rstd, where rstd was made of x or is `canonical`.
template <casting C, element T, simd::odd_by Odd = simd::odd_by::mask, class V>
TIGON_INLINE V cast_normalised(V v) {
  if constexpr (C == casting::llama)
    return round_computed_to<T, Odd>(v);
  else
    return v;
}
/// The same for a pass that adds up gradients.
template <casting C, element T, class V>
TIGON_INLINE V cast_normalised_again(V v) {
  return cast_normalised<C, T, simd::odd_by::shift>(v);
}

/// A number from the caller, with any NaN replaced by the one without a payload: results made of it are rounded by
/// fewer operations.
template <class A>
TIGON_INLINE A canonical(A kept) {
  return kept == kept ? kept : std::numeric_limits<A>::quiet_NaN();
}

/// rstd = 1 / rms of a row. Where the squares of a row leave the range, it is reduced once more, times a power of two.
template <class A>
struct inverse_rms {
  A cols, eps;

  struct state {
    A scale = 1;
  };
  template <class V>
  TIGON_INLINE V reduce(V v) const {
    return v * v;
  }
  template <class V>
  TIGON_INLINE V reduce(state s, V v) const {
    return reduce(v * s.scale);
  }
  TIGON_INLINE bool again(state& s, A squares) const {
    if (s.scale != A(1)) return false;
    s.scale = scale_for_squares<A>(squares / cols + eps);
    return s.scale != A(1);
  }
  TIGON_INLINE A finish(state s, A squares) const {
    if (s.scale == A(1)) return math::rsqrt(squares / cols + eps);
    return rstd_of_scaled(squares / cols + eps * s.scale * s.scale, s.scale);
  }
  TIGON_INLINE A save(A rstd) const { return rstd; }
};

/// y = x rstd (offset + w)
template <casting C, element T, class A>
struct rms_norm_program : inverse_rms<A> {
  A offset;

  template <class V>
  TIGON_INLINE V map(A rstd, V x, V w) const {
    return cast_normalised<C, T>(x * rstd) * (w + offset);
  }
};

/// k = sum_j m x,   c = rstd^3 k / cols,   dx = rstd m - c x,   dw += dy (x rstd)            m = dy (offset + w)
/// Rows whose products leave the range of A are computed in f64, of p x for x, a power of two, with the digits that
/// rstd lacks (correction_along_row).
template <casting C, element T, class A, bool InF64 = false>
struct rms_norm_gradient {
  A cols, offset, eps;

  using number = std::conditional_t<InF64, double, A>;
  struct row {
    number rstd, c, p;
  };
  template <class V>
  TIGON_INLINE auto reduce(A saved, V dy, V x, V w) const {
    return products(dy * (w + number(offset)), x, saved);
  }
  template <class Sums>
  TIGON_INLINE row finish(const Sums& s, A saved) const {
    const number rstd = canonical(saved), p = InF64 ? number(scale_in_f64(saved)) : number(1), r = rstd / p, n = cols;
    const auto c_of = [=](number k) { return r / n * (r * k) * r; };  // the division does not depend on the reduction
    if constexpr (InF64)
      return {rstd, p * c_of(s[1] * correction_along_row<A>({s[0], s[1], s[2]}, n, r, eps * p * p)), p};
    else
      return {rstd, c_of(s), p};
  }
  TIGON_INLINE auto in_f64(const row& of) const
    requires(!InF64)
  {
    using program = rms_norm_gradient<C, T, A, true>;
    return in_f64_if(!holds(of), program{cols, offset, eps});
  }
  template <class V>
  TIGON_INLINE pack<V, 2> map(row of, V dy, V x, V w, V dw) const {
    return {{dx(of, dy, x, w), this->dw(of, dy, x, dw)}};
  }
  template <class V>
  TIGON_INLINE V dx(const row& of, V dy, V x, V w) const {
    return without_share_of(of, x, dy * (w + number(offset)) * of.rstd);
  }
  template <class V>
  static TIGON_INLINE V dw(const row& of, V dy, V x, V sum) {
    V xh = x * of.rstd;
    if constexpr (InF64) xh = round_to<A>(xh);
    return fma(dy, cast_normalised_again<C, T>(xh), sum);
  }

 protected:
  TIGON_INLINE bool holds(const row& of) const { return holds_products(static_cast<A>(of.rstd)); }
  template <class V>
  static TIGON_INLINE auto products(V m, V x, A saved) {
    if constexpr (InF64) {
      const V v = x * scale_in_f64(saved);
      return pack{m * m, m * v, v * v};
    } else {
      return m * x;
    }
  }
  /// rstd m, and what else adds to dx, without c x.
  template <class V>
  static TIGON_INLINE V without_share_of(const row& of, V x, V rest) {
    if constexpr (InF64) x = x * of.p;
    return fnma(x, V(of.c), rest);
  }
};

/// s = x + r, rounded;   y = s rstd (offset + w)
template <casting C, element T, class A>
struct fused_add_rms_norm_program : inverse_rms<A> {
  using state = typename inverse_rms<A>::state;
  A offset;

  template <class V>
  TIGON_INLINE V direct(V x, V r) const {
    return round_computed_to<T>(x + r);
  }
  template <class V>
  TIGON_INLINE V reduce(V x, V r) const {
    return inverse_rms<A>::reduce(direct(x, r));
  }
  template <class V>
  TIGON_INLINE V reduce(state scaled, V x, V r) const {
    return inverse_rms<A>::reduce(scaled, direct(x, r));
  }
  template <class V>
  TIGON_INLINE V map(A rstd, V x, V r, V w) const {
    return cast_normalised<C, T>(direct(x, r) * rstd) * (w + offset);
  }
};

/// As rms_norm_gradient of s, and the gradient that s itself received:   dx = rstd m - c s + ds
template <casting C, element T, class A, bool InF64 = false>
struct fused_add_rms_norm_gradient : rms_norm_gradient<C, T, A, InF64> {
  using of_norm = rms_norm_gradient<C, T, A, InF64>;
  using row = typename of_norm::row;

  TIGON_INLINE auto in_f64(const row& of) const
    requires(!InF64)
  {
    using program = fused_add_rms_norm_gradient<C, T, A, true>;
    return in_f64_if(!this->holds(of), program{{this->cols, this->offset, this->eps}});
  }
  template <class V>
  TIGON_INLINE pack<V, 2> map(row of, V dy, V s, V w, V ds, V dw) const {
    const V m = dy * (w + typename of_norm::number(this->offset));
    return {{this->without_share_of(of, s, fma(m, V(of.rstd), ds)), this->dw(of, dy, s, dw)}};
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_NORM_RMS_NORM_PROGRAM_HPP
