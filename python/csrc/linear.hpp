// A linear layer before a loss, and its gradients.
#ifndef TIGON_TORCH_LINEAR_HPP
#define TIGON_TORCH_LINEAR_HPP

#include <tigon/losses/linear/linear_layer.hpp>

#include "call.hpp"

#if TIGON_TORCH_CUDA
#include <tigon/backends/cuda/times.hpp>
#endif

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

#if TIGON_TORCH_CUDA
/// A gradient without gaps times its upstream gradient, in place: the host does not look at a number of the device.
template <class T>
void times_upstream(const matrix& gradient, const vector& upstream, tigon::context& ctx) {
  tigon::gpu::times(std::span(static_cast<T*>(gradient.data), gradient.rows * gradient.cols),
                    static_cast<const tigon::accumulator_t<T>*>(upstream.data), ctx);
}
template <class T>
void times_upstream(const linear_gradients& of, const vector& upstream, tigon::context& ctx) {
  const matrix bias{of.dbias.data, of.dbias.of, 1, of.dbias.size, of.dbias.size};
  for (const matrix& gradient : {of.dx, of.dw, bias})
    if (gradient.data != nullptr) times_upstream<T>(gradient, upstream, ctx);
}
#endif

}  // namespace tigon_torch

#endif  // TIGON_TORCH_LINEAR_HPP
