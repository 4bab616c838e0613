// Mixture of experts: gathered tokens, a product for every expert, a gate, and a weighted sum back to the tokens.
#ifndef TIGON_OPS_MOE_HPP
#define TIGON_OPS_MOE_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/moe/moe_kernel.hpp>

namespace tigon {

/// The MLP of a transformer split into experts, of which every token chose k.
///
///   e = indices[t,j],   w = weights[t,j]:                                     for each choice j < k of token t
///   g = x[t] gate[e]^T + bg[e],   u = x[t] up[e]^T + bu[e],   a = silu(g) * u
///   y[t] = sum over j of w * (a down[e]^T + bd[e])
///   p = dy[t] down[e],   dweights[t,j] = p . a + dy[t] . bd[e]
///   dg = w * p * u * silu'(g),   du = w * p * silu(g),   dx[t] = sum over j of dg gate[e] + du up[e]
///   ddown[e] = sum of dy[t]^T (w * a),   dgate[e] = sum of dg^T x[t],   dup[e] = sum of du^T x[t]     over e's choices
///   dbg[e] = sum of dg,   dbu[e] = sum of du,   dbd[e] = sum of w * dy[t]                             over e's choices
///
/// The gate, a = silu(g) * u, is that of mlp_gate; or with moe_options_for<swiglu_options> or <geglu_options> that of
/// the operator with all of its options, such as the limit, slope and up_offset of gpt-oss.
///
/// Formula    docs/formulas/moe.md; Shazeer et al., "Outrageously Large Neural Networks", 2017.
/// Shapes     x, y, dy, dx [tokens, hidden]; indices, weights, dweights [tokens, k]; gate_up, dgate_up [experts * 2 *
///            intermediate, hidden], an expert's rows one after the other: gate, then up, or interleaved, gate first,
///            with gate_layout::interleaved; down, ddown [experts * hidden, intermediate]; gate_up_bias and its
///            gradient, of bg and bu, [experts, 2 * intermediate], a row in the order of the rows of gate_up; down_bias
///            and its gradient, of bd, [experts, hidden]; each bias may be absent, and each gradient; saved [tokens *
///            k, 2 * intermediate]. Any extent but experts may be 0, k may be larger than experts. Row strides
///            everywhere.
/// Types      x, y, dy, dx and saved one of f32, bf16, f16, f64; gate_up, down and biases any one of them, their
///            gradients any one, weights and dweights any one (f64 only with f64); indices std::int32_t or
///            std::int64_t.
/// Precision  every sum and the gate in f32 (f64 for f64). One rounding at saved, a, w * a, dg, du and the outputs;
///            what the choices of a token add to y and dx is not rounded before, nor is what gradients of biases are
///            sums of. One of saved, a, w * a, dg or du beyond 65504 is infinite in f16, and what is made of it is
///            infinite or NaN. Products are op::gemm of the backend, gates its op::swiglu or op::geglu, the order of
///            the pairs its op::moe_routing.
/// Order      y and dx are summed over the choices of a token in the order of the experts, choices of one expert in the
///            order of the token: the order in which a token names its experts changes no bit.
/// Options    backward takes those of forward.
/// Writes     y, saved; dx, dweights, the gradients of weights and biases; a gradient whose view has no memory is not
///            computed. Those of weights and biases, zero for an expert that nobody chose, are added to with
///            gradient::accumulate.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     saved, or nothing: moe_backward_recompute makes the same numbers again, a chunk at a time. A chunk is at
///            most 512 pairs of one expert: copies of their rows of x and dy, and their values, in B::chunk's bytes
///            where it can be. In 16 bits also the sums of y or dx; where an expert may have several chunks and
///            dgate_up has 16 bits, sums of one expert's gradients; of more than 64 chunks (4096 where they are large
///            and in 16 bits) two more. With biases those of an expert, and sums of their gradients. Weights are not
///            copied. See moe_workspace.
/// Threads    the same bits for any number of them.
/// Throws     tigon::error: shape, stride, alias, state (saved holds no forward), workspace, and index (in every build)
///            for an index outside [0, experts), argument as swiglu; before the first write.
/// Max error  f32 8e-6, bf16 3e-2 of |reference| + its root mean square; gradients 8e-6, 5e-2 (tests/ops/moe_test.cpp,
///            moe_gates_test.cpp); twice that in 16 bits with round_gate. Where the terms of an element cancel, of the
///            root of the sum of their squares, and up to twice as much (tests/fuzz/layers.hpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), up(3 * 2 * 8 * 16, 0.1f), down(3 * 16 * 8, 0.1f), weights(4 * 2, 0.5f), y(x);
/// std::vector<float> dx(x), dup(up), ddown(down), dweights(weights), memory(4 * 2 * 2 * 8);
/// const std::vector<std::int32_t> experts{0, 2, 2, 1, 0, 1, 1, 2};
/// const auto rows = [](auto& v, std::size_t cols) { return tigon::matrix_view(v.data(), v.size() / cols, cols); };
/// const tigon::moe_choices choices{rows(experts, 2), rows(weights, 2)};
/// const tigon::moe_weights w{rows(up, 16), rows(down, 8), 3};  // three experts
/// const tigon::moe_gradients gradients{rows(dx, 16), rows(dup, 16), rows(ddown, 8), rows(dweights, 2)};
/// tigon::moe_saved<float> saved{rows(memory, 2 * 8)};
/// tigon::moe_forward(rows(x, 16), choices, w, rows(y, 16), saved);
/// tigon::moe_backward(rows(y, 16), rows(x, 16), choices, w, saved, gradients);  // dy = y
/// ```
template <class Gate>
struct moe_options_for;

/// Bytes of workspace that a call takes on `workers` workers: ctx.executor().workers(), with all gradients, or without
/// those of experts. T is the type of x, W of the weights, G of their gradients; `biases`: with any bias or its
/// gradient.
template <class B = default_backend, element T, element W = T, element G = W>
std::size_t moe_workspace(moe_pass pass, moe_shape shape, std::size_t workers = 1, parameters of = parameters::trained,
                          bool biases = false) {
  return kernel_for<op::moe, B>::template workspace_bytes<B, T, W, G>(pass, shape, workers, of, biases);
}

namespace detail {
inline namespace TIGON_ABI {
/// The public functions without and with `saved`.
template <class B, element T, element W, class I, element R, class Gate>
void moe_forward(std::string_view name, matrix_view<const T> x, const moe_choices<I, R>& c, moe_weights<const W> w,
                 matrix_view<T> y, moe_saved<T>* saved, const moe_options_for<Gate>& opt, context& ctx) {
  arguments args(name);
  const moe_shape s = declare_moe<T, W>(args, x, c, w);
  args.out("y", y, s.tokens, s.hidden);
  if (saved != nullptr) args.out("saved", saved->memory, workspace::product(s.tokens, s.choices), 2 * s.intermediate);
  args.check();
  mlp_gate_kernel<B, T, Gate>::check(args, opt.gate);
  expect_experts<I>(name, c.indices, s.experts);
  const moe_pass pass = saved != nullptr ? moe_pass::forward : moe_pass::inference;
  ctx.workspace().expect(name,
                         moe_workspace<B, T, W>(pass, s, ctx.executor().workers(), parameters::trained, w.any_bias()));
  kernel_for<op::moe, B>::template forward<B, T, W, I, R>(
      x, c, w, y, saved != nullptr ? saved->memory : matrix_view<T>{}, opt, ctx);
  if (saved != nullptr) saved->filled = true;
}

template <class B, element T, element W, element G, class I, element R, class Gate>
void moe_backward(matrix_view<const T> dy, matrix_view<const T> x, const moe_choices<I, R>& c, moe_weights<const W> w,
                  const moe_saved<T>* saved, const moe_gradients<T, G, R>& to, const moe_options_for<Gate>& opt,
                  context& ctx) {
  const std::string_view name = saved != nullptr ? "moe_backward" : "moe_backward_recompute";
  arguments args(name);
  const moe_shape s = declare_moe<T, W>(args, x, c, w);
  if (saved != nullptr) args.in("saved", saved->memory, workspace::product(s.tokens, s.choices), 2 * s.intermediate);
  declare_moe_gradients<T, W>(args, dy, w, s, to);
  args.check();
  mlp_gate_kernel<B, T, Gate>::check(args, opt.gate);
  expect_experts<I>(name, c.indices, s.experts);
  if (saved != nullptr && !saved->filled)
    fail_argument(error_code::state, name, "saved", "empty", "what a forward left");
  const moe_pass pass = saved != nullptr ? moe_pass::backward : moe_pass::recompute;
  ctx.workspace().expect(name, moe_workspace<B, T, W, G>(pass, s, ctx.executor().workers(), to.of_weights(),
                                                         w.any_bias() || to.any_bias()));
  kernel_for<op::moe, B>::template backward<B, T, W, G, I, R>(
      dy, x, c, w, saved != nullptr ? saved->memory : matrix_view<const T>{}, to, opt, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// y, and in `saved` what moe_backward needs. See moe_options for the contract.
template <class B = default_backend, class T, class I, class R, class W, class Gate = mlp_gate>
void moe_forward(in_matrix<T> x, moe_choices<I, R> choices, moe_weights<W> w, matrix_view<T> y,
                 std::type_identity_t<saved_t<op::moe, B, T>>& saved, moe_options_for<Gate> opt = {},
                 context& ctx = default_context<B>()) {
  static_assert(detail::admits_moe<B, T, gemm_detail::bare<W>, T, I, R>());
  detail::moe_forward<B, T, gemm_detail::bare<W>, I, R>("moe_forward", x, choices, w, y, &saved, opt, ctx);
}

/// y alone.
template <class B = default_backend, class T, class I, class R, class W, class Gate = mlp_gate>
void moe_forward_inference(in_matrix<T> x, moe_choices<I, R> choices, moe_weights<W> w, matrix_view<T> y,
                           moe_options_for<Gate> opt = {}, context& ctx = default_context<B>()) {
  static_assert(detail::admits_moe<B, T, gemm_detail::bare<W>, T, I, R>());
  detail::moe_forward<B, T, gemm_detail::bare<W>, I, R>("moe_forward_inference", x, choices, w, y, nullptr, opt, ctx);
}

/// The gradients from what moe_forward left in `saved` for the same x, choices and w.
template <class B = default_backend, class T, class I, class R, class W, class G, class Gate = mlp_gate>
void moe_backward(in_matrix<T> dy, in_matrix<T> x, moe_choices<I, R> choices, moe_weights<W> w,
                  const std::type_identity_t<saved_t<op::moe, B, T>>& saved, moe_gradients<T, G, R> gradients,
                  moe_options_for<Gate> opt = {}, context& ctx = default_context<B>()) {
  static_assert(detail::admits_moe<B, T, gemm_detail::bare<W>, G, I, R>());
  detail::moe_backward<B, T, gemm_detail::bare<W>, G, I, R>(dy, x, choices, w, &saved, gradients, opt, ctx);
}

/// The same bits from x alone: g and u are made again.
template <class B = default_backend, class T, class I, class R, class W, class G, class Gate = mlp_gate>
void moe_backward_recompute(in_matrix<T> dy, in_matrix<T> x, moe_choices<I, R> choices, moe_weights<W> w,
                            moe_gradients<T, G, R> gradients, moe_options_for<Gate> opt = {},
                            context& ctx = default_context<B>()) {
  static_assert(detail::admits_moe<B, T, gemm_detail::bare<W>, G, I, R>());
  detail::moe_backward<B, T, gemm_detail::bare<W>, G, I, R>(dy, x, choices, w, nullptr, gradients, opt, ctx);
}

TIGON_EXPLAINS(moe_forward)
TIGON_EXPLAINS(moe_forward_inference)
TIGON_EXPLAINS(moe_backward)
TIGON_EXPLAINS(moe_backward_recompute)

}  // namespace tigon

#include <tigon/ops/moe_routing.hpp>   // the public functions beside these, for callers
#include <tigon/ops/swiglu.hpp>        // the public functions beside these, for callers
#include <tigon/ops/swiglu_fused.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MOE_HPP
