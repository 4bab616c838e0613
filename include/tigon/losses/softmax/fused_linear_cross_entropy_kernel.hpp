// The generic kernel of fused_linear_cross_entropy.
#ifndef TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_CROSS_ENTROPY_KERNEL_HPP
#define TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_CROSS_ENTROPY_KERNEL_HPP

#include <tigon/losses/linear/tiled_linear.hpp>
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>
#include <tigon/losses/softmax/fused_linear_cross_entropy_options.hpp>
#include <tigon/losses/softmax/tiled_cross_entropy.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// Whether this header makes the tiles of a backend; a kernel of a backend's own takes whole rows of logits.
template <class B>
inline constexpr bool tiled_backend =
    B::chunk.rule == chunk_rule::stream && runs_kernel_of<op::fused_linear_cross_entropy, B, backends::generic>;

/// Rows of a chunk or a tile.
template <class B, class A>
std::size_t cross_entropy_chunk(std::size_t rows, std::size_t hidden, std::size_t vocab, const context& ctx) {
  return chunk_rows<A>(B::chunk, rows, hidden, vocab, ctx, 1);
}
/// The same of the rows that count.
template <class B, layer_types T>
kept_chunk cross_entropy_chunk(const linear_loss<T>& t, const context& ctx) {
  const std::size_t rows = t.head.x.rows, hidden = t.head.x.cols, vocab = t.head.w.rows;
  return chunk_of<T>(t.kept, cross_entropy_chunk<B, accumulator_t<T>>(rows, hidden, vocab, ctx), rows,
                     bytes_of_row<T>(hidden, vocab), t.out.dx.data != nullptr);
}
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_cross_entropy, backends::generic> {
  template <class>
  using saved = no_state;

  /// Everything in one pass over the rows that count.
  template <backend B, layer_types T, token_id I>
  static void forward(detail::linear_loss<T> t, std::span<const I> target, const accumulator_t<T>* class_weight,
                      cross_entropy_rows out, cross_entropy_scale scale, fused_linear_cross_entropy_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t vocab = t.head.w.rows;
    out.token_scaling = opt.token_scaling;
    if constexpr (detail::tiled_backend<B> && !detail::is_in_f64<T>)
      if (detail::streams<B>(vocab)) {
        const auto tiles = [&]<bool Capped, bool Weighted>() {
          forward_tiles<B, Capped, Weighted, T, I>(t, target, class_weight, out, scale, opt.loss, ctx);
        };
        if (opt.loss.softcap > 0) return tiles.template operator()<true, true>();
        if (opt.loss.label_smoothing > 0) return tiles.template operator()<false, true>();
        return tiles.template operator()<false, false>();
      }
    const detail::kept_chunk chunk = detail::cross_entropy_chunk<B, T>(t, ctx);
    workspace::frame frame(ctx.workspace());
    A* logits = frame.template take<A>(chunk.rows * vocab);
    detail::kept_linear<B, T> layer(frame, t.head, t.out, t.kept, chunk, t.out.dx, ctx);
    detail::for_chunks(t.kept.n, chunk.rows, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, vocab);
      layer.logits(begin, z);
      const cross_entropy_rows part{out.loss + begin, out.z_loss + begin,
                                    out.predicted == nullptr ? nullptr : out.predicted + begin, out.token_scaling};
      kernel_for<op::cross_entropy, row_backend<B>>::template forward<row_backend<B>, A, I>(
          z, target.subspan(begin, n), class_weight, t.out.any() ? z : matrix_view<A>{}, part, scale, opt.loss, ctx);
      if (!t.out.any()) return;
      if (t.upstream) multiply_rows<row_backend<B>>(z, t.upstream, begin, ctx);
      layer.backward(begin, z);
    });
    layer.finish();
  }

  /// The same by tiles: the reductions of all rows first, and then the gradients, from logits that are computed again.
  template <backend B, bool Capped, bool Weighted, layer_types T, token_id I>
  static void forward_tiles(const detail::linear_loss<T>& t, std::span<const I> target,
                            const accumulator_t<T>* class_weight, cross_entropy_rows out, cross_entropy_scale scale,
                            const cross_entropy_options& opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t rows = t.kept.n, vocab = t.head.w.rows;
    if (rows == 0) {
      detail::clear_other_rows<B>(t.out.dx, t.kept, ctx);
      return detail::clear_parameters<row_backend<B>>(t.out, ctx);
    }
    workspace::frame frame(ctx.workspace());
    const std::size_t tile = detail::cross_entropy_chunk<B, A>(t.head.x.rows, t.head.x.cols, vocab, ctx);
    detail::tiled_layer<B, T> layer(
        frame, t.head, t.out, t.kept,
        detail::chunk_of<T>(t.kept, tile, t.head.x.rows, detail::bytes_of_tile_row<B, T>(t.head.x.cols), false), ctx);
    detail::tiled_cross_entropy<row_backend<B>, Capped, Weighted, I, A> loss(detail::tiled_rows<A>(frame, rows), target,
                                                                             class_weight, out, scale, opt, vocab, ctx);
    layer.for_each([&](std::size_t begin, std::size_t first, matrix_view<A> z) {
      if (begin == 0) loss.columns(first, z.cols);
      loss.reduce(begin, z);
    });
    loss.finish(t.upstream);
    if (!t.out.any()) return;
    layer.for_each([&](std::size_t begin, std::size_t first, matrix_view<A> z) {
      if (begin == 0) loss.columns(first, z.cols);
      loss.gradient(begin, z);
      layer.backward(begin, z);
    });
    layer.finish();
  }

  /// The gradients alone, recomputed: for reduction::none, where the upstream gradient differs from row to row.
  template <backend B, layer_types T, token_id I>
  static void backward(detail::linear_loss<T> t, std::span<const I> target, const accumulator_t<T>* class_weight,
                       cross_entropy_rows out, cross_entropy_scale scale, fused_linear_cross_entropy_options opt,
                       context& ctx) {
    forward<B, T, I>(t, target, class_weight, out, scale, opt, ctx);
  }

  template <backend B, class A>
  static void multiply_rows(matrix_view<A> z, vector_view<const A> upstream, std::size_t begin, context& ctx) {
    const A* g = upstream.data + (upstream.size == 1 ? 0 : begin);
    const std::size_t step = upstream.size == 1 ? 0 : 1;
    for_rows<B, A>(ctx, z.rows, z.cols,
                   [=] TIGON_FN(auto row) { detail::multiply_row<A>(row, z, z, g[row.i * step]); });
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_FUSED_LINEAR_CROSS_ENTROPY_KERNEL_HPP
