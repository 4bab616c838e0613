// The generic kernel of expert_parallel_moe.
#ifndef TIGON_OPS_MOE_EXPERT_PARALLEL_MOE_KERNEL_HPP
#define TIGON_OPS_MOE_EXPERT_PARALLEL_MOE_KERNEL_HPP

#include <tigon/ops/moe/expert_exchange.hpp>
#include <tigon/ops/moe/expert_parallel_moe_options.hpp>
#include <tigon/ops/moe/moe_kernel.hpp>

namespace tigon {

template <>
struct kernel<op::expert_parallel_moe, backends::generic> {
  template <class>
  using saved = no_state;
  using parts = kernel<op::moe, backends::generic>;

  template <backend B, element T, element W, token_id I, element R, class Gate>
  static void forward(communicator_ref comm, in_matrix<T> x, moe_choices<I, R> choices, moe_weights<const W> w,
                      matrix_view<T> y, const moe_options_for<Gate>& opt, context& ctx) {
    using A = accumulator_t<T>;
    using rows = row_backend<B>;
    const moe_shape s{x.rows, choices.indices.cols, w.experts, x.cols, w.down.cols};
    workspace::frame frame(ctx.workspace());
    auto exchange = exchange_of<B, A, I>(comm, choices.indices, s, true, frame, ctx);
    const matrix_view<const T> tokens = detail::gather_ranks<rows, T, T>(comm, x, frame, ctx);
    const detail::moe_pairs pairs = exchange.all();
    const auto planes = detail::moe_planes<T>::in(frame, moe_pass::forward, s, pairs.most);
    const matrix_view<A> sum = parts::template sum_of<A>(frame, y);
    for (std::size_t e = 0; e < s.experts; ++e) {
      const auto weights = detail::expert<const W>::of(w, e, s, opt.layout);
      workspace::frame of_expert(ctx.workspace());
      const auto biases = detail::expert_biases<A>::template of<rows>(of_expert, weights, ctx);
      pairs.for_chunks(exchange.first_expert() + e, [&](detail::moe_chunk c) {
        parts::template forward_chunk<B, T, W>(tokens, c, planes.first(c.rows), weights, biases, matrix_view<T>{},
                                               parts::template gate_of<rows, T>(opt), ctx);
        exchange.round(planes.out, ctx);
      });
    }
    exchange.finish(planes.out, ctx);
    detail::clear_matrix<rows>(sum, ctx);
    exchange.combine(choices.weights, sum, ctx);
    if constexpr (!parts::template wide<T>) parts::template copy<rows>(sum, y, ctx);
  }

  template <backend B, element T, element W, element G, token_id I, element R, class Gate>
  static void backward(communicator_ref comm, in_matrix<T> dy, in_matrix<T> x, moe_choices<I, R> choices,
                       moe_weights<const W> w, moe_gradients<T, G, R> to, const moe_options_for<Gate>& opt,
                       context& ctx) {
    using A = accumulator_t<T>;
    using rows = row_backend<B>;
    const moe_shape s{x.rows, choices.indices.cols, w.experts, x.cols, w.down.cols};
    const bool dx = to.dx.data != nullptr;
    workspace::frame frame(ctx.workspace());
    auto exchange = exchange_of<B, A, I>(comm, choices.indices, s, dx, frame, ctx);
    detail::moe_operands<T, A> operands{detail::gather_ranks<rows, T, T>(comm, dy, frame, ctx),
                                        detail::gather_ranks<rows, T, T>(comm, x, frame, ctx),
                                        {},
                                        detail::gather_ranks<rows, A, R>(comm, choices.weights, frame, ctx),
                                        {},
                                        dx};
    const std::size_t all_tokens = comm.size() * s.tokens;
    if (to.dweights.data != nullptr) operands.dweights = {frame.take<A>(all_tokens * s.choices), all_tokens, s.choices};
    const detail::moe_pairs pairs = exchange.all();
    const auto planes = detail::moe_planes<T>::in(frame, moe_pass::backward, s, pairs.most);
    const matrix_view<A> sum = parts::template sum_of<A>(frame, to.dx);
    for (std::size_t e = 0; e < s.experts; ++e) {
      const auto weights = detail::expert<const W>::of(w, e, s, opt.layout);
      const std::size_t index = exchange.first_expert() + e;
      workspace::frame of_expert(ctx.workspace());
      const auto biases = detail::expert_biases<A>::template of<rows>(of_expert, weights, ctx);
      detail::expert_gradients<B, T, G> dw(of_expert, parts::gradients_of(to, e, s, opt.layout), pairs.chunks(index),
                                           opt.dw == gradient::accumulate);
      pairs.for_chunks(index, [&](detail::moe_chunk c) {
        parts::template backward_chunk<B, T, W>(operands, c, planes.first(c.rows), weights, biases, dw,
                                                parts::template gate_of<rows, T>(opt), ctx);
        exchange.round(planes.out, ctx);
      });
      dw.finish(ctx);
    }
    exchange.finish(planes.out, ctx);
    if (operands.dweights.data != nullptr) own_weights<I, R, A>(comm, operands.dweights, choices.indices, s, to, frame);
    if (!dx) return;
    detail::clear_matrix<rows>(sum, ctx);
    exchange.combine(matrix_view<const R>{}, sum, ctx);
    if constexpr (!parts::template wide<T>) parts::template copy<rows>(sum, to.dx, ctx);
  }

  /// The gradients of the routing weights of this rank's tokens, each from the rank of its expert.
  template <token_id I, element R, element A, class Gradients>
  static void own_weights(communicator_ref comm, matrix_view<A> made, matrix_view<const I> indices, moe_shape s,
                          const Gradients& to, workspace::frame& frame) {
    const std::size_t n = made.rows * made.cols;
    A* all = frame.take<A>(comm.size() * n);
    comm::all_gather<A>(comm, {made.data, n}, std::span(all, comm.size() * n));
    for (std::size_t t = 0; t < s.tokens; ++t)
      for (std::size_t j = 0; j < s.choices; ++j) {
        const std::size_t rank = static_cast<std::size_t>(indices.row(t)[j]) / s.experts;
        to.dweights.row(t)[j] = static_cast<R>(all[rank * n + (comm.rank() * s.tokens + t) * s.choices + j]);
      }
  }

  /// The pairs of all ranks, and of this one's tokens, in the order of all experts.
  template <backend B, class A, token_id I>
  static detail::expert_exchange<row_backend<B>, A> exchange_of(communicator_ref comm, matrix_view<const I> indices,
                                                                moe_shape own, bool sends, workspace::frame& frame,
                                                                context& ctx) {
    moe_shape all = own;
    own.experts = all.experts = comm.size() * own.experts, all.tokens = comm.size() * own.tokens;
    const auto of_all =
        parts::template sorted<B, A, I>(detail::gather_indices<I>(comm, indices, frame), all, frame, ctx);
    const auto of_own = parts::template sorted<B, A, I>(indices, own, frame, ctx);
    const std::size_t pairs = own.tokens * own.choices;
    auto* positions = frame.template take<std::int64_t>(pairs);
    for (std::size_t p = 0; p < pairs; ++p) positions[of_own.scatter[p]] = static_cast<std::int64_t>(p);
    return {comm, of_all, of_own, positions, sends, frame};
  }

  template <backend B, element T, element W, element G, token_id I>
  static std::size_t workspace_bytes(moe_pass pass, moe_shape own, std::size_t ranks, std::size_t workers,
                                     parameters of, bool biases) {
    using A = accumulator_t<T>;
    const bool trains = pass == moe_pass::backward || pass == moe_pass::recompute;
    moe_shape of_own = own, all = own;
    of_own.experts = all.experts = workspace::product(ranks, own.experts);
    all.tokens = workspace::product(ranks, own.tokens);
    const std::size_t most = detail::chunk_rows<B, A>(all), pairs = workspace::product(own.tokens, own.choices);
    std::size_t bytes = detail::gather_ranks_bytes<I>(ranks, own.tokens, own.choices);
    bytes += detail::moe_pairs::bytes(all) + detail::moe_pairs::bytes(of_own);
    bytes += workspace::bytes_for<std::int64_t>(pairs) + moe_routing_workspace(all.experts);
    bytes += detail::expert_exchange<row_backend<B>, A>::bytes(ranks, most, own);
    bytes += (trains ? 2 : 1) * detail::gather_ranks_bytes<T>(ranks, own.tokens, own.hidden);
    if constexpr (!parts::template wide<T>) bytes += workspace::bytes_for<A>(own.tokens, own.hidden);
    if (trains)
      bytes += detail::gather_ranks_bytes<A>(ranks, own.tokens, own.choices) +
               workspace::bytes_for<A>(ranks, own.tokens, own.choices) +
               workspace::bytes_for<A>(ranks, ranks, own.tokens, own.choices);
    return bytes + parts::template chunk_bytes<B, T, W, G>(pass, all, most, workers, of, biases);
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_MOE_EXPERT_PARALLEL_MOE_KERNEL_HPP
