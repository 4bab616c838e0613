// The generic kernel of mlp.
#ifndef TIGON_OPS_MLP_MLP_KERNEL_HPP
#define TIGON_OPS_MLP_MLP_KERNEL_HPP

#include <tigon/gemm/kernel.hpp>
#include <tigon/ops/mlp/gate_of_options.hpp>
#include <tigon/ops/mlp/mlp_options.hpp>
#include <tigon/ops/mlp/sum_blocks.hpp>
#include <tigon/rows/matrices.hpp>

#include <algorithm>
#include <utility>

namespace tigon {

template <>
struct kernel<op::mlp, backends::generic> {
  template <class T>
  using saved = mlp_saved<T>;

  /// Leaves a, g and u in `to_save`, or nothing if that has no memory.
  template <backend B, element T, element W, class Options>
  static void forward(in_matrix<T> x, mlp_weights<const W> w, matrix_view<T> y, matrix_view<T> to_save,
                      const Options& opt, context& ctx) {
    using of_backend = kernel_for<op::mlp, B>;  // which may have parts of its own
    const std::size_t n = gemm_detail::rows_of(w.gate, opt.weights);
    const gemm_options down{.alpha = opt.down_multiplier, .b = !opt.weights};
    workspace::frame frame(ctx.workspace());
    const auto biases = detail::mlp_biases<T>::template of<row_backend<B>>(frame, w, opt, ctx);
    if (to_save.data != nullptr) {
      const auto to = detail::mlp_values<T>::of(to_save);
      of_backend::template activate<B>(x, w, biases, to, opt, ctx);
      product<B>(to.a, w.down, y, down, ctx, biases.down);
      return;
    }
    const std::size_t chunk = detail::inference_rows<B, T>(x.rows, n);
    T* memory = frame.template take<T>(chunk * n);
    for (std::size_t begin = 0; begin < x.rows; begin += chunk) {
      const matrix_view<T> a(memory, std::min(chunk, x.rows - begin), n);
      of_backend::template activate<B>(x.rows_from(begin, a.rows), w, biases, detail::mlp_values<T>{a, {}, {}}, opt,
                                       ctx);
      product<B>(a, w.down, y.rows_from(begin, a.rows), down, ctx, biases.down);
    }
  }

  /// Computes a, g and u again if `saved_values` has no memory; overwrites them otherwise.
  template <backend B, element T, element W, element G, class Options>
  static void backward(in_matrix<T> dy, in_matrix<T> x, mlp_weights<const W> w, matrix_view<T> saved_values,
                       matrix_view<T> dx, mlp_weights<G> dw, const Options& opt, context& ctx) {
    using of_backend = kernel_for<op::mlp, B>;  // which may have parts of its own
    const std::size_t n = gemm_detail::rows_of(w.gate, opt.weights);
    workspace::frame frame(ctx.workspace());
    const bool recompute = saved_values.data == nullptr;
    if (recompute) saved_values = {frame.template take_before<T>(x.rows * 3 * n), x.rows, 3 * n};
    const auto values = detail::mlp_values<T>::of(saved_values);
    if (recompute) {
      workspace::frame of_biases(ctx.workspace());
      const auto biases = detail::mlp_biases<T>::template of<row_backend<B>>(of_biases, w, opt, ctx);
      of_backend::template activate<B>(x, w, biases, values, opt, ctx);
    }

    // dw = out^T in, or its transpose.
    const auto weight_gradient = [&](matrix_view<const T> out, matrix_view<const T> in, matrix_view<G> to,
                                     double alpha) {
      if (to.data == nullptr) return;
      if (opt.weights == transpose::yes) std::swap(out, in);
      product<B>(out, in, to, {.alpha = alpha, .beta = opt.dw == gradient::accumulate ? 1.0 : 0.0, .a = transpose::yes},
                 ctx);
    };
    const auto bias_gradient = [&](matrix_view<const T> out, std::span<G> to, double alpha) {
      using A = accumulator_t<T>;
      if (to.data() != nullptr)
        map_rows<row_backend<B>>(ctx, detail::multiple_sum_program<A>{static_cast<A>(alpha)}, reads(out), writes(),
                                 adds_to(parameter_gradient<G>{{to.data(), to.size()}, opt.dw}));
    };
    weight_gradient(dy, values.a, dw.down, opt.down_multiplier);
    bias_gradient(dy, dw.down_bias, opt.down_multiplier);
    mlp_weights<G> before = dw;  // of the gate
    before.down = {}, before.down_bias = {};
    if (dx.data == nullptr && !before.any()) return;
    of_backend::template differentiate<B>(dy, w.down, values, opt, ctx);  // g and u become dg and du; a is gone
    weight_gradient(values.g, x, dw.gate, opt.gate_multiplier);
    weight_gradient(values.u, x, dw.up, 1);
    bias_gradient(values.g, dw.gate_bias, opt.gate_multiplier);
    bias_gradient(values.u, dw.up_bias, 1);
    if (dx.data != nullptr) join<B>(values, w, dx, opt, ctx);
  }

  /// g, u and a of x. Sums that are stored as they are go where they belong; others are made a block at a time.
  template <backend B, element T, element W, class Options>
  static void activate(matrix_view<const T> x, mlp_weights<const W> w, detail::mlp_biases<T> b,
                       detail::mlp_values<T> to, const Options& opt, context& ctx) {
    const detail::mlp_gate_kernel<row_backend<B>, T, decltype(opt.gate)> gates{opt.gate};
    using A = accumulator_t<T>;
    constexpr bool wide = std::same_as<T, A>;
    const bool keep = to.g.data != nullptr, whole = wide && keep;
    const transpose t = !opt.weights;
    const std::size_t rows = x.rows, cols = to.a.cols;
    const detail::mlp_block most =
        whole ? detail::mlp_block{0, 0, rows, cols} : detail::largest_block<B, A>(rows, cols);
    workspace::frame frame(ctx.workspace());
    A* gate_sums = whole ? nullptr : frame.template take<A>(most.rows * most.cols);
    A* up_sums = wide ? nullptr : frame.template take<A>(most.rows * most.cols);
    detail::for_blocks(rows, cols, most, [&](detail::mlp_block at) {
      matrix_view<A> gate(gate_sums, at.rows, at.cols), up(up_sums, at.rows, at.cols);
      if constexpr (wide) {
        if (keep) gate = at.of(to.g);
        up = at.of(keep ? to.u : to.a);
      }
      const matrix_view<const T> part = x.rows_from(at.row, at.rows);
      product<B>(part, detail::columns_of(w.gate, t, at), gate, {.alpha = opt.gate_multiplier, .b = t}, ctx,
                 detail::part_of_bias(b.gate, at.col, at.cols));
      const auto gated = [&](matrix_view<A> u, std::size_t row, std::size_t col, context& own) {
        const detail::mlp_block here{row, col, u.rows, u.cols}, there = here.at(at.row, at.col);
        detail::mlp_values<T> part_of{there.of(to.a), {}, {}};
        if (keep) part_of.g = there.of(to.g), part_of.u = there.of(to.u);
        gates.with(own, [&](const auto& of) { of.forward(here.of(gate), u, part_of); });
      };
      product_then<B>(part, detail::columns_of(w.up, t, at), up, {.b = t}, ctx, gated,
                      detail::part_of_bias(b.up, at.col, at.cols));
    });
  }

  /// g and u become dg and du. p is written over a where the sums have the type of a, otherwise a block at a time.
  template <backend B, element T, element W, class Options>
  static void differentiate(matrix_view<const T> dy, matrix_view<const W> down, detail::mlp_values<T> values,
                            const Options& opt, context& ctx) {
    const detail::mlp_gate_kernel<row_backend<B>, T, decltype(opt.gate)> gates{opt.gate};
    using A = accumulator_t<T>;
    constexpr bool wide = std::same_as<T, A>;
    const std::size_t rows = dy.rows, cols = values.a.cols;
    const detail::mlp_block most = wide ? detail::mlp_block{0, 0, rows, cols} : detail::largest_block<B, A>(rows, cols);
    workspace::frame frame(ctx.workspace());
    constexpr std::size_t planes = planes_of_gradient<B, T>;
    A* sums[3] = {};
    for (std::size_t k = 0; k < planes; ++k) sums[k] = frame.template take<A>(most.rows * most.cols);
    detail::for_blocks(rows, cols, most, [&](detail::mlp_block at) {
      matrix_view<A> all(sums[0], at.rows, at.cols);
      if constexpr (wide) all = values.a;
      product_then<B>(
          dy.rows_from(at.row, at.rows), detail::columns_of(down, opt.weights, at), all,
          {.alpha = opt.down_multiplier, .b = opt.weights}, ctx,
          [&](matrix_view<A> p, std::size_t row, std::size_t col, context& own) {
            const detail::mlp_block here{row, col, p.rows, p.cols}, there = here.at(at.row, at.col);
            detail::mlp_values<A> of_part{};
            if constexpr (planes == 3)
              of_part.g = here.of(matrix_view<A>(sums[1], at.rows, at.cols)),
              of_part.u = here.of(matrix_view<A>(sums[2], at.rows, at.cols));
            gates.with(own, [&](const auto& of) { of.backward(p, there.of(values.g), there.of(values.u), of_part); });
          });
    });
  }

  /// Blocks of sums that it takes.
  template <backend B, element T>
  static constexpr std::size_t planes_of_gradient = std::same_as<T, accumulator_t<T>>            ? 0
                                                    : detail::gates_are_programs<row_backend<B>> ? 1
                                                                                                 : 3;

  /// dx of dg and du: one sum of two products.
  template <backend B, element T, element W, class Options>
  static void join(detail::mlp_values<T> d, mlp_weights<const W> w, matrix_view<T> dx, const Options& opt,
                   context& ctx) {
    using A = accumulator_t<T>;
    const gemm_options first{.alpha = opt.gate_multiplier, .b = opt.weights}, second{.beta = 1, .b = opt.weights};
    if constexpr (std::same_as<T, A>) {
      product<B>(d.g, w.gate, dx, first, ctx);
      product<B>(d.u, w.up, dx, second, ctx);
    } else {
      const detail::mlp_block most = detail::largest_block<B, A>(dx.rows, dx.cols);
      workspace::frame frame(ctx.workspace());
      A* sums = frame.template take<A>(most.rows * most.cols);
      detail::for_blocks(dx.rows, dx.cols, most, [&](detail::mlp_block at) {
        const matrix_view<A> sum(sums, at.rows, at.cols);
        product<B>(d.g.rows_from(at.row, at.rows), detail::columns_of(w.gate, opt.weights, at), sum, first, ctx);
        product_then<B>(d.u.rows_from(at.row, at.rows), detail::columns_of(w.up, opt.weights, at), sum, second, ctx,
                        [&](matrix_view<A> part, std::size_t row, std::size_t col, context& own) {
                          const detail::mlp_block there{at.row + row, at.col + col, part.rows, part.cols};
                          detail::convert_matrix<row_backend<B>>(part, there.of(dx), own);
                        });
      });
    }
  }

  template <backend B, class TA, class TB, element TC, class Epilogue = no_epilogue>
  static void product(matrix_view<TA> a, matrix_view<TB> b, matrix_view<TC> c, gemm_options opt, context& ctx,
                      std::type_identity_t<in_vector<TC>> bias = {}, const Epilogue& epilogue = {}) {
    kernel_for<op::gemm, B>::template forward<B, std::remove_const_t<TA>, std::remove_const_t<TB>, TC>(
        a, {b}, bias, c, epilogue, opt, ctx);
  }
  /// The same, and then(part, its first row, its first column, context) for every part of c while it is in the cache;
  /// where c is in memory that the host does not read, for all of it.
  template <backend B, class TA, class TB, element TC, class Then>
  static void product_then(matrix_view<TA> a, matrix_view<TB> b, matrix_view<TC> c, gemm_options opt, context& ctx,
                           const Then& then, std::type_identity_t<in_vector<TC>> bias = {}) {
    if constexpr (host_memory<B>) {
      product<B>(a, b, c, opt, ctx, bias, [&](matrix_view<TC> part, std::size_t row, std::size_t col, std::size_t) {
        workspace nothing;
        context own(serial(), nothing);
        then(part, row, col, own);
      });
    } else {
      product<B>(a, b, c, opt, ctx, bias);
      then(c, 0, 0, ctx);
    }
  }

  /// Bytes that a pass takes.
  template <backend B, element T, element W, element G>
  static std::size_t workspace_bytes(mlp_pass pass, std::size_t tokens, std::size_t hidden, std::size_t n,
                                     std::size_t workers, parameters of, bool biases) {
    using A = accumulator_t<T>;
    using R = row_backend<B>;
    const std::size_t of_biases = biases ? detail::mlp_biases<T>::bytes(hidden, n) : 0;
    const auto product_bytes = [=]<class C>(std::type_identity<C>, std::size_t rows, std::size_t cols, std::size_t k) {
      return gemm_workspace<B, T, W, C>(rows, cols, k, workers);
    };
    // Products of blocks, and as many blocks of sums; the last block may be smaller and want more.
    const auto blocks_bytes = [=](std::size_t rows, std::size_t cols, std::size_t k, std::size_t planes) {
      constexpr std::type_identity<A> sums;
      if (planes == 0) return product_bytes(sums, rows, cols, k);
      const detail::mlp_block most = detail::largest_block<B, A>(rows, cols);
      std::size_t bytes = 0;
      for (const std::size_t r : {most.rows, rows == 0 ? 0 : (rows - 1) % most.rows + 1})
        for (const std::size_t c : {most.cols, cols == 0 ? 0 : (cols - 1) % most.cols + 1})
          bytes = std::max(bytes, product_bytes(sums, r, c, k));
      return bytes + planes * workspace::bytes_for<A>(most.rows, most.cols);
    };
    constexpr bool wide = std::same_as<T, A>;
    const auto forward_bytes = [=](std::size_t rows, bool keep) {
      return of_biases + std::max(blocks_bytes(rows, n, hidden, wide ? !keep : 2),
                                  product_bytes(std::type_identity<T>{}, rows, hidden, n));
    };
    if (pass == mlp_pass::forward) return forward_bytes(tokens, true);
    if (pass == mlp_pass::inference) {
      const std::size_t chunk = detail::inference_rows<B, T>(tokens, n);
      const std::size_t last = tokens == 0 ? 0 : (tokens - 1) % chunk + 1;
      return workspace::bytes_for<T>(chunk, n) + std::max(forward_bytes(chunk, false), forward_bytes(last, false));
    }
    std::size_t bytes =
        std::max(blocks_bytes(tokens, n, hidden, planes_of_gradient<B, T>), blocks_bytes(tokens, hidden, n, !wide));
    if (detail::trains(of))
      bytes = std::max({bytes, gemm_workspace<B, T, T, G>(hidden, n, tokens, workers),
                        gemm_workspace<B, T, T, G>(n, hidden, tokens, workers)});
    if (detail::trains(of) && biases)
      bytes = std::max(
          {bytes, simd::partials_workspace<R, A>(tokens, n, 1), simd::partials_workspace<R, A>(tokens, hidden, 1)});
    if (pass == mlp_pass::backward) return bytes;
    const std::size_t values = workspace::bytes_before<T>(tokens, 3, n);
    return values + std::max({bytes, forward_bytes(tokens, true), values == 0 ? 0 : workspace::alignment});
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_MLP_MLP_KERNEL_HPP
