// The tag, options, operands and checks of mlp.
#ifndef TIGON_OPS_MLP_MLP_OPTIONS_HPP
#define TIGON_OPS_MLP_MLP_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/gemm/contract.hpp>

namespace tigon {

/// The activation of the gate.
enum class mlp_gate {
  swiglu,  ///< act(g) = g * sigmoid(g)
  geglu,   ///< act(g) = gelu(g), the tanh form
};

namespace op {
struct mlp {
  static constexpr std::string_view name = "mlp";
};
}  // namespace op

/// The contract is in ops/mlp.hpp.
template <class Gate = mlp_gate>
struct mlp_options_for {
  Gate gate = {};  ///< mlp_gate, swiglu_options or geglu_options
  double gate_multiplier = 1;
  double down_multiplier = 1;
  transpose weights = transpose::no;  ///< yes: wg, wu are [hidden, intermediate], wd [intermediate, hidden]
  gradient dw = gradient::overwrite;  ///< of the gradients of weights and biases
};
using mlp_options = mlp_options_for<>;

/// mlp_weights{wg, wu, wd}, with biases mlp_weights{wg, wu, wd, bg, bu, bd}, or with the names of the fields. Of
/// gradients: those without memory are not computed.
template <class E>
struct mlp_weights {
  matrix_view<E> gate, up, down;
  std::span<E> gate_bias = {}, up_bias = {}, down_bias = {};

  constexpr TIGON_INLINE bool any() const {
    return gate.data != nullptr || up.data != nullptr || down.data != nullptr || any_bias();
  }
  constexpr TIGON_INLINE bool any_bias() const {
    return gate_bias.data() != nullptr || up_bias.data() != nullptr || down_bias.data() != nullptr;
  }
  constexpr TIGON_INLINE operator mlp_weights<const E>() const
    requires(!std::is_const_v<E>)
  {
    return {gate, up, down, gate_bias, up_bias, down_bias};
  }
};
template <class E>
mlp_weights(matrix_view<E>, std::type_identity_t<matrix_view<E>>, std::type_identity_t<matrix_view<E>>)
    -> mlp_weights<E>;
template <class E>
mlp_weights(matrix_view<E>, std::type_identity_t<matrix_view<E>>, std::type_identity_t<matrix_view<E>>,
            std::type_identity_t<std::span<E>>, std::type_identity_t<std::span<E>>, std::type_identity_t<std::span<E>>)
    -> mlp_weights<E>;

/// What forward leaves for backward, in memory of the caller: a, g and u of a token side by side.
template <class T>
struct mlp_saved {
  matrix_view<T> memory;  ///< [tokens, 3 * intermediate]
  bool filled = false;    ///< by forward, until backward used it
};

/// The calls, for mlp_workspace.
enum class mlp_pass { forward, inference, backward, recompute };

namespace detail {
inline namespace TIGON_ABI {
/// The gate of an MLP on the rows of a backend (ops/mlp/gate_of_options.hpp).
template <class R, element T, class Gate>
struct mlp_gate_kernel;

/// Declares x and the weights, which fit together; returns the intermediate extent.
template <class T, class W, class Gate>
std::size_t declare_mlp(arguments& args, matrix_view<const T> x, mlp_weights<const W> w,
                        const mlp_options_for<Gate>& opt) {
  const std::size_t hidden = x.cols, n = gemm_detail::rows_of(w.gate, opt.weights);
  const bool transposed = opt.weights == transpose::yes;
  args.in("x", x);
  args.in("wg", w.gate, transposed ? hidden : n, transposed ? n : hidden);
  args.in("wu", w.up, transposed ? hidden : n, transposed ? n : hidden);
  args.in("wd", w.down, transposed ? n : hidden, transposed ? hidden : n);
  args.optional_in("bg", w.gate_bias, n);
  args.optional_in("bu", w.up_bias, n);
  args.optional_in("bd", w.down_bias, hidden);
  args.finite<accumulator_t<T>>("gate_multiplier", opt.gate_multiplier);
  args.finite<accumulator_t<T>>("down_multiplier", opt.down_multiplier);
  return n;
}
/// Declares the gradients and what they are made of; `saved` may be null.
template <class T, class W, class G, class Gate>
std::size_t declare_mlp_backward(arguments& args, matrix_view<const T> dy, matrix_view<const T> x,
                                 mlp_weights<const W> w, const mlp_saved<T>* saved, matrix_view<T> dx,
                                 mlp_weights<G> dw, const mlp_options_for<Gate>& opt) {
  const std::size_t n = declare_mlp(args, x, w, opt);
  args.in("dy", dy, x.rows, x.cols);
  if (saved != nullptr) args.out("saved", saved->memory, x.rows, 3 * n);
  args.optional_out("dx", dx, x.rows, x.cols).may_be("dy", "x");
  args.optional_out("dwg", dw.gate, w.gate.rows, w.gate.cols);
  args.optional_out("dwu", dw.up, w.up.rows, w.up.cols);
  args.optional_out("dwd", dw.down, w.down.rows, w.down.cols);
  args.optional_out("dbg", dw.gate_bias, n);
  args.optional_out("dbu", dw.up_bias, n);
  args.optional_out("dbd", dw.down_bias, x.cols);
  return n;
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that a call takes on `workers` workers: ctx.executor().workers(). T is the type of x, W of the
/// weights, G of their gradients. Backward with gradients of weights, or without any;
/// `biases`: with any bias or its gradient.
template <class B = default_backend, element T, element W = T, element G = W>
std::size_t mlp_workspace(mlp_pass pass, std::size_t tokens, std::size_t hidden, std::size_t intermediate,
                          std::size_t workers = 1, parameters of = parameters::trained, bool biases = false) {
  return kernel_for<op::mlp, B>::template workspace_bytes<B, T, W, G>(pass, tokens, hidden, intermediate, workers, of,
                                                                      biases);
}

}  // namespace tigon

#endif  // TIGON_OPS_MLP_MLP_OPTIONS_HPP
