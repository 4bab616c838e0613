// The operators of the model, each in a scope of the profile with its least work.
#ifndef EXAMPLE_TRAIN_LLAMA_OPERATORS_HPP
#define EXAMPLE_TRAIN_LLAMA_OPERATORS_HPP

#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/rows/reduce_map.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

#include "../../support/operators.hpp"

namespace example {

/// y = x
struct same {
  template <class V>
  TIGON_INLINE V map(V x) const {
    return x;
  }
};

/// The doors that a model calls, without the context.
template <tigon::element T, tigon::element S = float>
class operators : public timed_operators<T, S> {
  using base = timed_operators<T, S>;
  using base::bytes, base::call, base::ctx_, base::product;

 public:
  using base::base;
  using typename base::head_types;

  void embedding_forward(matrix<const T> w, std::span<const std::int32_t> ids, matrix<T> y);
  void embedding_backward(matrix<const S> dy, std::span<const std::int32_t> ids, matrix<S> dw, tigon::gradient mode);

  void product_xwt(matrix<const T> x, matrix<const T> w, matrix<T> y);
  void product_xw(matrix<const T> dy, matrix<const T> w, matrix<T> dx);
  void product_xty(matrix<const T> dy, matrix<const T> x, matrix<S> dw);

  void swiglu_forward(matrix<const T> gate, matrix<const T> up, matrix<T> y);
  void swiglu_backward(matrix<const T> dy, matrix<const T> gate, matrix<const T> up, matrix<T> dgate, matrix<T> dup);

  /// The head, its loss where kernels write it, and with dx that has memory their gradients.
  void head_loss(const tigon::linear_layer<head_types>& layer, std::span<const std::int32_t> targets, float* loss,
                 matrix<T> dx, matrix<S> dw);

  /// to = from
  template <class To>
  void convert(matrix<const T> from, matrix<To> to) {
    const auto timed = call("convert", {0, bytes(from, to)});
    tigon::map_rows<tigon::default_backend>(ctx_, same(), tigon::reads(from), tigon::writes(to));
  }
};

template <tigon::element T, tigon::element S>
void operators<T, S>::embedding_forward(matrix<const T> w, std::span<const std::int32_t> ids, matrix<T> y) {
  const auto timed = call("embedding", {0, 2 * bytes(y)});
  tigon::embedding_forward(w, ids, y, {}, ctx_);
}

template <tigon::element T, tigon::element S>
void operators<T, S>::embedding_backward(matrix<const S> dy, std::span<const std::int32_t> ids, matrix<S> dw,
                                         tigon::gradient mode) {
  const auto timed = call("embedding", {0, bytes(dy, dw)});
  tigon::embedding_backward(dy, ids, dw, {.dweight = mode}, ctx_);
}

template <tigon::element T, tigon::element S>
void operators<T, S>::product_xwt(matrix<const T> x, matrix<const T> w, matrix<T> y) {
  const auto timed = product(x.rows, x.cols, w.rows, bytes(x, w, y));
  example::product_xwt<T>(x, w, y, ctx_);
}

template <tigon::element T, tigon::element S>
void operators<T, S>::product_xw(matrix<const T> dy, matrix<const T> w, matrix<T> dx) {
  const auto timed = product(dy.rows, dy.cols, w.cols, bytes(dy, w, dx));
  example::product_xw<T>(dy, w, dx, ctx_);
}

template <tigon::element T, tigon::element S>
void operators<T, S>::product_xty(matrix<const T> dy, matrix<const T> x, matrix<S> dw) {
  const auto timed = product(dy.cols, dy.rows, x.cols, bytes(dy, x, dw));
  example::product_xty<T>(dy, x, dw, ctx_);
}

template <tigon::element T, tigon::element S>
void operators<T, S>::swiglu_forward(matrix<const T> gate, matrix<const T> up, matrix<T> y) {
  const auto timed = call("swiglu", {0, bytes(gate, up, y)});
  tigon::swiglu_forward(gate, up, y, {}, ctx_);
}

template <tigon::element T, tigon::element S>
void operators<T, S>::swiglu_backward(matrix<const T> dy, matrix<const T> gate, matrix<const T> up, matrix<T> dgate,
                                      matrix<T> dup) {
  const auto timed = call("swiglu", {0, bytes(dy, gate, up, dgate, dup)});
  tigon::swiglu_backward(dy, gate, up, dgate, dup, {}, ctx_);
}

template <tigon::element T, tigon::element S>
void operators<T, S>::head_loss(const tigon::linear_layer<head_types>& layer, std::span<const std::int32_t> targets,
                                float* loss, matrix<T> dx, matrix<S> dw) {
  const tigon::linear_gradients<head_types> to{.dx = dx, .dw = dw};
  const auto timed = base::head("fused_linear_cross_entropy", layer, to);
  tigon::fused_linear_cross_entropy_forward<typename base::head_backend>(layer, targets, {std::span(loss, 1)}, to, {},
                                                                         tigon::absent, {}, ctx_);
}

// Compiled once an element type, in operators_f32.cpp and operators_bf16.cpp.
extern template class operators<float>;
extern template class operators<tigon::bfloat16>;
#if defined(EXAMPLE_ON_DEVICE)
extern template class operators<tigon::bfloat16, tigon::bfloat16>;
#endif

}  // namespace example
#endif
