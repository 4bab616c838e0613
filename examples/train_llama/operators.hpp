// The operators of the model, each in a scope of the profile with its least work.
#ifndef EXAMPLE_TRAIN_LLAMA_OPERATORS_HPP
#define EXAMPLE_TRAIN_LLAMA_OPERATORS_HPP

#include <tigon/losses/fused_linear_cross_entropy.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

#include "../../support/operators.hpp"

namespace example {

/// The doors that a model calls, without the context.
template <tigon::element T>
class operators : public timed_operators<T> {
  using base = timed_operators<T>;
  using base::bytes, base::call, base::ctx_, base::product;

 public:
  using base::base;
  using typename base::head_types;

  void embedding_forward(matrix<const T> w, std::span<const std::int32_t> ids, matrix<T> y);
  void embedding_backward(matrix<const float> dy, std::span<const std::int32_t> ids, matrix<float> dw);

  void product_xwt(matrix<const T> x, matrix<const T> w, matrix<T> y);
  void product_xw(matrix<const T> dy, matrix<const T> w, matrix<T> dx);
  void product_xty(matrix<const T> dy, matrix<const T> x, matrix<float> dw);

  void swiglu_forward(matrix<const T> gate, matrix<const T> up, matrix<T> y);
  void swiglu_backward(matrix<const T> dy, matrix<const T> gate, matrix<const T> up, matrix<T> dgate, matrix<T> dup);

  /// The head, the loss, and with dx that has memory their gradients.
  void head_loss(const tigon::linear_layer<head_types>& layer, std::span<const std::int32_t> targets, float& loss,
                 matrix<T> dx, matrix<float> dw);

  /// to = from
  template <class To>
  void convert(matrix<const T> from, matrix<To> to) {
    const auto timed = call("convert", {0, bytes(from, to)});
    tigon::for_rows<tigon::default_backend>(ctx_, to.rows, to.cols, [=] TIGON_FN(auto row) {
      row.map(tigon::reads(from), tigon::writes(to), [](auto v) { return v; });
    });
  }
};

template <tigon::element T>
void operators<T>::embedding_forward(matrix<const T> w, std::span<const std::int32_t> ids, matrix<T> y) {
  const auto timed = call("embedding", {0, 2 * bytes(y)});
  tigon::embedding_forward(w, ids, y, {}, ctx_);
}

template <tigon::element T>
void operators<T>::embedding_backward(matrix<const float> dy, std::span<const std::int32_t> ids, matrix<float> dw) {
  const auto timed = call("embedding", {0, bytes(dy, dw)});
  tigon::embedding_backward(dy, ids, dw, {}, ctx_);
}

template <tigon::element T>
void operators<T>::product_xwt(matrix<const T> x, matrix<const T> w, matrix<T> y) {
  const auto timed = product(x.rows, x.cols, w.rows, bytes(x, w, y));
  example::product_xwt<T>(x, w, y, ctx_);
}

template <tigon::element T>
void operators<T>::product_xw(matrix<const T> dy, matrix<const T> w, matrix<T> dx) {
  const auto timed = product(dy.rows, dy.cols, w.cols, bytes(dy, w, dx));
  example::product_xw<T>(dy, w, dx, ctx_);
}

template <tigon::element T>
void operators<T>::product_xty(matrix<const T> dy, matrix<const T> x, matrix<float> dw) {
  const auto timed = product(dy.cols, dy.rows, x.cols, bytes(dy, x, dw));
  example::product_xty<T>(dy, x, dw, ctx_);
}

template <tigon::element T>
void operators<T>::swiglu_forward(matrix<const T> gate, matrix<const T> up, matrix<T> y) {
  const auto timed = call("swiglu", {0, bytes(gate, up, y)});
  tigon::swiglu_forward(gate, up, y, {}, ctx_);
}

template <tigon::element T>
void operators<T>::swiglu_backward(matrix<const T> dy, matrix<const T> gate, matrix<const T> up, matrix<T> dgate,
                                   matrix<T> dup) {
  const auto timed = call("swiglu", {0, bytes(dy, gate, up, dgate, dup)});
  tigon::swiglu_backward(dy, gate, up, dgate, dup, {}, ctx_);
}

template <tigon::element T>
void operators<T>::head_loss(const tigon::linear_layer<head_types>& layer, std::span<const std::int32_t> targets,
                             float& loss, matrix<T> dx, matrix<float> dw) {
  const tigon::linear_gradients<head_types> to{.dx = dx, .dw = dw};
  const auto timed = base::head("fused_linear_cross_entropy", layer, to);
  tigon::fused_linear_cross_entropy_forward<typename base::head_backend>(layer, targets, {std::span(&loss, 1)}, to, {},
                                                                         tigon::absent, {}, ctx_);
}

// Compiled once an element type, in operators_f32.cpp and operators_bf16.cpp.
extern template class operators<float>;
extern template class operators<tigon::bfloat16>;

}  // namespace example
#endif
