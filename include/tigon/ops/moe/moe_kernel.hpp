// The generic kernel of moe.
#ifndef TIGON_OPS_MOE_MOE_KERNEL_HPP
#define TIGON_OPS_MOE_MOE_KERNEL_HPP

#include <tigon/gemm/kernel.hpp>
#include <tigon/ops/gate/swiglu_kernel.hpp>
#include <tigon/ops/moe/moe_options.hpp>
#include <tigon/ops/moe/moe_routing_kernel.hpp>
#include <tigon/ops/moe/weight_gradients.hpp>

namespace tigon {

template <>
struct kernel<op::moe, backends::generic> {
  template <class T>
  using saved = moe_saved<T>;

  /// Whether x has the type of the sums.
  template <class T>
  static constexpr bool wide = std::same_as<T, accumulator_t<T>>;

  /// Leaves g and u in `to_save`, or nothing if that has no memory.
  template <backend B, element T, element W, token_id I, element R, class Gate>
  static void forward(in_matrix<T> x, moe_choices<I, R> choices, moe_weights<const W> w, matrix_view<T> y,
                      matrix_view<T> to_save, const moe_options_for<Gate>& opt, context& ctx) {
    using A = accumulator_t<T>;
    using rows = row_backend<B>;
    const moe_shape s{x.rows, choices.indices.cols, w.experts, x.cols, w.down.cols};
    workspace::frame frame(ctx.workspace());
    const detail::moe_pairs pairs = sorted<B, A, I>(choices.indices, s, frame, ctx);
    const auto planes = detail::moe_planes<T>::in(frame, moe_pass::forward, s, pairs.most);
    const matrix_view<A> sum = sum_of<A>(frame, y);
    detail::clear_matrix<rows>(sum, ctx);
    for (std::size_t e = 0; e < s.experts; ++e) {
      const auto weights = detail::expert<const W>::of(w, e, s, opt.layout);
      workspace::frame of_expert(ctx.workspace());
      const auto biases = detail::expert_biases<A>::template of<rows>(of_expert, weights, ctx);
      pairs.for_chunks(e, [&](detail::moe_chunk c) {
        const auto p = planes.first(c.rows);
        forward_chunk<B, T, W>(x, c, p, weights, biases, to_save, gate_of<rows, T>(opt), ctx);
        kernel_for<op::moe_scatter, rows>::template forward<rows, A>(p.out, c, choices.weights, sum, ctx);
      });
    }
    if constexpr (!wide<T>) copy<rows>(sum, y, ctx);
  }

  /// Makes g and u anew if `values` has no memory.
  template <backend B, element T, element W, element G, token_id I, element R, class Gate>
  static void backward(in_matrix<T> dy, in_matrix<T> x, moe_choices<I, R> choices, moe_weights<const W> w,
                       in_matrix<T> values, moe_gradients<T, G, R> to, const moe_options_for<Gate>& opt, context& ctx) {
    using A = accumulator_t<T>;
    using rows = row_backend<B>;
    const moe_shape s{x.rows, choices.indices.cols, w.experts, x.cols, w.down.cols};
    workspace::frame frame(ctx.workspace());
    const detail::moe_pairs pairs = sorted<B, A, I>(choices.indices, s, frame, ctx);
    const auto planes = detail::moe_planes<T>::in(frame, moe_pass::backward, s, pairs.most);
    const matrix_view<A> sum = sum_of<A>(frame, to.dx);
    const bool dx = sum.data != nullptr;
    if (dx) detail::clear_matrix<rows>(sum, ctx);
    const detail::moe_operands<T, R> operands{dy, x, values, choices.weights, to.dweights, dx};
    for (std::size_t e = 0; e < s.experts; ++e) {
      const auto weights = detail::expert<const W>::of(w, e, s, opt.layout);
      workspace::frame of_expert(ctx.workspace());
      const auto biases = detail::expert_biases<A>::template of<rows>(of_expert, weights, ctx);
      detail::expert_gradients<B, T, G> dw(of_expert, gradients_of(to, e, s, opt.layout), pairs.chunks(e),
                                           opt.dw == gradient::accumulate);
      pairs.for_chunks(e, [&](detail::moe_chunk c) {
        const auto p = planes.first(c.rows);
        backward_chunk<B, T, W>(operands, c, p, weights, biases, dw, gate_of<rows, T>(opt), ctx);
        if (dx)
          kernel_for<op::moe_scatter, rows>::template forward<rows, A>(p.out, c, matrix_view<const R>{}, sum, ctx);
      });
      dw.finish(ctx);
    }
    if constexpr (!wide<T>)
      if (dx) copy<rows>(sum, to.dx, ctx);
  }

  /// p.out: what the pairs of a chunk add to y, without their weights. Leaves g and u in `to_save` if that has memory.
  template <backend B, element T, element W, class Gate>
  static void forward_chunk(matrix_view<const T> x, detail::moe_chunk c, detail::moe_planes<T> p,
                            const detail::expert<const W>& w, const detail::expert_biases<accumulator_t<T>>& biases,
                            matrix_view<T> to_save, const Gate& gate, context& ctx) {
    using rows = row_backend<B>;
    const bool keep = to_save.data != nullptr;
    kernel_for<op::moe_gather, rows>::template forward<rows, T>(x, c, p.x, ctx);
    if constexpr (wide<T>)
      if (keep) p.gate = c.gate_of(to_save), p.up = c.up_of(to_save);
    project<B, T, W>(p, w, biases, ctx);
    gate.with(ctx, [&](const auto& of) { of.forward(p.gate, p.up, p.act); });
    if constexpr (!wide<T>) {
      if (keep) copy<rows>(p.gate, c.gate_of(to_save), ctx), copy<rows>(p.up, c.up_of(to_save), ctx);
      copy<rows>(p.act, p.act_T, ctx);
    }
    product<B, T>(p.activated(), w.down, p.out, {.b = transpose::yes}, ctx, biases.down);
  }

  /// p.out: what the pairs of a chunk add to dx, if that is wanted; and all else that a chunk has a share of.
  template <backend B, element T, element W, element G, element R, class Gate>
  static void backward_chunk(const detail::moe_operands<T, R>& from, detail::moe_chunk c,
                             const detail::moe_planes<T>& p, const detail::expert<const W>& w,
                             const detail::expert_biases<accumulator_t<T>>& biases,
                             detail::expert_gradients<B, T, G>& dw, const Gate& gate, context& ctx) {
    using A = accumulator_t<T>;
    using rows = row_backend<B>;
    using scatter = kernel_for<op::moe_scatter, rows>;
    const bool again = from.values.data == nullptr, before_gate = from.dx || dw.any_before_gate();
    kernel_for<op::moe_gather, rows>::template forward<rows, T>(from.dy, c, p.dy, ctx);
    if (dw.gate || again) kernel_for<op::moe_gather, rows>::template forward<rows, T>(from.x, c, p.x, ctx);
    if (again)
      project_again<B, T, W>(p, w, biases, ctx);
    else
      copy<rows>(c.gate_of(from.values), p.gate, ctx), copy<rows>(c.up_of(from.values), p.up, ctx);
    gate.with(ctx, [&](const auto& of) { of.forward(p.gate, p.up, p.act); });
    if (before_gate || from.dweights.data != nullptr) {
      product<B, T>(p.dy, w.down, p.dact, {}, ctx);
      workspace::frame frame(ctx.workspace());
      A* const of_bias = biases.down && from.dweights.data != nullptr ? frame.template take<A>(c.rows) : nullptr;
      if (of_bias != nullptr) detail::dot_with_bias<rows, T, A>(p.dy, biases.down, of_bias, ctx);
      scatter::template backward<rows, T>(p.dact, p.act, p.activated(), c, from.weights, from.dweights, of_bias, ctx);
    } else {
      scatter::template backward<rows, T>(p.act, p.activated(), c, from.weights, ctx);
    }
    dw.down.add_product(p.dy, p.activated(), ctx);
    dw.biases.template add_down<T>(p.dy, c, from.weights, ctx);
    if (!before_gate) return;
    gate.with(ctx, [&](const auto& of) { of.backward(p.dact, p.gate, p.up); });
    dw.biases.add_gate_up(p.gate, p.up, ctx);
    if constexpr (!wide<T>) copy<rows>(p.gate, p.gate_T, ctx), copy<rows>(p.up, p.up_T, ctx);
    dw.gate.add_product(p.dgate(), p.x, ctx), dw.up.add_product(p.dup(), p.x, ctx);
    if (!from.dx) return;
    product<B, T>(p.dgate(), w.gate, p.out, {}, ctx);
    product<B, T>(p.dup(), w.up, p.out, {.beta = 1}, ctx);
  }

  /// g and u of the gathered x.
  template <backend B, element T, element W>
  static void project(const detail::moe_planes<T>& p, const detail::expert<const W>& w,
                      const detail::expert_biases<accumulator_t<T>>& biases, context& ctx) {
    product<B, T>(p.x, w.gate, p.gate, {.b = transpose::yes}, ctx, biases.gate);
    product<B, T>(p.x, w.up, p.up, {.b = transpose::yes}, ctx, biases.up);
  }
  /// The same, rounded as if they had been saved.
  template <backend B, element T, element W>
  static void project_again(const detail::moe_planes<T>& p, const detail::expert<const W>& w,
                            const detail::expert_biases<accumulator_t<T>>& biases, context& ctx) {
    project<B, T, W>(p, w, biases, ctx);
    if constexpr (!wide<T>)
      detail::round_plane<row_backend<B>, T>(p.gate, ctx), detail::round_plane<row_backend<B>, T>(p.up, ctx);
  }
  template <class rows, element T, class Gate>
  static detail::mlp_gate_kernel<rows, T, Gate> gate_of(const moe_options_for<Gate>& opt) {
    return {opt.gate};
  }
  /// Views of the gradients of an expert.
  template <class T, class G, class R>
  static detail::expert<G> gradients_of(const moe_gradients<T, G, R>& to, std::size_t index, moe_shape s,
                                        gate_layout layout) {
    return detail::expert<G>::of({to.dgate_up, to.ddown, s.experts, to.dgate_up_bias, to.ddown_bias}, index, s, layout);
  }

  /// Widens or rounds.
  template <class rows, class From, element To>
  static void copy(matrix_view<From> from, matrix_view<To> to, context& ctx) {
    using E = std::remove_const_t<From>;
    detail::round_sums<rows, accumulator_t<To>, To, E>(to, from, false, ctx);
  }

  template <backend B, element T, class W, element A>
  static void product(matrix_view<const T> a, matrix_view<const W> b, matrix_view<A> c, gemm_options opt, context& ctx,
                      std::type_identity_t<in_vector<A>> bias = {}) {
    kernel_for<op::gemm, B>::template forward<B, T, W, A>(a, {b}, bias, c, no_epilogue{}, opt, ctx);
  }

  /// Where what the choices of a token add to y is summed: y itself where it has the type of the sums.
  template <element A, element T>
  static matrix_view<A> sum_of(workspace::frame& frame, matrix_view<T> y) {
    if constexpr (wide<T>)
      return y;
    else
      return y.data == nullptr ? matrix_view<A>{} : matrix_view<A>(frame.take<A>(y.rows * y.cols), y.rows, y.cols);
  }

  /// The pairs in the order of their experts.
  template <backend B, class A, token_id I>
  static detail::moe_pairs sorted(matrix_view<const I> indices, moe_shape s, workspace::frame& frame, context& ctx) {
    const std::size_t pairs = s.tokens * s.choices;
    const std::span offsets(frame.template take<std::int64_t>(s.experts + 1), s.experts + 1);
    const std::span scatter(frame.template take<std::int64_t>(pairs), pairs);
    const moe_order<std::int64_t> order{
        .counts = {}, .offsets = offsets, .gather = {}, .scatter = scatter, .positions = {}};
    kernel_for<op::moe_routing, B>::template forward<B, I, std::int64_t>(indices, s.experts, order, ctx);
    return {offsets.data(), scatter.data(), s, detail::chunk_rows<B, A>(s)};
  }

  template <backend B, element T, element W, element G>
  static std::size_t workspace_bytes(moe_pass pass, moe_shape s, std::size_t workers, parameters of, bool biases) {
    using A = accumulator_t<T>;
    const std::size_t most = detail::chunk_rows<B, A>(s);
    std::size_t bytes = chunk_bytes<B, T, W, G>(pass, s, most, workers, of, biases);
    if constexpr (!wide<T>) bytes += workspace::bytes_for<A>(s.tokens, s.hidden);
    return detail::moe_pairs::bytes(s) + std::max(bytes, moe_routing_workspace(s.experts));
  }

  /// Of planes and of products: the most that a chunk of any size takes.
  template <backend B, element T, element W, element G>
  static std::size_t chunk_bytes(moe_pass pass, moe_shape s, std::size_t most, std::size_t workers, parameters of,
                                 bool biases) {
    using A = accumulator_t<T>;
    using gradient_of = detail::moe_weight_gradient<B, T, G>;
    using bias_gradients = detail::expert_bias_gradients<row_backend<B>, A, G>;
    const std::size_t n = s.intermediate, h = s.hidden, pairs = workspace::product(s.tokens, s.choices);
    const bool trains = detail::trains(of) && (pass == moe_pass::backward || pass == moe_pass::recompute);
    std::size_t products = 0;
    for (std::size_t m = 1; m <= most; ++m) {
      products = std::max(
          {products, gemm_workspace<B, T, W, A>(m, n, h, workers), gemm_workspace<B, T, W, A>(m, h, n, workers)});
      if (trains)
        products = std::max(
            {products, gradient_of::product_bytes(n, h, m, workers), gradient_of::product_bytes(h, n, m, workers)});
      if (trains && biases) products = std::max(products, bias_gradients::column_bytes(s, m));
    }
    const std::size_t chunks = most != 0 ? gemm_detail::ceil_div(pairs, most) : 0;
    std::size_t sums = trains && most != 0 ? 3 * gradient_of::bytes(s, chunks) : 0;
    if (biases) sums += detail::expert_biases<A>::bytes(s) + workspace::bytes_for<A>(most);
    if (trains && biases) sums += bias_gradients::bytes(s, chunks);
    return detail::moe_planes<T>::bytes(pass, s, most) + products + sums;
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_MOE_MOE_KERNEL_HPP
