// Softmax, sparsemax, squared ReLU, embedding; on CUDA gates whose output backward makes again.
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/sparsemax.hpp>
#if TIGON_TORCH_CUDA
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/swiglu.hpp>
#endif

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

#if TIGON_TORCH_CUDA
/// A gate's program of backward whose results are y, dgate and dup: a layer behind it needs y once more, and gate and
/// up are read once for all three.
template <class P>
struct with_output : P {
  template <class V>
  TIGON_INLINE tigon::simd::pack<V, 3> map(V dy, V gate, V up) const {
    const auto gradients = P::map(dy, gate, up);
    return {P::map(gate, up), gradients.v[0], gradients.v[1]};
  }
};

template <class Op, class T, class Options>
void gate_backward_with_output(const host& h, matrix dy, matrix gate, matrix up, matrix y, matrix dgate, matrix dup,
                               const Options& opt) {
  run(h, [&](tigon::context& ctx) {
    tigon::kernel_for<Op, backend>::template with_program<backend, T>(opt, [&]<class P>(const P& program) {
      tigon::map_rows<backend>(ctx, with_output<P>{program},
                               tigon::reads(view<const T>(dy), view<const T>(gate), view<const T>(up)),
                               tigon::writes(view<T>(y), view<T>(dgate), view<T>(dup)));
    });
  });
}
void swiglu_backward_with_output(const host& h, matrix dy, matrix gate, matrix up, matrix y, matrix dgate, matrix dup,
                                 double gate_multiplier, double down_multiplier, double limit, double slope,
                                 double up_offset) {
  with_type<tigon::op::swiglu>("swiglu_backward_with_output", dy.of, [&]<class T>() {
    tigon::swiglu_options opt;
    opt.gate_multiplier = gate_multiplier, opt.down_multiplier = down_multiplier;
    opt.limit = limit, opt.slope = slope, opt.up_offset = up_offset;
    gate_backward_with_output<tigon::op::swiglu, T>(h, dy, gate, up, y, dgate, dup, opt);
  });
}
void geglu_backward_with_output(const host& h, matrix dy, matrix gate, matrix up, matrix y, matrix dgate, matrix dup,
                                bool tanh) {
  with_type<tigon::op::geglu>("geglu_backward_with_output", dy.of, [&]<class T>() {
    const tigon::geglu_options opt{.form = tanh ? tigon::gelu_form::tanh : tigon::gelu_form::erf};
    gate_backward_with_output<tigon::op::geglu, T>(h, dy, gate, up, y, dgate, dup, opt);
  });
}
#endif

}  // namespace

declared_operators declared_activations() {
  static constexpr declared_operator table[] = {
#if TIGON_TORCH_CUDA
    declared<&swiglu_backward_with_output, tigon::op::swiglu>("swiglu_backward_with_output"),
    declared<&geglu_backward_with_output, tigon::op::geglu>("geglu_backward_with_output"),
#endif
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
