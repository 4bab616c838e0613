// A linear layer before a loss, and its gradients.
#ifndef TIGON_TORCH_LINEAR_HPP
#define TIGON_TORCH_LINEAR_HPP

#include <tigon/losses/linear/linear_layer.hpp>

#include "call.hpp"

namespace tigon_torch {

template <class T>
tigon::linear_layer<T> layer_of(const linear_layer& l) {
  tigon::linear_layer<T> layer;
  layer.x = view<const T>(l.x), layer.w = view<const T>(l.w), layer.bias = view<const T>(l.bias);
  return layer;
}
template <class T>
tigon::linear_gradients<T> gradients_of(const linear_gradients& g) {
  tigon::linear_gradients<T> to;
  to.dx = view<T>(g.dx), to.dw = view<T>(g.dw), to.dbias = view<T>(g.dbias);
  return to;
}

}  // namespace tigon_torch

#endif  // TIGON_TORCH_LINEAR_HPP
