// Cross entropy of a linear layer's output: products and cross entropy as the backend has them, tiles for the rest.
#ifndef TIGON_BACKENDS_ASCEND_FUSED_LINEAR_CROSS_ENTROPY_HPP
#define TIGON_BACKENDS_ASCEND_FUSED_LINEAR_CROSS_ENTROPY_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/cross_entropy.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/rows/matrices.hpp>

namespace tigon {

template <>
struct kernel<op::fused_linear_cross_entropy, backends::ascend> {
  template <class>
  using saved = no_state;

  /// Everything in one pass over the rows, by chunks of as many as the door has reserved memory for.
  template <backend B, layer_types T, token_id I>
  static void forward(detail::linear_loss<T> t, std::span<const I> target, const accumulator_t<T>* class_weight,
                      cross_entropy_rows out, cross_entropy_scale scale, fused_linear_cross_entropy_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::fused_linear_cross_entropy, tiling::pass::forward, A>;
    using tiles = ub::on_tiles<B, op::fused_linear_cross_entropy, tiling::pass::forward>;
    const linear_layer<T>& head = t.head;
    const linear_gradients<T>& to = t.out;
    const std::size_t rows = head.x.rows, hidden = head.x.cols, vocab = head.w.rows;
    const std::size_t chunk = detail::cross_entropy_chunk<B, A>(rows, hidden, vocab, ctx);
    const bool add = to.mode == gradient::accumulate;
    constexpr bool wide = std::same_as<weight_gradient_t<T>, A>;
    if (rows == 0) return detail::clear_parameters<B>(to, ctx);

    workspace::frame frame(ctx.workspace());
    A* logits = frame.template take<A>(chunk * vocab);
    const vector_view<A> bias{head.bias.data() != nullptr ? frame.template take<A>(vocab) : nullptr, vocab};
    if (head.bias.data() != nullptr) detail::convert_matrix<tiles>(as_row(head.bias), as_row(bias), ctx);
    // Sums over the chunks: dw itself where it is wide enough, db always apart because it is short.
    using chunk_sums = detail::chunk_sums<B, A>;
    const std::size_t chunks = ub::ceil_div(rows, chunk);
    chunk_sums dw, dbias;
    if (to.dw.data != nullptr) {
      dw = chunk_sums(frame, vocab * hidden, chunks, wide);
      if constexpr (wide)
        dw.begin(vocab, hidden, to.dw, add);
      else
        dw.begin(vocab, hidden, {}, add);
    }
    if (to.dbias.data() != nullptr) {
      dbias = chunk_sums(frame, vocab, chunks, false);
      dbias.begin(1, vocab, {}, add);
    }
    out.token_scaling = opt.token_scaling;

    for (std::size_t begin = 0; begin < rows; begin += chunk) {
      const std::size_t n = std::min(chunk, rows - begin);
      const matrix_view<A> z(logits, n, vocab);
      const auto x = head.x.rows_from(begin, n);
      detail::linear_product<B>(x, head.w, head.packed.logits, z, in_vector<A>(bias), {.b = transpose::yes}, ctx);
      const cross_entropy_rows part{out.loss + begin, out.z_loss + begin,
                                    out.predicted == nullptr ? nullptr : out.predicted + begin, out.token_scaling};
      kernel_for<op::cross_entropy, B>::template forward<B, A, I>(
          z, target.subspan(begin, n), class_weight, to.any() ? z : matrix_view<A>{}, part, scale, opt.loss, ctx);
      if (!to.any()) continue;
      if (t.upstream) {
        const bool common = t.upstream.size == 1;
        ub::multiply_rows<plan>(ctx, matrix_view<const A>(z),
                                in_vector<A>{t.upstream.data + (common ? 0 : begin), common ? 1 : n}, z,
                                plan::cut_of(vocab));
      }
      if (to.dx.data != nullptr) {
        detail::linear_product<B>(z, head.w, head.packed.gradient, to.dx.rows_from(begin, n), in_vector<input_t<T>>{},
                                  {}, ctx);
        detail::clear_rows_without_share(z, to.dx.rows_from(begin, n));
      }
      if (dw) {
        const auto [sum, more] = dw.next(ctx);
        detail::share_product<B, A, input_t<T>>(z, x, sum, {.beta = more ? 1.0 : 0.0, .a = transpose::yes}, ctx);
      }
      if (dbias) {
        const auto [sum_row, more] = dbias.next(ctx);
        detail::sum_columns<tiles>(z, vector_view<A>{sum_row.data, vocab},
                                   more ? gradient::accumulate : gradient::overwrite, ctx);
      }
    }
    if (dw) dw.finish(to.dw, add, ctx);
    if (dbias) dbias.finish(as_row(to.dbias), add, ctx);
  }

  /// The gradients alone, recomputed.
  template <backend B, layer_types T, token_id I>
  static void backward(detail::linear_loss<T> t, std::span<const I> target, const accumulator_t<T>* class_weight,
                       cross_entropy_rows out, cross_entropy_scale scale, fused_linear_cross_entropy_options opt,
                       context& ctx) {
    forward<B, T, I>(t, target, class_weight, out, scale, opt, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_FUSED_LINEAR_CROSS_ENTROPY_HPP
