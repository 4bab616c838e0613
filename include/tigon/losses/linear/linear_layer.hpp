// The arguments that all fused linear losses have: a linear layer, and where its gradients go.
#ifndef TIGON_LOSSES_LINEAR_LINEAR_LAYER_HPP
#define TIGON_LOSSES_LINEAR_LINEAR_LAYER_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/gemm/kernel.hpp>

#include <cstdint>

namespace tigon {

inline namespace TIGON_ABI {

/// The types of a linear layer and its gradients where they are not one: X of x and dx, W of w and bias, G of dw and
/// dbias. Stands where an element type does:
///
///   linear_layer<linear_types<bfloat16, bfloat16, float>> layer{x, w};      // gradients of w in f32
///   linear_layer<linear_types<bfloat16, float>> other{x, w};                // w, dw in f32
template <element X, element W = X, element G = W>
  requires mixes_with<X, W> && mixes_with<X, G> && (!std::same_as<X, double>)
struct linear_types {};

}  // namespace TIGON_ABI

namespace detail {
inline namespace TIGON_ABI {
template <class T>
struct types_of_layer {
  static constexpr bool exist = element<T>;
  using x = T;
  using w = T;
  using dw = T;
};
template <class X, class W, class G>
struct types_of_layer<linear_types<X, W, G>> {
  static constexpr bool exist = true;
  using x = X;
  using w = W;
  using dw = G;
};

/// T, whose logits, their gradient and all sums are f64: as which a call of few rows is computed.
template <class T>
struct in_f64 {};
template <class T>
struct types_of_layer<in_f64<T>> : types_of_layer<T> {};
template <class T>
inline constexpr bool is_in_f64 = false;
template <class T>
inline constexpr bool is_in_f64<in_f64<T>> = true;
}  // namespace TIGON_ABI
}  // namespace detail

template <class T>
inline constexpr bool summed_in_f64<detail::in_f64<T>> = true;

inline namespace TIGON_ABI {

/// What a linear layer may be of: an element type for all of it, or linear_types.
template <class T>
concept layer_types = detail::types_of_layer<T>::exist;
/// The element type of x and dx, of w and bias, of dw and dbias.
template <class T>
using input_t = typename detail::types_of_layer<T>::x;
template <class T>
using weight_t = typename detail::types_of_layer<T>::w;
template <class T>
using weight_gradient_t = typename detail::types_of_layer<T>::dw;

}  // namespace TIGON_ABI

/// As admits for an element type.
template <class B, class T>
  requires(layer_types<T> && !element<T>)
consteval bool admits() {
  return admits<B, input_t<T>>() && admits<B, weight_t<T>>() && admits<B, weight_gradient_t<T>>();
}

inline namespace TIGON_ABI {

/// w of a linear layer as gemm_pack lays it out. Either may be empty.
///   logits    op(b) = w^T, for x of type X:        gemm_pack<B, X>(w, bytes, transpose::yes)
///   gradient  op(b) = w, for the loss's gradient:  gemm_pack<B, accumulator_t<X>>(w, bytes)
template <layer_types T>
struct packed_weights {
  packed_operand<weight_t<T>> logits, gradient;
};

/// The linear layer z = x w^T + bias in front of a loss, by its input. linear_layer{x, w, bias} deduces T from x.
template <layer_types T>
struct linear_layer {
  matrix_view<const input_t<T>> x{};    ///< [rows, hidden]
  matrix_view<const weight_t<T>> w{};   ///< [vocab, hidden]
  std::span<const weight_t<T>> bias{};  ///< [vocab], or without memory: none
  packed_weights<T> packed{};  ///< of w, for losses that are called often with the same w; the results are the same
};
template <class X>
linear_layer(matrix_view<X>, in_matrix<std::remove_const_t<X>>, std::span<const std::remove_const_t<X>> = {},
             packed_weights<std::remove_const_t<X>> = {}) -> linear_layer<std::remove_const_t<X>>;
template <class X, class W, class... R>
  requires(detail::range_of_elements<X> || detail::range_of_elements<W>)
linear_layer(const X&, const W&, const R&...) -> linear_layer<typename detail::ranges_in_place_of_views<X, W>::type>;

/// Where the gradients of a linear layer go; one without memory is not computed.
template <layer_types T>
struct linear_gradients {
  matrix_view<input_t<T>> dx{};             ///< [rows, hidden]
  matrix_view<weight_gradient_t<T>> dw{};   ///< [vocab, hidden]
  std::span<weight_gradient_t<T>> dbias{};  ///< [vocab]
  gradient mode = gradient::overwrite;      ///< of dw and dbias
  constexpr bool any() const { return dx.data != nullptr || detail::trains(of_weights()); }
  /// For the workspace of a call.
  constexpr parameters of_weights() const {
    if (dw.data == nullptr && dbias.data() == nullptr) return parameters::frozen;
    const bool without_gaps = dw.rows <= 1 || dw.row_stride == dw.cols;
    return mode == gradient::overwrite && without_gaps && reinterpret_cast<std::uintptr_t>(dw.data) % 16 == 0
               ? parameters::overwritten
               : parameters::trained;
  }
};
template <class T>
linear_gradients(matrix_view<T>, std::type_identity_t<matrix_view<T>> = {}, std::type_identity_t<std::span<T>> = {},
                 gradient = {}) -> linear_gradients<T>;
template <class X, class W, class... R>
  requires(detail::range_of_elements<X> || detail::range_of_elements<W>)
linear_gradients(const X&, const W&, const R&...)
    -> linear_gradients<typename detail::ranges_in_place_of_views<X, W>::type>;

/// The same of an earlier call, to be read.
template <layer_types T>
struct saved_gradients {
  matrix_view<const input_t<T>> dx{};
  matrix_view<const weight_gradient_t<T>> dw{};
  std::span<const weight_gradient_t<T>> dbias{};
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
template <class B, layer_types T>
void declare_layer(arguments& args, std::string_view op, const linear_layer<T>& layer, std::size_t rows,
                   std::size_t vocab, const layer_names& names = {}) {
  using K = kernel_for<op::gemm, B>;
  args.in(names.x, layer.x, rows, layer.x.cols);
  args.in(names.w, layer.w, vocab, layer.x.cols);
  args.optional_in(names.bias, layer.bias, vocab);
  const auto packed = [&](std::string_view name, const packed_operand<weight_t<T>>& p, std::size_t k, std::size_t n,
                          std::string_view layout) {
    if (p.data == nullptr) return;
    if (p.rows != k || p.cols != n)
      fail_argument(error_code::shape, op, name, "packed from " + shape_text(p.rows, p.cols), shape_text(k, n));
    if (p.layout != layout)
      fail_argument(error_code::state, op, name, "packed as \"" + std::string(p.layout) + '"',
                    '"' + std::string(layout) + '"');
    args.in(name, std::span(p.data, p.bytes));
  };
  packed(names.logits, layer.packed.logits, layer.x.cols, vocab, K::template layout<input_t<T>, weight_t<T>>);
  packed(names.gradient, layer.packed.gradient, vocab, layer.x.cols, K::template layout<accumulator_t<T>, weight_t<T>>);
}
/// The layer of the loss itself, of any shape.
template <class B, layer_types T>
void declare_layer(arguments& args, std::string_view op, const linear_layer<T>& layer) {
  args.at_least_one("vocab", layer.w.rows);
  declare_layer<B>(args, op, layer, layer.x.rows, layer.w.rows);
}

/// Declares the gradients of a layer, after everything that is read.
template <layer_types T>
void declare_gradients(arguments& args, const linear_layer<T>& layer, const linear_gradients<T>& out) {
  args.optional_out("dbias", out.dbias, layer.w.rows);
  args.optional_out("dw", out.dw, layer.w.rows, layer.w.cols);
  args.optional_out("dx", out.dx, layer.x.rows, layer.x.cols);
}

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#endif  // TIGON_LOSSES_LINEAR_LINEAR_LAYER_HPP
