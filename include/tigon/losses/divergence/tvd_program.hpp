// Total variation distance of one column, and its gradient, as structs of reduce and map (rows/reduce_map.hpp). q is
// the student, p the teacher.
#ifndef TIGON_LOSSES_DIVERGENCE_TVD_PROGRAM_HPP
#define TIGON_LOSSES_DIVERGENCE_TVD_PROGRAM_HPP

#include <tigon/rows/reduce_map.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// -1, 0, 1; of NaN NaN.
template <class V>
TIGON_INLINE V sign(V d) {
  using A = typename V::value_type;
  return select(abs(d) > V(A(0)), copysign(V(A(1)), d), d);
}

/// loss = |q - p| / 2, summed or of each element,   dq = factor sign(q - p)
template <class A>
struct tvd_program {
  A factor;

  template <class V>
  TIGON_INLINE V map(V q, V p) const {
    return A(0.5) * abs(q - p);
  }
  template <class V>
  TIGON_INLINE V reduce(V q, V p) const {
    return map(q, p);
  }
  template <class V>
  TIGON_INLINE V direct(V q, V p) const {
    return factor * sign(q - p);
  }
  TIGON_INLINE double save(A sum) const { return static_cast<double>(sum); }
};

/// dq = factor sign(q - p), or factor g sign(q - p) with an upstream gradient g of each element
template <class A>
struct tvd_gradient {
  A factor;

  template <class V>
  TIGON_INLINE V map(V q, V p) const {
    return factor * sign(q - p);
  }
  template <class V>
  TIGON_INLINE V map(V q, V p, V g) const {
    return factor * g * sign(q - p);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_DIVERGENCE_TVD_PROGRAM_HPP
