// Softmax, sparsemax, squared ReLU, embedding.
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/sparsemax.hpp>

#include "declared.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

using backend = tigon::default_backend;

void softmax(const host& h, matrix x, matrix y, double scale) {
  with_type<tigon::op::softmax>("softmax", x.of, [&]<class T>() {
    run(
        h, [&](const tigon::context& ctx) { return tigon::softmax_workspace<backend, T>(x.cols, ctx); },
        [&](tigon::context& ctx) { tigon::softmax_forward(view<const T>(x), view<T>(y), {scale}, ctx); });
  });
}
void softmax_backward(const host& h, matrix dy, matrix y, matrix dx, double scale) {
  with_type<tigon::op::softmax>("softmax_backward", y.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) {
      tigon::softmax_backward(view<const T>(dy), view<const T>(y), view<T>(dx), {scale}, ctx);
    });
  });
}

/// [outer, axis, inner]
template <class T>
tigon::axis_view<T> axis_of(const cube& c) {
  return {static_cast<T*>(c.data), c.sizes[0], c.sizes[1], c.sizes[2]};
}
void sparsemax(const host& h, cube x, cube y) {
  with_type<tigon::op::sparsemax>("sparsemax", x.of, [&]<class T>() {
    run(
        h,
        [&](const tigon::context& ctx) {
          return x.sizes[2] == 1 ? tigon::sparsemax_workspace<backend, T>(x.sizes[1], ctx)
                                 : tigon::sparsemax_workspace<backend, T>(x.sizes[1], x.sizes[2], ctx);
        },
        [&](tigon::context& ctx) { tigon::sparsemax_forward(axis_of<const T>(x), axis_of<T>(y), {}, ctx); });
  });
}
void sparsemax_backward(const host& h, cube dy, cube y, cube dx) {
  with_type<tigon::op::sparsemax>("sparsemax_backward", y.of, [&]<class T>() {
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::sparsemax_backward_workspace<backend, T>(y.sizes[1], y.sizes[2], ctx);
        },
        [&](tigon::context& ctx) {
          tigon::sparsemax_backward(axis_of<const T>(dy), axis_of<const T>(y), axis_of<T>(dx), {}, ctx);
        });
  });
}

void relu_squared(const host& h, matrix x, matrix y) {
  with_type<tigon::op::relu_squared>("relu_squared", x.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) { tigon::relu_squared_forward(view<const T>(x), view<T>(y), {}, ctx); });
  });
}
void relu_squared_backward(const host& h, matrix dy, matrix x, matrix dx) {
  with_type<tigon::op::relu_squared>("relu_squared_backward", x.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) {
      tigon::relu_squared_backward(view<const T>(dy), view<const T>(x), view<T>(dx), {}, ctx);
    });
  });
}

tigon::embedding_options embedding_of(std::int64_t padding_index) {
  tigon::embedding_options opt;
  opt.padding_index = static_cast<std::ptrdiff_t>(padding_index);
  return opt;
}
/// As PyTorch's: the row of the padding is as it is, and gets no gradient.
void embedding(const host& h, matrix weight, id_vector ids, matrix y, std::int64_t) {
  with_type<tigon::op::embedding>("embedding", weight.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) {
      tigon::embedding_forward(view<const T>(weight), view<const std::int64_t>(ids), view<T>(y), {}, ctx);
    });
  });
}
void embedding_backward(const host& h, matrix dy, id_vector ids, matrix dweight, std::int64_t padding_index) {
  with_type<tigon::op::embedding>("embedding_backward", dy.of, [&]<class T>() {
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::embedding_workspace<backend, T>(dweight.rows, dy.rows, dy.cols, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::embedding_backward(view<const T>(dy), view<const std::int64_t>(ids), view<T>(dweight),
                                    embedding_of(padding_index), ctx);
        });
  });
}

}  // namespace

declared_operators declared_activations() {
  static constexpr declared_operator table[] = {
      declared<&softmax, tigon::op::softmax>("softmax"),
      declared<&softmax_backward, tigon::op::softmax>("softmax_backward"),
      declared<&sparsemax, tigon::op::sparsemax>("sparsemax"),
      declared<&sparsemax_backward, tigon::op::sparsemax>("sparsemax_backward"),
      declared<&relu_squared, tigon::op::relu_squared>("relu_squared"),
      declared<&relu_squared_backward, tigon::op::relu_squared>("relu_squared_backward"),
      declared<&embedding, tigon::op::embedding>("embedding"),
      declared<&embedding_backward, tigon::op::embedding>("embedding_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch
