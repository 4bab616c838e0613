// The arguments that all fused linear losses have: a linear layer, and where its gradients go.
#ifndef TIGON_LOSSES_PARTS_LINEAR_LAYER_HPP
#define TIGON_LOSSES_PARTS_LINEAR_LAYER_HPP

#include <tigon/gemm/gemm.hpp>

namespace tigon {

inline namespace TIGON_ABI {

/// w of a linear layer as gemm_pack lays it out. Either may be empty.
///   logits    op(b) = w^T, for x of type T:        gemm_pack<B, T>(w, bytes, transpose::yes)
///   gradient  op(b) = w, for the loss's gradient:  gemm_pack<B, accumulator_t<T>>(w, bytes)
template <element T>
struct packed_weights {
  packed_operand<T> logits, gradient;
};

/// The linear layer z = x w^T + bias in front of a loss, by its input. linear_layer{x, w, bias} deduces T from x.
template <element T>
struct linear_layer {
  matrix_view<const T> x{}, w{};  ///< [rows, hidden], [vocab, hidden]
  std::span<const T> bias{};      ///< [vocab], or without memory: none
  packed_weights<T> packed{};     ///< of w, for losses that are called often with the same w; the results are the same
};
template <class X>
linear_layer(matrix_view<X>, in_matrix<std::remove_const_t<X>>, std::span<const std::remove_const_t<X>> = {},
             packed_weights<std::remove_const_t<X>> = {}) -> linear_layer<std::remove_const_t<X>>;

/// Where the gradients of a linear layer go; one without memory is not computed.
template <element T>
struct linear_gradients {
  matrix_view<T> dx{}, dw{};            ///< [rows, hidden], [vocab, hidden]
  std::span<T> dbias{};                 ///< [vocab]
  gradient mode = gradient::overwrite;  ///< of dw and dbias
  constexpr bool any() const { return dx.data != nullptr || dw.data != nullptr || dbias.data() != nullptr; }
};
template <class T>
linear_gradients(matrix_view<T>, std::type_identity_t<matrix_view<T>> = {}, std::type_identity_t<std::span<T>> = {},
                 gradient = {}) -> linear_gradients<T>;

/// The same of an earlier call, to be read.
template <element T>
struct saved_gradients {
  matrix_view<const T> dx{}, dw{};
  std::span<const T> dbias{};
};
template <class X>
saved_gradients(matrix_view<X>, in_matrix<std::remove_const_t<X>> = {}, std::span<const std::remove_const_t<X>> = {})
    -> saved_gradients<std::remove_const_t<X>>;

}  // namespace TIGON_ABI

namespace detail {
inline namespace TIGON_ABI {

/// Shapes of a layer and of its gradients, and that what is written shares no memory with anything of the call; `more`
/// are names and views of what else the call reads.
template <element T, class... More>
void expect_linear(const expects& expect, const linear_layer<T>& layer, const linear_gradients<T>& out, More... more) {
  const auto bias = as_row(layer.bias);
  const auto dbias = as_row(out.dbias);
  expect.at_least_one("vocab", layer.w.rows);
  expect.memory("x", layer.x);
  expect.matrix("w", layer.w, layer.w.rows, layer.x.cols);
  if (bias.data != nullptr) expect.size("bias", bias.cols, layer.w.rows);
  if (out.dx.data != nullptr) expect.matrix("dx", out.dx, layer.x.rows, layer.x.cols);
  if (out.dw.data != nullptr) expect.matrix("dw", out.dw, layer.w.rows, layer.w.cols);
  if (dbias.data != nullptr) expect.size("dbias", dbias.cols, layer.w.rows);
  const auto apart = [&](std::string_view written, auto gradient, auto... others) {
    expect.outside(written, gradient, "x", layer.x, "w", layer.w, "bias", bias, more..., others...);
  };
  apart("dx", out.dx, "dw", out.dw, "dbias", dbias);
  apart("dw", out.dw, "dbias", dbias);
  apart("dbias", dbias);
}

/// That packed weights, where they are given, are those of this layer and for the products of B.
template <class B, element T>
void expect_packed(std::string_view op, const linear_layer<T>& layer) {
  using K = kernel_for<op::gemm, B>;
  const auto check = [&](std::string_view name, const packed_operand<T>& p, std::size_t k, std::size_t n,
                         std::string_view layout) {
    if (p.data == nullptr) return;
    if (p.rows != k || p.cols != n)
      fail_argument(error_code::shape, op, name, "packed from " + shape_text(p.rows, p.cols), shape_text(k, n));
    if (p.layout != layout)
      fail_argument(error_code::state, op, name, "packed as \"" + std::string(p.layout) + '"',
                    '"' + std::string(layout) + '"');
  };
  check("packed.logits", layer.packed.logits, layer.w.cols, layer.w.rows, K::template layout<T, T>);
  check("packed.gradient", layer.packed.gradient, layer.w.rows, layer.w.cols, K::template layout<accumulator_t<T>, T>);
}

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_PARTS_LINEAR_LAYER_HPP
