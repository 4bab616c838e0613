// Gated MLP: gate, up and down projection as one operator, forward and backward.
#ifndef TIGON_OPS_MLP_HPP
#define TIGON_OPS_MLP_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/mlp/mlp_kernel.hpp>

namespace tigon {

/// The MLP of a transformer: two projections, a gate, a projection back.
///
///   g = gate_multiplier * (x wg^T + bg),   u = x wu^T + bu,   a = act(g) * u,   y = down_multiplier * (a wd^T + bd)
///   p = down_multiplier * dy wd,   dg = p * u * act'(g),   du = p * act(g)
///   dwd = down_multiplier * dy^T a,   dwg = gate_multiplier * dg^T x,   dwu = du^T x
///   dbd = down_multiplier * sum of dy,   dbg = gate_multiplier * sum of dg,   dbu = sum of du      over the tokens
///   dx = gate_multiplier * dg wg + du wu
///
/// The gate, a = act(g) * u, is that of mlp_gate; or with mlp_options_for<swiglu_options> or <geglu_options> that of
/// the operator with all of its options, such as the limit, slope and up_offset of gpt-oss, or the erf form of GELU.
///
/// Formula    docs/formulas/mlp.md; Shazeer, "GLU Variants Improve Transformer", 2020.
/// Shapes     x, y, dy, dx [tokens, hidden]; wg, wu, dwg, dwu [intermediate, hidden]; wd, dwd [hidden, intermediate];
///            all weights and their gradients the other way round with weights = transpose::yes; bg, bu, dbg, dbu
///            [intermediate], bd, dbd [hidden], each bias may be absent, and each gradient; saved [tokens, 3 *
///            intermediate]. Any extent may be 0. Row strides everywhere.
/// Types      x, y, dy, dx and saved one of f32, bf16, f16, f64; wg, wu, wd and biases any one of them, and their
///            gradients any one (f64 only with f64).
/// Precision  every sum, act and its derivative in f32 (f64 for f64). One rounding at g, u, a, dg, du and the outputs;
///            a is made of the sums before g and u are rounded, p is not rounded, dx is one sum. bd times its
///            multiplier is rounded to the type of y. Products are op::gemm of the backend, gates its op::swiglu and
///            op::geglu; round_gate of their options rounds to the type of x. A g, u, a, dg or du beyond 65504 is
///            infinite in f16, and what is made of it is infinite or NaN.
/// Options    backward takes those of forward.
/// Writes     y, saved; dx, dwg, dwu, dwd, dbg, dbu, dbd; a gradient whose view has no memory is not computed: those of
///            frozen weights. Gradients of weights and biases are added to with gradient::accumulate. mlp_backward
///            overwrites saved: one backward for one forward.
/// Aliasing   forward: no overlap. backward: dx may be dy or x. Otherwise no output shares an element with another
///            argument; any layout.
/// Memory     saved; mlp_forward_inference instead an a for as many tokens as fit into B::chunk, mlp_backward_recompute
///            a saved of its own. In 16 bits also at most three blocks of sums, together 3 / 16 of B::chunk; with
///            biases 2 * intermediate + hidden numbers, and sums of their gradients by task. See mlp_workspace.
/// Threads    the same bits for any number of them.
/// Throws     tigon::error: shape, stride, alias, argument (a multiplier outside option_range, and as swiglu), state
///            (saved holds no forward, or backward used it), workspace; before the first write.
/// Max error  f32 8e-6, bf16 3e-2 of |reference| + its root mean square; gradients 8e-6, 5e-2 (tests/ops/mlp_test.cpp,
///            mlp_gates_test.cpp); twice that in 16 bits with round_gate. Where the terms of an element cancel, of the
///            root of the sum of their squares, and up to twice as much (tests/fuzz/mlp.cpp).
///
/// ```cpp
/// std::vector<float> x(8 * 16, 0.5f), wg(32 * 16, 0.1f), wu(wg), wd(wg), y(x.size()), dx(x.size());
/// std::vector<float> dwg(wg.size()), dwu(wg.size()), dwd(wg.size()), memory(8 * 3 * 32);
/// const auto rows = [](auto& v, std::size_t cols) { return tigon::matrix_view(v.data(), v.size() / cols, cols); };
/// const tigon::mlp_weights w{rows(wg, 16), rows(wu, 16), rows(wd, 32)};
/// const tigon::mlp_weights dw{rows(dwg, 16), rows(dwu, 16), rows(dwd, 32)};
/// tigon::mlp_saved<float> saved{rows(memory, 3 * 32)};
/// tigon::mlp_forward(rows(x, 16), w, rows(y, 16), saved);
/// tigon::mlp_backward(rows(y, 16), rows(x, 16), w, saved, rows(dx, 16), dw);  // dy = y
/// ```
template <class Gate>
struct mlp_options_for;

namespace detail {
inline namespace TIGON_ABI {
/// The public functions without and with `saved`.
template <class B, element T, element W, class Gate>
void mlp_forward(std::string_view name, matrix_view<const T> x, mlp_weights<const W> w, matrix_view<T> y,
                 mlp_saved<T>* saved, const mlp_options_for<Gate>& opt, context& ctx) {
  arguments args(name);
  const std::size_t n = declare_mlp(args, x, w, opt);
  args.out("y", y, x.rows, x.cols);
  if (saved != nullptr) args.out("saved", saved->memory, x.rows, 3 * n);
  args.check();
  mlp_gate_kernel<B, T, Gate>::check(args, opt.gate);
  const mlp_pass pass = saved != nullptr ? mlp_pass::forward : mlp_pass::inference;
  ctx.workspace().expect(name, mlp_workspace<B, T, W>(pass, x.rows, x.cols, n, ctx.executor().workers(),
                                                      parameters::trained, w.any_bias()));
  kernel_for<op::mlp, B>::template forward<B, T, W>(x, w, y, saved != nullptr ? saved->memory : matrix_view<T>{}, opt,
                                                    ctx);
  if (saved != nullptr) saved->filled = true;
}

template <class B, element T, element W, element G, class Gate>
void mlp_backward(matrix_view<const T> dy, matrix_view<const T> x, mlp_weights<const W> w, mlp_saved<T>* saved,
                  matrix_view<T> dx, mlp_weights<G> dw, const mlp_options_for<Gate>& opt, context& ctx) {
  const std::string_view name = saved != nullptr ? "mlp_backward" : "mlp_backward_recompute";
  const matrix_view<T> memory = saved != nullptr ? saved->memory : matrix_view<T>{};
  arguments args(name);
  const std::size_t n = declare_mlp_backward<T>(args, dy, x, w, saved, dx, dw, opt);
  args.check();
  mlp_gate_kernel<B, T, Gate>::check(args, opt.gate);
  if (saved != nullptr && !saved->filled)
    fail_argument(error_code::state, name, "saved", "empty, or was used by a backward",
                  "what a forward left, for one backward");
  const mlp_pass pass = saved != nullptr ? mlp_pass::backward : mlp_pass::recompute;
  ctx.workspace().expect(name, mlp_workspace<B, T, W, G>(pass, x.rows, x.cols, n, ctx.executor().workers(),
                                                         trained_if(dw.any()), w.any_bias() || dw.any_bias()));
  if (saved != nullptr) saved->filled = false;
  kernel_for<op::mlp, B>::template backward<B, T, W, G>(dy, x, w, memory, dx, dw, opt, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// y, and in `saved` what mlp_backward needs. See mlp_options for the contract.
template <class B = default_backend, class T, class W, class Gate = mlp_gate>
void mlp_forward(in_matrix<T> x, mlp_weights<W> w, matrix_view<T> y,
                 std::type_identity_t<saved_t<op::mlp, B, T>>& saved, mlp_options_for<Gate> opt = {},
                 context& ctx = default_context<B>()) {
  static_assert(gemm_detail::admits_types<B, T, gemm_detail::bare<W>, T>());
  detail::mlp_forward<B, T, gemm_detail::bare<W>>("mlp_forward", x, w, y, &saved, opt, ctx);
}

/// y alone.
template <class B = default_backend, class T, class W, class Gate = mlp_gate>
void mlp_forward_inference(in_matrix<T> x, mlp_weights<W> w, matrix_view<T> y, mlp_options_for<Gate> opt = {},
                           context& ctx = default_context<B>()) {
  static_assert(gemm_detail::admits_types<B, T, gemm_detail::bare<W>, T>());
  detail::mlp_forward<B, T, gemm_detail::bare<W>>("mlp_forward_inference", x, w, y, nullptr, opt, ctx);
}

/// dx and the gradients of the weights from what mlp_forward left in `saved`, which is used up.
template <class B = default_backend, class T, class W, class G, class Gate = mlp_gate>
void mlp_backward(in_matrix<T> dy, in_matrix<T> x, mlp_weights<W> w,
                  std::type_identity_t<saved_t<op::mlp, B, T>>& saved, matrix_view<T> dx, mlp_weights<G> dw,
                  mlp_options_for<Gate> opt = {}, context& ctx = default_context<B>()) {
  static_assert(gemm_detail::admits_types<B, T, gemm_detail::bare<W>, G>());
  detail::mlp_backward<B, T, gemm_detail::bare<W>, G>(dy, x, w, &saved, dx, dw, opt, ctx);
}

/// The same from x alone: g, u and a are made again, in the workspace.
template <class B = default_backend, class T, class W, class G, class Gate = mlp_gate>
void mlp_backward_recompute(in_matrix<T> dy, in_matrix<T> x, mlp_weights<W> w, matrix_view<T> dx, mlp_weights<G> dw,
                            mlp_options_for<Gate> opt = {}, context& ctx = default_context<B>()) {
  static_assert(gemm_detail::admits_types<B, T, gemm_detail::bare<W>, G>());
  detail::mlp_backward<B, T, gemm_detail::bare<W>, G>(dy, x, w, nullptr, dx, dw, opt, ctx);
}

TIGON_EXPLAINS(mlp_forward)
TIGON_EXPLAINS(mlp_forward_inference)
TIGON_EXPLAINS(mlp_backward)
TIGON_EXPLAINS(mlp_backward_recompute)

}  // namespace tigon

#include <tigon/gemm/gemm.hpp>   // the public functions beside these, for callers
#include <tigon/ops/geglu.hpp>   // the public functions beside these, for callers
#include <tigon/ops/swiglu.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MLP_HPP
