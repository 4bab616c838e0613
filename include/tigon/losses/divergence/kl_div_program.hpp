// Pointwise Kullback-Leibler divergence of one column, and its gradients, as structs of reduce and map
// (rows/reduce_map.hpp). y is the student, t the teacher, of which each number is a probability, or the logarithm of
// one.
#ifndef TIGON_LOSSES_DIVERGENCE_KL_DIV_PROGRAM_HPP
#define TIGON_LOSSES_DIVERGENCE_KL_DIV_PROGRAM_HPP

#include <tigon/rows/reduce_map.hpp>
#include <tigon/simd/math/divergence.hpp>

#include <limits>

namespace tigon::detail {
inline namespace TIGON_ABI {

template <bool Log, class V>
TIGON_INLINE V teacher_probability(V t) {
  if constexpr (Log)
    return simd::probability(t);
  else
    return t;
}

/// P = t, or exp(t) if Log.   loss = P (log max(P, lowest) - y), summed or of each element,   dy = factor P
/// loss is 0 where P is 0, NaN where it is negative.
template <bool Log, class A>
struct kl_div_program {
  A lowest, factor;

  template <class V>
  TIGON_INLINE V map(V y, V t) const {
    if constexpr (Log) {
      return simd::plain_kl(teacher_probability<true>(t), t, y);
    } else {
      const V zero(A(0)), finite = select(t == zero, simd::finite_log(y), y);
      const V log_ratio = simd::log_minus(max(V(lowest), t), finite);
      // A fused product, so that no compiler fuses it with a sum in one loop and not in another.
      return select(t < zero, V(std::numeric_limits<A>::quiet_NaN()), fma(t, log_ratio, zero));
    }
  }
  template <class V>
  TIGON_INLINE V reduce(V y, V t) const {
    return map(y, t);
  }
  template <class V>
  TIGON_INLINE V direct(V, V t) const {
    return teacher_probability<Log>(t) * factor;
  }
  TIGON_INLINE double save(A sum) const { return static_cast<double>(sum); }
};

/// dy = factor P, or factor g P with an upstream gradient g of each element
template <bool Log, class A>
struct kl_div_gradient {
  A factor;

  template <class V>
  TIGON_INLINE V map(V t) const {
    return teacher_probability<Log>(t) * factor;
  }
  template <class V>
  TIGON_INLINE V map(V t, V g) const {
    return teacher_probability<Log>(t) * (g * factor);
  }
};

/// dt = factor slope, or factor g slope,   slope = d loss / dt: log max(P, eps) - y + [P > eps], or P (t - y + 1) if
/// Log
template <bool Log, class A>
struct kl_div_teacher_gradient {
  A eps, factor;

  template <class V>
  TIGON_INLINE V slope(V y, V t) const {
    if constexpr (Log) {
      const V p = teacher_probability<true>(t);
      return simd::plain_kl(p, t, y) + p;
    } else {
      const V zero(A(0)), lowest(std::max(eps, std::numeric_limits<A>::min()));
      const V of_p = simd::log_minus(max(lowest, t), y) + select(t > V(eps), V(A(1)), zero);
      const auto nothing = t == zero && (V(eps) == zero || y < V(std::numeric_limits<A>::lowest()));
      return select(t >= zero, select(nothing, zero, of_p), V(std::numeric_limits<A>::quiet_NaN()));
    }
  }
  template <class V>
  TIGON_INLINE V map(V y, V t) const {
    return slope(y, t) * factor;
  }
  template <class V>
  TIGON_INLINE V map(V y, V t, V g) const {
    return slope(y, t) * (g * factor);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_DIVERGENCE_KL_DIV_PROGRAM_HPP
