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

  /// Everything in one pass over the rows that count, by chunks of as many as the public function has reserved memory
  /// for.
  template <backend B, layer_types T, token_id I>
  static void forward(detail::linear_loss<T> t, std::span<const I> target, const accumulator_t<T>* class_weight,
                      cross_entropy_rows out, cross_entropy_scale scale, fused_linear_cross_entropy_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::fused_linear_cross_entropy, tiling::pass::forward, A>;
    using tiles = ub::on_tiles<B, op::fused_linear_cross_entropy, tiling::pass::forward>;
    const linear_layer<T>& head = t.head;
    const linear_gradients<T>& to = t.out;
    const std::size_t rows = t.kept.n, hidden = head.x.cols, vocab = head.w.rows;
    const detail::kept_chunk chunk = detail::cross_entropy_chunk<B, T>(t, ctx);
    const bool add = to.mode == gradient::accumulate;
    constexpr bool wide = std::same_as<weight_gradient_t<T>, A>;
    if (rows == 0) {
      detail::put_chosen<B>(to.dx, t.kept, ctx);
      return detail::clear_parameters<B>(to, ctx);
    }

    workspace::frame frame(ctx.workspace());
    A* logits = frame.template take<A>(chunk.rows * vocab);
    const chosen_x<B, T> chosen(frame, t, chunk.rows);
    const vector_view<A> bias{head.bias.data() != nullptr ? frame.template take<A>(vocab) : nullptr, vocab};
    if (head.bias.data() != nullptr) detail::convert_matrix<tiles>(as_row(head.bias), as_row(bias), ctx);
    // Sums over the chunks: dw itself where it is wide enough, db always apart because it is short.
    using chunk_sums = detail::chunk_sums<B, A>;
    const std::size_t chunks = ub::ceil_div(rows, chunk.rows);
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

    for (std::size_t begin = 0; begin < rows; begin += chunk.rows) {
      const std::size_t n = std::min(chunk.rows, rows - begin);
      const matrix_view<A> z(logits, n, vocab);
      const auto x = chosen.of(begin, n, ctx);
      detail::linear_product<B>(x, head.w, head.packed.logits, z, in_vector<A>(bias),
                                {.b = transpose::yes, .cut_as = {.rows = chunk.cut}}, ctx);
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
      if (dw) {
        const auto [sum, more] = dw.next(ctx);
        detail::share_product<B, A, input_t<T>>(
            z, x, sum, {.beta = more ? 1.0 : 0.0, .a = transpose::yes, .cut_as = {.depth = chunk.cut}}, ctx);
      }
      if (dbias) {
        const auto [sum_row, more] = dbias.next(ctx);
        detail::sum_columns<tiles>(z, vector_view<A>{sum_row.data, vocab},
                                   more ? gradient::accumulate : gradient::overwrite, ctx);
      }
      if (to.dx.data == nullptr) continue;
      const auto dx = to.dx.rows_from(begin, n);  // where x may be
      detail::linear_product<B>(z, head.w, head.packed.gradient, dx, in_vector<input_t<T>>{},
                                {.cut_as = {.rows = chunk.cut}}, ctx);
      detail::clear_rows_without_share(z, dx);
    }
    if (dw) dw.finish(to.dw, add, ctx);
    if (dbias) dbias.finish(as_row(to.dbias), add, ctx);
    detail::put_chosen<B>(to.dx, t.kept, ctx);
  }

  /// The gradients alone, recomputed.
  template <backend B, layer_types T, token_id I>
  static void backward(detail::linear_loss<T> t, std::span<const I> target, const accumulator_t<T>* class_weight,
                       cross_entropy_rows out, cross_entropy_scale scale, fused_linear_cross_entropy_options opt,
                       context& ctx) {
    forward<B, T, I>(t, target, class_weight, out, scale, opt, ctx);
  }

 private:
  /// x of a chunk of the rows that count: where it is if all do, else gathered where dx will be, or in the workspace.
  template <class B, layer_types T>
  class chosen_x {
    using X = input_t<T>;

   public:
    chosen_x(workspace::frame& frame, const detail::linear_loss<T>& t, std::size_t chunk)
        : kept_(t.kept), from_(t.head.x), to_(t.out.dx) {
      if (!kept_.all() && to_.data == nullptr) chunk_ = {frame.template take<X>(chunk * from_.cols), chunk, from_.cols};
    }
    matrix_view<const X> of(std::size_t begin, std::size_t n, context& ctx) const {
      if (kept_.all()) return from_.rows_from(begin, n);
      const matrix_view<X> x = to_.data != nullptr ? to_.rows_from(begin, n) : chunk_.rows_from(0, n);
      detail::gather_rows<row_backend<B>, accumulator_t<T>>(from_, kept_.row + begin, x, ctx);
      return x;
    }

   private:
    detail::chosen_rows kept_;
    matrix_view<const X> from_;
    matrix_view<X> to_, chunk_;
  };
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_FUSED_LINEAR_CROSS_ENTROPY_HPP
