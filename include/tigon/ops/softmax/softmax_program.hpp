// Softmax of a row, forward (ops/softmax/below_max.hpp) and backward, as structs of reduce, finish and map.
#ifndef TIGON_OPS_SOFTMAX_SOFTMAX_PROGRAM_HPP
#define TIGON_OPS_SOFTMAX_SOFTMAX_PROGRAM_HPP

#include <tigon/rows/reduce_map.hpp>

#include <array>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// e = exp(scale (x - top)),   y = e / sum_j e,   to so many bits
template <std::size_t Bits, class A>
struct softmax_program {
  A scale;

  template <class V>
  TIGON_INLINE V reduce(A top, V x) const {
    return simd::exp_nonpositive<Bits>((x - top) * scale);
  }
  TIGON_INLINE bool exceeds(A largest, A top) const { return (largest - top) * scale > A(1); }
  TIGON_INLINE A weight(A top, A highest) const { return math::exp_nonpositive((top - highest) * scale); }
  TIGON_INLINE A finish(A sum, A weight) const { return weight / sum; }
  template <class V>
  TIGON_INLINE V map(A factor, V e) const {
    return e * factor;
  }
};

/// delta = sum_j dy y / sum_j y,   dx = scale y (dy - delta)
/// delta in two steps, rough + rest, the second on what the first leaves: dy - delta cancels where y is near 1.
///   rough = sum_j dy y,   rest = sum_j (dy - rough) y / sum_j y
template <class A>
struct softmax_gradient {
  A scale;

  struct state {
    A rough = 0;
  };
  template <class V>
  TIGON_INLINE V reduce(V dy, V y) const {
    return dy * y;
  }
  template <class V>
  TIGON_INLINE pack<V, 2> reduce(state s, V dy, V y) const {
    return {{(dy - V(s.rough)) * y, y}};
  }
  TIGON_INLINE bool again(state& s, A sum) const {
    s.rough = sum;
    return true;
  }
  TIGON_INLINE std::array<A, 2> finish(state s, std::array<A, 2> sums) const {
    return {s.rough, sums[1] > A(0) ? sums[0] / sums[1] : sums[0]};
  }
  template <class V>
  TIGON_INLINE V map(std::array<A, 2> delta, V dy, V y) const {
    const auto [rough, rest] = delta;
    return (dy - V(rough) - V(rest)) * y * V(scale);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_SOFTMAX_SOFTMAX_PROGRAM_HPP
