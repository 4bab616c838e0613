// Gated MLP: its contract, its options, and what every provider of it is given. Nothing is computed here.
#ifndef TIGON_OPS_MLP_CONTRACT_HPP
#define TIGON_OPS_MLP_CONTRACT_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/gemm/contract.hpp>

#include <algorithm>

namespace tigon {

/// Which function opens the gate.
enum class mlp_gate {
  swiglu,  ///< act(g) = g * sigmoid(g)
  geglu,   ///< act(g) = gelu(g), the tanh form
};

namespace op {
struct mlp {
  static constexpr std::string_view name = "mlp";
};
}  // namespace op

/// The MLP of a transformer: two projections, a gate, a projection back.
///
///   g = gate_multiplier * x wg^T,   u = x wu^T,   a = act(g) * u,   y = down_multiplier * a wd^T
///   p = down_multiplier * dy wd,   dg = p * u * act'(g),   du = p * act(g)
///   dwd = down_multiplier * dy^T a,   dwg = gate_multiplier * dg^T x,   dwu = du^T x
///   dx = gate_multiplier * dg wg + du wu
///
/// Formula    docs/formulas/mlp.md; Shazeer, "GLU Variants Improve Transformer", 2020.
/// Shapes     x, y, dy, dx [tokens, hidden]; wg, wu, dwg, dwu [intermediate, hidden]; wd, dwd [hidden, intermediate];
///            all weights and their gradients the other way round with weights = transpose::yes; saved [tokens, 3 *
///            intermediate]. Any extent may be 0. Row strides everywhere.
/// Types      x, y, dy, dx and saved one of f32, bf16, f16, f64; wg, wu and wd any one of them, and dwg, dwu and dwd
///            any one (f64 only with f64).
/// Precision  every sum, act and its derivative in f32 (f64 for f64). One rounding at g, u, a, dg, du and the outputs;
///            a is made of the sums before g and u are rounded, p is not rounded, dx is one sum. Products are op::gemm
///            of the backend, gates its op::swiglu and op::geglu.
/// Writes     y, saved; dx, dwg, dwu, dwd; a gradient whose view has no memory is not computed. Gradients of weights
///            are added to with gradient::accumulate. mlp_backward overwrites saved: one backward for one forward.
/// Aliasing   forward: none. backward: dx may be dy or x. Otherwise any layout in which no element is shared.
/// Memory     saved; mlp_forward_inference instead an a for as many tokens as fit into B::chunk, mlp_backward_recompute
///            a saved of its own. In 16 bits also at most three blocks of sums, together 3 / 16 of B::chunk. See
///            mlp_workspace.
/// Threads    the same bits for any number of them.
/// Throws     tigon::error: shape, stride, alias, argument (a multiplier that is not finite), state (saved holds no
///            forward, or backward used it), workspace; before the first write.
/// Max error  f32 8e-6, bf16 3e-2 of |reference| + its root mean square; gradients 8e-6, 5e-2 (tests/ops/mlp_test.cpp).
struct mlp_options {
  mlp_gate gate = mlp_gate::swiglu;
  double gate_multiplier = 1;
  double down_multiplier = 1;
  transpose weights = transpose::no;  ///< yes: wg, wu are [hidden, intermediate], wd [intermediate, hidden]
  gradient dw = gradient::overwrite;  ///< of dwg, dwu and dwd
};

/// mlp_weights{wg, wu, wd}, or with the names of the fields. Of gradients: those without memory are not computed.
template <class E>
struct mlp_weights {
  matrix_view<E> gate, up, down;

  constexpr TIGON_INLINE operator mlp_weights<const E>() const
    requires(!std::is_const_v<E>)
  {
    return {gate, up, down};
  }
};
template <class E>
mlp_weights(matrix_view<E>, std::type_identity_t<matrix_view<E>>, std::type_identity_t<matrix_view<E>>)
    -> mlp_weights<E>;

/// What forward leaves for backward, in memory of the caller: a, g and u of a token side by side.
template <class T>
struct mlp_saved {
  matrix_view<T> memory;  ///< [tokens, 3 * intermediate]
  bool filled = false;    ///< by forward, until backward used it
};

/// The calls whose workspace can be asked for.
enum class mlp_pass { forward, inference, backward, recompute };

namespace detail {
inline namespace TIGON_ABI {

/// Per token and intermediate column; g and u have no memory where nobody needs them.
template <class T>
struct mlp_values {
  matrix_view<T> a, g, u;

  static mlp_values of(matrix_view<T> saved) {
    const std::size_t n = saved.cols / 3;
    return {saved.cols_from(0, n), saved.cols_from(n, n), saved.cols_from(2 * n, n)};
  }
};

struct mlp_block {
  std::size_t row = 0, col = 0, rows = 0, cols = 0;

  template <class T>
  matrix_view<T> of(matrix_view<T> m) const {
    return m.rows_from(row, rows).cols_from(col, cols);
  }
  mlp_block at(std::size_t r, std::size_t c) const { return {row + r, col + c, rows, cols}; }
};

/// Parts of n, of one size, none above `most`.
constexpr std::size_t even_part(std::size_t n, std::size_t most) {
  const std::size_t parts = std::max<std::size_t>(gemm_detail::ceil_div(n, most), 1);
  const std::size_t even = gemm_detail::ceil_div(n, parts);
  return std::min(parts == 1 ? even : gemm_detail::round_up(even, 16), most);
}

/// The sums of rows x cols that exist at a time: a sixteenth of the budget, and as square as it can be, because a
/// product packs both of its operands once a block. Fixed by shape.
template <class B, class A>
constexpr mlp_block largest_block(std::size_t rows, std::size_t cols) {
  const std::size_t most = std::max<std::size_t>(B::chunk.logits_bytes / 16 / sizeof(A), 1);
  std::size_t side = 1;
  while (4 * side * side <= most) side *= 2;
  const std::size_t narrow = std::clamp<std::size_t>(std::min(rows, cols), 1, side), wide = most / narrow;
  return {0, 0, even_part(rows, rows <= cols ? narrow : wide), even_part(cols, rows <= cols ? wide : narrow)};
}

/// f(block) for all blocks of rows x cols.
template <class F>
void for_blocks(std::size_t rows, std::size_t cols, mlp_block most, F f) {
  for (std::size_t i = 0; i < rows; i += most.rows)
    for (std::size_t j = 0; j < cols; j += most.cols)
      f(mlp_block{i, j, std::min(most.rows, rows - i), std::min(most.cols, cols - j)});
}

/// Columns of op(w).
template <class W>
matrix_view<W> columns_of(matrix_view<W> w, transpose t, mlp_block at) {
  return t == transpose::no ? w.cols_from(at.col, at.cols) : w.rows_from(at.col, at.cols);
}

/// Tokens whose a exists at a time in inference.
template <class B, class T>
constexpr std::size_t inference_rows(std::size_t tokens, std::size_t intermediate) {
  const std::size_t bytes = std::max<std::size_t>(intermediate * sizeof(T), 1);
  return even_part(tokens, std::max<std::size_t>(B::chunk.logits_bytes / bytes, 1));
}

/// Declares x and the weights, which fit together; returns the intermediate extent.
template <class T, class W>
std::size_t declare_mlp(arguments& args, matrix_view<const T> x, mlp_weights<const W> w, mlp_options opt) {
  const std::size_t hidden = x.cols, n = gemm_detail::rows_of(w.gate, opt.weights);
  const bool transposed = opt.weights == transpose::yes;
  args.in("x", x);
  args.in("wg", w.gate, transposed ? hidden : n, transposed ? n : hidden);
  args.in("wu", w.up, transposed ? hidden : n, transposed ? n : hidden);
  args.in("wd", w.down, transposed ? n : hidden, transposed ? hidden : n);
  args.finite("gate_multiplier", opt.gate_multiplier);
  args.finite("down_multiplier", opt.down_multiplier);
  return n;
}
/// Declares the gradients and what they are made of; `saved` may be null.
template <class T, class W, class G>
std::size_t declare_mlp_backward(arguments& args, matrix_view<const T> dy, matrix_view<const T> x,
                                 mlp_weights<const W> w, const mlp_saved<T>* saved, matrix_view<T> dx,
                                 mlp_weights<G> dw, mlp_options opt) {
  const std::size_t n = declare_mlp(args, x, w, opt);
  args.in("dy", dy, x.rows, x.cols);
  if (saved != nullptr) args.out("saved", saved->memory, x.rows, 3 * n);
  args.optional_out("dx", dx, x.rows, x.cols).may_be("dy", "x");
  args.optional_out("dwg", dw.gate, w.gate.rows, w.gate.cols);
  args.optional_out("dwu", dw.up, w.up.rows, w.up.cols);
  args.optional_out("dwd", dw.down, w.down.rows, w.down.cols);
  return n;
}

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_MLP_CONTRACT_HPP
