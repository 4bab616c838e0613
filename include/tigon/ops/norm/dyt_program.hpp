// Dynamic tanh of one column, forward and backward, as structs with a map (rows/reduce_map.hpp).
#ifndef TIGON_OPS_NORM_DYT_PROGRAM_HPP
#define TIGON_OPS_NORM_DYT_PROGRAM_HPP

#include <tigon/rows/reduce_map.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// y = gamma tanh(alpha x) + beta. Tanh is a function of x, for one alpha.
template <class Tanh>
struct dyt_program {
  Tanh tanh_of;

  template <class V>
  TIGON_INLINE V map(V x, V gamma, V beta) const {
    return fma(tanh_of(x), gamma, beta);
  }
};

/// t = tanh(alpha x),   h = (1 - t^2) dy / 4,   dx = 4 alpha gamma h
/// dalpha = sum_j 4 gamma s,   s += x h,   dgamma += dy t,   dbeta += dy
/// Parts is tanh_parts, whose first part, a long chain of operations, is prepared.
template <class Parts>
struct dyt_gradient {
  Parts parts;

  template <class V>
  TIGON_INLINE auto prepare(V x) const {
    return parts.power(x);
  }
  /// weight is 4 alpha gamma.
  template <class Power, class V>
  TIGON_INLINE pack<V, 4> map(Power power, V x, V dy, V weight, V s, V dgamma, V dbeta) const {
    const auto [up, q, y] = parts.rest(power, x);
    const V ydy = y * dy, h = y * q * ydy;
    return {{h * weight, fma(x, h, s),
             sizeof(typename V::value_type) == 8 ? fma(dy, up * y, dgamma) : fma(up, ydy, dgamma), dbeta + dy}};
  }
};

/// A row's part of dalpha, sum_j (1 - t^2) dy gamma x, in f64.
struct dyt_alpha_gradient {
  simd::tanh_parts<53, double> parts;

  template <class V>
  TIGON_INLINE V reduce(V gamma, V dy, V x) const {
    const auto [up, q, y] = parts(x);
    return q * y * y * dy * (V(4) * gamma) * x;
  }
  TIGON_INLINE double save(double sum) const { return sum; }
};

/// 4 alpha gamma
template <class A>
struct dyt_weights {
  A alpha;

  template <class V>
  TIGON_INLINE V map(V gamma) const {
    return V(A(4)) * (gamma * V(alpha));
  }
};

/// These programs, of an alpha in memory: Of is what a Program has of it, a number of A or a function.
template <class Program, class Of, class A, class W>
struct dyt_at {
  const W* alpha;

  TIGON_INLINE Program program() const { return {Of(static_cast<A>(*alpha))}; }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_NORM_DYT_PROGRAM_HPP
