// Mixture of experts over ranks: tokens are sent to the ranks of the chosen experts, and the results are sent back.
#ifndef TIGON_OPS_EXPERT_PARALLEL_MOE_HPP
#define TIGON_OPS_EXPERT_PARALLEL_MOE_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/moe/expert_parallel_moe_kernel.hpp>

namespace tigon {

/// moe where every rank has tokens and experts of its own: of R ranks with `experts` each, rank r has experts [r
/// experts, (r + 1) experts) of R experts in all, whose indices the choices of all ranks name. y and dx of the own
/// tokens, gradients of weights and biases of the own experts, sums over the tokens of all ranks.
///
/// Formula    docs/formulas/moe.md. Rows of x (and dy) are gathered from all ranks; what the pairs of an expert add to
///            y or dx comes back in rounds, a chunk of every rank at a time. Backward makes g and u again from x.
/// Shapes     as moe, of this rank's tokens and experts; tokens, k, experts, hidden and intermediate are equal on all
///            ranks.
/// Types      as moe, the same on all ranks. So is the gate, with its options.
/// Precision  as moe.
/// Order      as moe: for any number of ranks that share the experts alike, the bits of moe on the tokens of all ranks
///            one behind the other, with all experts.
/// Options    backward takes those of forward.
/// Writes     as moe. Which of dx and dweights are computed is the same on all ranks.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     x (and dy) and the choices of all ranks; a row of sums for every pair of the own tokens; a chunk as moe,
///            and that of every rank. See expert_parallel_moe_workspace.
/// Threads    the same bits for any number of them.
/// Throws     tigon::error: as moe, the same on all ranks, whichever of them found it; and state where ranks differ in
///            what has to be equal; before the first write.
/// Max error  as moe, and its bits (tests/ops/expert_parallel_moe_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), up(3 * 2 * 8 * 16, 0.1f), down(3 * 16 * 8, 0.1f), weights(4 * 2, 0.5f), y(x);
/// std::vector<float> dx(x), dup(up), ddown(down), dweights(weights);
/// const std::vector<std::int32_t> experts{0, 2, 2, 1, 0, 1, 1, 2};
/// const auto rows = [](auto& v, std::size_t cols) { return tigon::matrix_view(v.data(), v.size() / cols, cols); };
/// const tigon::moe_choices choices{rows(experts, 2), rows(weights, 2)};
/// const tigon::moe_weights w{rows(up, 16), rows(down, 8), 3};  // three experts
/// const tigon::moe_gradients gradients{rows(dx, 16), rows(dup, 16), rows(ddown, 8), rows(dweights, 2)};
/// const tigon::comm::serial ranks;
/// tigon::expert_parallel_moe_forward(ranks, rows(x, 16), choices, w, rows(y, 16));
/// tigon::expert_parallel_moe_backward(ranks, rows(y, 16), rows(x, 16), choices, w, gradients);  // dy = y
/// ```
template <class Gate>
using expert_parallel_moe_options_for = moe_options_for<Gate>;

/// Bytes of workspace that expert_parallel_moe_forward (pass inference) and expert_parallel_moe_backward (pass
/// recompute) take on one of so many ranks, for its tokens and experts, which are trained or frozen; `biases`: with
/// any bias or its gradient. I is the type of the indices.
template <class B = default_backend, element T, element W = T, element G = W, token_id I = std::int64_t>
std::size_t expert_parallel_moe_workspace(moe_pass pass, moe_shape shape, std::size_t ranks, std::size_t workers = 1,
                                          parameters of = parameters::trained, bool biases = false) {
  return kernel_for<op::expert_parallel_moe, B>::template workspace_bytes<B, T, W, G, I>(pass, shape, ranks, workers,
                                                                                         of, biases);
}

/// y of this rank's tokens. All ranks call it together. See expert_parallel_moe_options for the contract.
template <class B = default_backend, class T, class I, class R, class W, class Gate = mlp_gate>
void expert_parallel_moe_forward(communicator_ref comm, in_matrix<T> x, moe_choices<I, R> choices, moe_weights<W> w,
                                 matrix_view<T> y, expert_parallel_moe_options_for<Gate> opt = {},
                                 context& ctx = default_context<B>()) {
  using E = gemm_detail::bare<W>;
  static_assert(detail::admits_moe<B, T, E, T, I, R>());
  constexpr std::string_view name = "expert_parallel_moe_forward";
  const moe_shape s{x.rows, choices.indices.cols, w.experts, x.cols, w.down.cols};
  const auto record = detail::moe_record_of<B, T, R, E, E, I>(s, comm.size(), opt.gate);
  const auto ranks = comm::agree(comm, record, [&] {
    comm::expect_place(name, comm, host_memory<B>, nullptr);
    arguments args(name);
    detail::declare_moe<T, E>(args, x, choices, w);
    args.out("y", y, s.tokens, s.hidden);
    args.check();
    detail::mlp_gate_kernel<B, T, Gate>::check(args, opt.gate);
    detail::expect_experts<I>(name, choices.indices, comm.size() * s.experts);
    ctx.workspace().expect(
        name, expert_parallel_moe_workspace<B, T, E, E, I>(
                  moe_pass::inference, s, comm.size(), ctx.executor().workers(), parameters::trained, w.any_bias()));
  });
  detail::expect_alike(name, ranks);
  kernel_for<op::expert_parallel_moe, B>::template forward<B, T, E, I, R>(comm, x, choices, w, y, opt, ctx);
}

/// The gradients of this rank's tokens and experts. All ranks call it together. See expert_parallel_moe_options
/// for the contract.
template <class B = default_backend, class T, class I, class R, class W, class G, class Gate = mlp_gate>
void expert_parallel_moe_backward(communicator_ref comm, in_matrix<T> dy, in_matrix<T> x, moe_choices<I, R> choices,
                                  moe_weights<W> w, moe_gradients<T, G, R> to,
                                  expert_parallel_moe_options_for<Gate> opt = {}, context& ctx = default_context<B>()) {
  using E = gemm_detail::bare<W>;
  static_assert(detail::admits_moe<B, T, E, G, I, R>());
  constexpr std::string_view name = "expert_parallel_moe_backward";
  const moe_shape s{x.rows, choices.indices.cols, w.experts, x.cols, w.down.cols};
  const auto record = detail::moe_record_of<B, T, R, E, G, I>(s, comm.size(), opt.gate)
                          .with(to.dx.data != nullptr, to.dweights.data != nullptr);
  const auto ranks = comm::agree(comm, record, [&] {
    comm::expect_place(name, comm, host_memory<B>, nullptr);
    arguments args(name);
    detail::declare_moe<T, E>(args, x, choices, w);
    detail::declare_moe_gradients<T, E>(args, dy, w, s, to);
    args.check();
    detail::mlp_gate_kernel<B, T, Gate>::check(args, opt.gate);
    detail::expect_experts<I>(name, choices.indices, comm.size() * s.experts);
    ctx.workspace().expect(name, expert_parallel_moe_workspace<B, T, E, G, I>(moe_pass::recompute, s, comm.size(),
                                                                              ctx.executor().workers(), to.of_weights(),
                                                                              w.any_bias() || to.any_bias()));
  });
  detail::expect_alike(name, ranks);
  kernel_for<op::expert_parallel_moe, B>::template backward<B, T, E, G, I, R>(comm, dy, x, choices, w, to, opt, ctx);
}

TIGON_EXPLAINS(expert_parallel_moe_forward)
TIGON_EXPLAINS(expert_parallel_moe_backward)

}  // namespace tigon

#include <tigon/ops/geglu.hpp>   // the public functions beside these, for callers
#include <tigon/ops/moe.hpp>     // the public functions beside these, for callers
#include <tigon/ops/swiglu.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_EXPERT_PARALLEL_MOE_HPP
