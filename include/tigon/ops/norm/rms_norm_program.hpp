// RMSNorm of a row, forward and backward, as structs of reduce, finish and map (rows/reduce_map.hpp).
#ifndef TIGON_OPS_NORM_RMS_NORM_PROGRAM_HPP
#define TIGON_OPS_NORM_RMS_NORM_PROGRAM_HPP

#include <tigon/ops/norm/row_scale.hpp>

#include <array>
#include <limits>

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
template <casting C, element T, class A>
struct rms_norm_gradient {
  A cols, offset;

  template <class V>
  TIGON_INLINE V reduce(V dy, V x, V w) const {
    return dy * (w + offset) * x;
  }
  TIGON_INLINE std::array<A, 2> finish(A k, A saved) const {
    const A rstd = canonical(saved);
    return {rstd, rstd / cols * (rstd * k) * rstd};  // the division does not depend on the reduction
  }
  template <class V>
  TIGON_INLINE pack<V, 2> map(std::array<A, 2> row, V dy, V x, V w, V dw) const {
    const auto [rstd, c] = row;
    return {{fnma(x, V(c), dy * (w + offset) * rstd), fma(dy, cast_normalised_again<C, T>(x * rstd), dw)}};
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
template <casting C, element T, class A>
struct fused_add_rms_norm_gradient : rms_norm_gradient<C, T, A> {
  template <class V>
  TIGON_INLINE pack<V, 2> map(std::array<A, 2> row, V dy, V s, V w, V ds, V dw) const {
    const auto [rstd, c] = row;
    return {
        {fnma(s, V(c), fma(dy * (w + this->offset), V(rstd), ds)), fma(dy, cast_normalised_again<C, T>(s * rstd), dw)}};
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_NORM_RMS_NORM_PROGRAM_HPP
