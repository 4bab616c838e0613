// Generalised Jensen-Shannon divergence of one column, and the student's gradient, as structs of reduce
// (rows/reduce_map.hpp). x and y are the logarithms of the student's probability Q and of the teacher's P.
#ifndef TIGON_LOSSES_DIVERGENCE_JSD_PROGRAM_HPP
#define TIGON_LOSSES_DIVERGENCE_JSD_PROGRAM_HPP

#include <tigon/rows/reduce_map.hpp>
#include <tigon/simd/math/divergence.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// r = P (y - x),   dx = -scale P
template <class A>
struct forward_kl_program {
  A scale;

  template <class V>
  TIGON_INLINE V reduce(V x, V y) const {
    return simd::plain_kl(simd::probability(y), y, x);
  }
  template <class V>
  TIGON_INLINE V direct(V, V y) const {
    return simd::probability(y) * -scale;
  }
  TIGON_INLINE double save(A sum) const { return static_cast<double>(sum); }
};

/// r = Q (x - y),   dx = scale (r + Q)
template <class A>
struct reverse_kl_program {
  A scale;

  template <class V>
  TIGON_INLINE V reduce(V x, V y) const {
    return simd::plain_kl(simd::probability(x), x, y);
  }
  template <class V>
  TIGON_INLINE V direct(V x, V y) const {
    return (reduce(x, y) + simd::probability(x)) * scale;
  }
  TIGON_INLINE double save(A sum) const { return static_cast<double>(sum); }
};

/// r = value,   dx = factor qc   of a divergence (simd/math/divergence.hpp)
template <class Divergence, class A>
struct jensen_shannon_program {
  Divergence divergence;
  A factor;

  template <class V>
  TIGON_INLINE V reduce(V x, V y) const {
    return divergence(x, y).value;
  }
  template <class V>
  TIGON_INLINE pack<V, 2> direct(V x, V y) const {
    const auto of = divergence(x, y);
    return {{of.qc * factor, of.value}};
  }
  TIGON_INLINE double save(A sum) const { return static_cast<double>(sum); }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_DIVERGENCE_JSD_PROGRAM_HPP
