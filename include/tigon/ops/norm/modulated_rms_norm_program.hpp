// Modulated RMSNorm of a row, forward and backward, as structs of reduce, finish and map (rows/reduce_map.hpp).
#ifndef TIGON_OPS_NORM_MODULATED_RMS_NORM_PROGRAM_HPP
#define TIGON_OPS_NORM_MODULATED_RMS_NORM_PROGRAM_HPP

#include <tigon/ops/norm/rms_norm_program.hpp>

#include <array>

namespace tigon::detail {
inline namespace TIGON_ABI {

// Rows with a scale of their own.

/// y = x rstd (offset + w) (1 + scale) + shift
template <casting C, element T, class A>
struct modulated_rms_norm_program : inverse_rms<A> {
  A offset;

  template <class V>
  TIGON_INLINE V map(A rstd, V x, V w, V scale, V shift) const {
    return fma(cast_normalised<C, T>(x * rstd) * (w + offset), scale + A(1), shift);
  }
};

/// k = sum_j u (offset + w) x,   c = rstd^2 k / cols,   xh = x rstd                         u = dy (1 + scale)
/// dx = rstd (u (offset + w) - c xh),   dscale += dy xh (offset + w),   dshift += dy,   dw += u xh
/// `dscale` and `dshift` are the numbers that are added to. k is made of u times a power of two, scale_of_row.
template <casting C, element T, class A>
struct modulated_rms_norm_gradient {
  A cols, offset;

  /// scale_of_row without a branch, which compilers would move into the loop over columns.
  template <class V>
  static TIGON_INLINE V vector_scale(V rstd) {
    const A least = A(0x1p-24), most = A(0x1p24);
    return select(rstd < V(least), V(scale_of_row(least / A(2))),
                  select(V(most) < rstd, V(scale_of_row(most * A(2))), V(A(1))));
  }

  template <class V>
  TIGON_INLINE V reduce(A rstd, V dy, V x, V w, V scale, V) const {
    const V p = vector_scale(V(rstd));
    return dy * fma(scale, p, p) * (w + offset) * x;
  }
  TIGON_INLINE std::array<A, 2> finish(A k, A saved) const {
    const A rstd = canonical(saved);
    return {rstd, rstd / scale_of_row(rstd) * k / cols};
  }
  template <class V>
  TIGON_INLINE V direct(V dy, V, V, V, V dshift) const {
    return dy + dshift;
  }
  template <class V>
  TIGON_INLINE pack<V, 3> map(std::array<A, 2> row, V dy, V x, V w, V scale, V, V dscale, V dw) const {
    const auto [rstd, c] = row;
    const V f = w + offset, u = dy * (scale + A(1)), exact = x * rstd, xh = cast_normalised_again<C, T>(exact);
    return {{fnma(exact, V(c), u * f) * rstd, fma(dy, xh * f, dscale), fma(u, xh, dw)}};
  }
};

// Groups of rows that share a scale: an rms_norm whose weight is (1 + scale) (offset + w).

/// weight = (1 + scale) (offset + w)
template <class A>
struct group_weight_program {
  A offset;

  template <class V>
  TIGON_INLINE V map(V scale, V w) const {
    return (scale + A(1)) * (w + offset);
  }
};

/// y = x rstd weight + shift
template <casting C, element T, class A>
struct shifted_rms_norm_program : inverse_rms<A> {
  template <class V>
  TIGON_INLINE V map(A rstd, V x, V weight, V shift) const {
    return fma(cast_normalised<C, T>(x * rstd), weight, shift);
  }
};

/// As rms_norm_gradient without an offset;   dshift += dy
template <casting C, element T, class A, bool InF64 = false>
struct shifted_rms_norm_gradient : rms_norm_gradient<C, T, A, InF64> {
  using of_norm = rms_norm_gradient<C, T, A, InF64>;
  using row = typename of_norm::row;

  TIGON_INLINE auto in_f64(const row& of) const
    requires(!InF64)
  {
    using program = shifted_rms_norm_gradient<C, T, A, true>;
    return in_f64_if(!this->holds(of), program{{this->cols, this->offset, this->eps}});
  }
  template <class V>
  TIGON_INLINE auto reduce(A saved, V dy, V x, V weight) const {
    return this->products(dy * weight, x, saved);
  }
  template <class V>
  TIGON_INLINE pack<V, 3> map(row of, V dy, V x, V weight, V dweight, V dshift) const {
    return {{this->without_share_of(of, x, dy * weight * of.rstd), this->dw(of, dy, x, dweight), dshift + dy}};
  }
};

/// dshift += dy
struct shift_gradient {
  template <class V>
  TIGON_INLINE V map(V dy, V dshift) const {
    return dshift + dy;
  }
};

/// dscale += dweight (offset + w),   dw += dweight (1 + scale);   `dscale` is the number that is added to
template <class A>
struct group_weight_gradient {
  A offset;

  template <class V>
  TIGON_INLINE pack<V, 2> map(V dweight, V w, V scale, V dscale, V dw) const {
    return {{fma(dweight, w + offset, dscale), fma(dweight, scale + A(1), dw)}};
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_NORM_MODULATED_RMS_NORM_PROGRAM_HPP
