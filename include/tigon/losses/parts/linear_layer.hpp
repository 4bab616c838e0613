// The arguments that all fused linear losses have: a linear layer, and where its gradients go.
#ifndef TIGON_LOSSES_PARTS_LINEAR_LAYER_HPP
#define TIGON_LOSSES_PARTS_LINEAR_LAYER_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/gemm/kernel.hpp>

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

/// What errors call a layer's arguments.
struct layer_names {
  std::string_view x = "x", w = "w", bias = "bias", logits = "packed.logits", gradient = "packed.gradient";
};
inline constexpr layer_names teacher_names{"teacher.x", "teacher.w", "teacher.bias", "teacher.packed.logits",
                                           "teacher.packed.gradient"};
inline constexpr layer_names reference_names{"reference.x", "reference.w", "reference.bias", "reference.packed.logits",
                                             "reference.packed.gradient"};

/// Declares a layer with so many rows and classes. Packed weights, where they are given, are those of this layer and
/// for the products of B.
template <class B, element T>
void declare_layer(arguments& args, std::string_view op, const linear_layer<T>& layer, std::size_t rows,
                   std::size_t vocab, const layer_names& names = {}) {
  using K = kernel_for<op::gemm, B>;
  args.in(names.x, layer.x, rows, layer.x.cols);
  args.in(names.w, layer.w, vocab, layer.x.cols);
  args.optional_in(names.bias, layer.bias, vocab);
  const auto packed = [&](std::string_view name, const packed_operand<T>& p, std::size_t k, std::size_t n,
                          std::string_view layout) {
    if (p.data == nullptr) return;
    if (p.rows != k || p.cols != n)
      fail_argument(error_code::shape, op, name, "packed from " + shape_text(p.rows, p.cols), shape_text(k, n));
    if (p.layout != layout)
      fail_argument(error_code::state, op, name, "packed as \"" + std::string(p.layout) + '"',
                    '"' + std::string(layout) + '"');
    args.in(name, std::span(p.data, p.bytes));
  };
  packed(names.logits, layer.packed.logits, layer.x.cols, vocab, K::template layout<T, T>);
  packed(names.gradient, layer.packed.gradient, vocab, layer.x.cols, K::template layout<accumulator_t<T>, T>);
}
/// The layer of the loss itself, of any shape.
template <class B, element T>
void declare_layer(arguments& args, std::string_view op, const linear_layer<T>& layer) {
  args.at_least_one("vocab", layer.w.rows);
  declare_layer<B>(args, op, layer, layer.x.rows, layer.w.rows);
}

/// Declares the gradients of a layer, after everything that is read.
template <element T>
void declare_gradients(arguments& args, const linear_layer<T>& layer, const linear_gradients<T>& out) {
  args.optional_out("dbias", out.dbias, layer.w.rows);
  args.optional_out("dw", out.dw, layer.w.rows, layer.w.cols);
  args.optional_out("dx", out.dx, layer.x.rows, layer.x.cols);
}

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#endif  // TIGON_LOSSES_PARTS_LINEAR_LAYER_HPP
