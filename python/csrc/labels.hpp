// Labels that a call may have or not.
#ifndef TIGON_TORCH_LABELS_HPP
#define TIGON_TORCH_LABELS_HPP

#include "call.hpp"

namespace tigon_torch {

/// f(labels), or f(tigon::absent) where there are none.
template <class F>
void with_labels(id_vector labels, F f) {
  if (labels.data != nullptr)
    f(view<const std::int64_t>(labels));
  else
    f(tigon::absent);
}

}  // namespace tigon_torch

#endif  // TIGON_TORCH_LABELS_HPP
