// A matrix times a number: what a backward pass makes of a gradient that forward has made.
#ifndef TIGON_LOSSES_LINEAR_SCALED_PROGRAM_HPP
#define TIGON_LOSSES_LINEAR_SCALED_PROGRAM_HPP

#include <tigon/rows/reduce_map.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// to = factor from, or to += factor from
template <class A>
struct scaled_program {
  A factor;

  template <class V>
  TIGON_INLINE V map(V from) const {
    return from * factor;
  }
  template <class V>
  TIGON_INLINE V map(V from, V to) const {
    return to + from * factor;
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_LINEAR_SCALED_PROGRAM_HPP
