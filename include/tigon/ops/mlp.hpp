// Gated MLP: gate, up and down projection as one operator, forward and backward.
#ifndef TIGON_OPS_MLP_HPP
#define TIGON_OPS_MLP_HPP

#include <tigon/gemm/kernel.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/mlp_blocks.hpp>
#include <tigon/ops/mlp_contract.hpp>
#include <tigon/ops/swiglu.hpp>
#include <tigon/rows/matrices.hpp>

#include <utility>

namespace tigon {

template <>
struct kernel<op::mlp, backends::generic> {
  template <class T>
  using saved = mlp_saved<T>;

  /// Leaves a, g and u in `to_save`, or nothing if that has no memory.
  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, mlp_weights<const W> w, matrix_view<T> y, matrix_view<T> to_save, mlp_options opt,
                      context& ctx) {
    const std::size_t n = gemm_detail::rows_of(w.gate, opt.weights);
    const gemm_options down{.alpha = opt.down_multiplier, .b = !opt.weights};
    if (to_save.data != nullptr) {
      const auto to = detail::mlp_values<T>::of(to_save);
      activate<B>(x, w, to, opt, ctx);
      product<B>(to.a, w.down, y, down, ctx);
      return;
    }
    const std::size_t chunk = detail::inference_rows<B, T>(x.rows, n);
    workspace::frame frame(ctx.workspace());
    T* memory = frame.template take<T>(chunk * n);
    for (std::size_t begin = 0; begin < x.rows; begin += chunk) {
      const matrix_view<T> a(memory, std::min(chunk, x.rows - begin), n);
      activate<B>(x.rows_from(begin, a.rows), w, detail::mlp_values<T>{a, {}, {}}, opt, ctx);
      product<B>(a, w.down, y.rows_from(begin, a.rows), down, ctx);
    }
  }

  /// Computes a, g and u again if `saved_values` has no memory; overwrites them otherwise.
  template <backend B, element T, element W, element G>
  static void backward(in_matrix<T> dy, in_matrix<T> x, mlp_weights<const W> w, matrix_view<T> saved_values,
                       matrix_view<T> dx, mlp_weights<G> dw, mlp_options opt, context& ctx) {
    const std::size_t n = gemm_detail::rows_of(w.gate, opt.weights);
    workspace::frame frame(ctx.workspace());
    const bool recompute = saved_values.data == nullptr;
    if (recompute) saved_values = {frame.template take_before<T>(x.rows * 3 * n), x.rows, 3 * n};
    const auto values = detail::mlp_values<T>::of(saved_values);
    if (recompute) activate<B>(x, w, values, opt, ctx);

    // dw = out^T in, or its transpose.
    const auto weight_gradient = [&](matrix_view<const T> out, matrix_view<const T> in, matrix_view<G> to,
                                     double alpha) {
      if (to.data == nullptr) return;
      if (opt.weights == transpose::yes) std::swap(out, in);
      product<B>(out, in, to, {.alpha = alpha, .beta = opt.dw == gradient::accumulate ? 1.0 : 0.0, .a = transpose::yes},
                 ctx);
    };
    weight_gradient(dy, values.a, dw.down, opt.down_multiplier);
    if (dx.data == nullptr && dw.gate.data == nullptr && dw.up.data == nullptr) return;
    differentiate<B>(dy, w.down, values, opt, ctx);  // g and u become dg and du; a is gone
    weight_gradient(values.g, x, dw.gate, opt.gate_multiplier);
    weight_gradient(values.u, x, dw.up, 1);
    if (dx.data != nullptr) join<B>(values, w, dx, opt, ctx);
  }

  /// g, u and a of x. Sums that are stored as they are go where they belong; others are made a block at a time.
  template <backend B, element T, element W>
  static void activate(matrix_view<const T> x, mlp_weights<const W> w, detail::mlp_values<T> to, mlp_options opt,
                       context& ctx) {
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
      product<B>(part, detail::columns_of(w.gate, t, at), gate, {.alpha = opt.gate_multiplier, .b = t}, ctx);
      product<B>(part, detail::columns_of(w.up, t, at), up, {.b = t}, ctx,
                 [&](matrix_view<A> u, std::size_t row, std::size_t col, std::size_t) {
                   const detail::mlp_block here{row, col, u.rows, u.cols}, there = here.at(at.row, at.col);
                   const matrix_view<A> g = here.of(gate);
                   workspace nothing;
                   context own(serial(), nothing);
                   if constexpr (wide) {
                     gate_forward<B, A>(g, u, there.of(to.a), opt, own);
                   } else {
                     if (keep) detail::convert_matrix<row_backend<B>>(g, there.of(to.g), own);
                     if (keep) detail::convert_matrix<row_backend<B>>(u, there.of(to.u), own);
                     gate_forward<B, A>(g, u, u, opt, own);
                     detail::convert_matrix<row_backend<B>>(u, there.of(to.a), own);
                   }
                 });
    });
  }

  /// g and u become dg and du. p is written over a where the sums have the type of a, otherwise a block at a time.
  template <backend B, element T, element W>
  static void differentiate(matrix_view<const T> dy, matrix_view<const W> down, detail::mlp_values<T> values,
                            mlp_options opt, context& ctx) {
    using A = accumulator_t<T>;
    constexpr bool wide = std::same_as<T, A>;
    const std::size_t rows = dy.rows, cols = values.a.cols;
    const detail::mlp_block most = wide ? detail::mlp_block{0, 0, rows, cols} : detail::largest_block<B, A>(rows, cols);
    workspace::frame frame(ctx.workspace());
    A* sums[3] = {};
    if (!wide)
      for (A*& plane : sums) plane = frame.template take<A>(most.rows * most.cols);
    detail::for_blocks(rows, cols, most, [&](detail::mlp_block at) {
      matrix_view<A> all(sums[0], at.rows, at.cols);
      if constexpr (wide) all = values.a;
      product<B>(
          dy.rows_from(at.row, at.rows), detail::columns_of(down, opt.weights, at), all,
          {.alpha = opt.down_multiplier, .b = opt.weights}, ctx,
          [&](matrix_view<A> p, std::size_t row, std::size_t col, std::size_t) {
            const detail::mlp_block here{row, col, p.rows, p.cols}, there = here.at(at.row, at.col);
            const matrix_view<T> gate = there.of(values.g), up = there.of(values.u);
            workspace nothing;
            context own(serial(), nothing);
            if constexpr (wide) {
              gate_backward<B, A>(p, gate, up, opt, own);
            } else {
              const auto g = here.of(matrix_view<A>(sums[1], at.rows, at.cols));
              const auto u = here.of(matrix_view<A>(sums[2], at.rows, at.cols));
              detail::convert_matrix<row_backend<B>>(gate, g, own), detail::convert_matrix<row_backend<B>>(up, u, own);
              gate_backward<B, A>(p, g, u, opt, own);
              detail::convert_matrix<row_backend<B>>(g, gate, own), detail::convert_matrix<row_backend<B>>(u, up, own);
            }
          });
    });
  }

  /// dx of dg and du: one sum of two products.
  template <backend B, element T, element W>
  static void join(detail::mlp_values<T> d, mlp_weights<const W> w, matrix_view<T> dx, mlp_options opt, context& ctx) {
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
        product<B>(d.u.rows_from(at.row, at.rows), detail::columns_of(w.up, opt.weights, at), sum, second, ctx,
                   [&](matrix_view<A> part, std::size_t row, std::size_t col, std::size_t) {
                     workspace nothing;
                     context own(serial(), nothing);
                     detail::convert_matrix<row_backend<B>>(
                         part, detail::mlp_block{at.row + row, at.col + col, part.rows, part.cols}.of(dx), own);
                   });
      });
    }
  }

  template <backend B, class TA, class TB, element TC, class Epilogue = no_epilogue>
  static void product(matrix_view<TA> a, matrix_view<TB> b, matrix_view<TC> c, gemm_options opt, context& ctx,
                      const Epilogue& epilogue = {}) {
    kernel_for<op::gemm, B>::template forward<B, std::remove_const_t<TA>, std::remove_const_t<TB>, TC>(
        a, {b}, in_vector<TC>{}, c, epilogue, opt, ctx);
  }

  template <backend B, element A>
  static void gate_forward(in_matrix<A> g, in_matrix<A> u, matrix_view<A> a, mlp_options opt, context& ctx) {
    using R = row_backend<B>;
    if (opt.gate == mlp_gate::swiglu)
      kernel_for<op::swiglu, R>::template forward<R, A>(g, u, a, detail::default_swiglu{}, ctx);
    else
      kernel_for<op::geglu, R>::template forward<R, A>(g, u, a, detail::default_geglu{}, ctx);
  }

  template <backend B, element A>
  static void gate_backward(in_matrix<A> p, matrix_view<A> g, matrix_view<A> u, mlp_options opt, context& ctx) {
    using R = row_backend<B>;
    if (opt.gate == mlp_gate::swiglu)
      kernel_for<op::swiglu, R>::template backward<R, A>(p, g, u, g, u, detail::default_swiglu{}, ctx);
    else
      kernel_for<op::geglu, R>::template backward<R, A>(p, g, u, g, u, detail::default_geglu{}, ctx);
  }

  /// Bytes that a pass takes.
  template <backend B, element T, element W, element G>
  static std::size_t workspace_bytes(mlp_pass pass, std::size_t tokens, std::size_t hidden, std::size_t n,
                                     std::size_t workers) {
    using A = accumulator_t<T>;
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
      return std::max(blocks_bytes(rows, n, hidden, wide ? !keep : 2),
                      product_bytes(std::type_identity<T>{}, rows, hidden, n));
    };
    if (pass == mlp_pass::forward) return forward_bytes(tokens, true);
    if (pass == mlp_pass::inference) {
      const std::size_t chunk = detail::inference_rows<B, T>(tokens, n);
      const std::size_t last = tokens == 0 ? 0 : (tokens - 1) % chunk + 1;
      return workspace::bytes_for<T>(chunk, n) + std::max(forward_bytes(chunk, false), forward_bytes(last, false));
    }
    const std::size_t bytes = std::max(
        {gemm_workspace<B, T, T, G>(hidden, n, tokens, workers), gemm_workspace<B, T, T, G>(n, hidden, tokens, workers),
         blocks_bytes(tokens, n, hidden, wide ? 0 : 3), blocks_bytes(tokens, hidden, n, wide ? 0 : 1)});
    if (pass == mlp_pass::backward) return bytes;
    const std::size_t values = workspace::bytes_before<T>(tokens, 3, n);
    return values + std::max({bytes, forward_bytes(tokens, true), values == 0 ? 0 : workspace::alignment});
  }
};

}  // namespace tigon

#include <tigon/gemm/gemm.hpp>  // the doors beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MLP_HPP
