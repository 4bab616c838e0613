// Cross entropy of a linear layer's output that never exists as a whole, with all gradients.
#ifndef TIGON_LOSSES_FUSED_LINEAR_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_FUSED_LINEAR_CROSS_ENTROPY_HPP

#include <tigon/losses/parts/cross_entropy_kernel.hpp>
#include <tigon/losses/parts/fused_linear_cross_entropy_contract.hpp>
#include <tigon/losses/parts/tiled_cross_entropy.hpp>
#include <tigon/losses/parts/tiled_linear.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {

/// Whether this header makes the tiles of a backend; a kernel of a backend's own takes whole rows of logits.
template <class B>
inline constexpr bool tiled_backend = B::chunk.rule == chunk_rule::stream &&
                                      std::same_as<provider_t<op::fused_linear_cross_entropy, B>, backends::generic>;

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

/// Bytes of workspace that fused_linear_cross_entropy_forward takes for a call with a bias and all gradients, or those
/// of x alone.
template <class B = default_backend, class T>
std::size_t fused_linear_cross_entropy_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab,
                                                 const context& ctx = default_context(),
                                                 parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  const std::size_t chunk = detail::cross_entropy_chunk<B, A>(rows, hidden, vocab, ctx);
  const detail::layer_extents layer{rows, hidden, vocab};
  const std::size_t scratch = simd::scratch_workspace<B, A>(vocab, 1, ctx);
  const std::size_t of_rows = cross_entropy_workspace<B, input_t<T>>(rows, vocab, ctx) - scratch +
                              detail::kept_labels<std::int64_t>::bytes<A>(rows, 1);
  if constexpr (detail::few_cross_entropy_in_f64<B, T>)
    if (rows <= detail::few_rows)
      return of_rows + workspace::bytes_for<double>(vocab) + workspace::bytes_for<double>(rows) +
             detail::few_rows_workspace<B, T>(layer, ctx);
  if constexpr (detail::tiled_backend<B>)
    if (detail::streams<B>(vocab)) {
      const std::size_t chosen = detail::gathered_chunk(chunk, rows, detail::bytes_of_tile_row<B, T>(hidden), false);
      return of_rows + detail::tiled_rows<A>::bytes(rows) +
             std::max(detail::tiled_layer_workspace<B, T>(layer, {chunk, chunk}, false, ctx, of),
                      detail::tiled_layer_workspace<B, T>(layer, {chosen, chunk}, true, ctx, of));
    }
  return of_rows +
         detail::kept_linear_workspace<B, T>(layer, chunk, detail::bytes_of_row<T>(hidden, vocab), ctx, scratch, of,
                                             [=](std::size_t n) { return workspace::bytes_for<A>(n, vocab); });
}

namespace detail {
inline namespace TIGON_ABI {

/// Checks and the call that forward and backward share; backward has an upstream gradient and no loss.
template <class B, layer_types T, class Target, class Weight>
void linear_cross_entropy(std::string_view name, linear_loss<T> t, const Target& target, Weight weight,
                          const cross_entropy_results<accumulator_t<T>>& to,
                          const fused_linear_cross_entropy_options& opt, context& ctx) {
  using A = accumulator_t<T>;
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const bool backward = to.loss.data() == nullptr && t.upstream;
  const std::span<const I> targets(labels);
  const auto x = t.head.x;
  const auto w = t.head.w;
  arguments args(name);
  declare_layer<B>(args, name, t.head);
  declare_labels(args, targets, weight, x.rows, w.rows);
  args.optional_in("upstream", t.upstream, t.upstream.size == 1 ? 1 : x.rows);
  declare_gradients(args, t.head, t.out);
  if (!backward) declare_loss<A>(args, to.loss, to.metrics, x.rows, opt.loss.reduction);
  args.check();
  expect_loss_options<A>(args, opt.loss);
  expect_labels(name, targets, w.rows, opt.loss.ignore_index);
  ctx.workspace().expect(name,
                         fused_linear_cross_entropy_workspace<B, T>(x.rows, x.cols, w.rows, ctx, t.out.of_weights()));

  workspace::frame frame(ctx.workspace());
  const loss_rows<A> rows(frame, targets, w.rows, weight, to.metrics, opt.loss);
  const kept_labels<I> kept(frame, targets, x.rows, opt.loss.ignore_index);
  const auto upstream = kept.template of_kept<A>(frame, {t.upstream.data, t.upstream.size});
  t.kept = kept.rows(), t.upstream = {upstream.data(), upstream.size()};
  const auto run = [&]<layer_types L>(const linear_loss<L>& call, const accumulator_t<L>* weights) {
    using K = kernel_for<op::fused_linear_cross_entropy, B>;
    if (backward) return K::template backward<B, L, I>(call, kept.labels(), weights, rows.out, rows.scale, opt, ctx);
    K::template forward<B, L, I>(call, kept.labels(), weights, rows.out, rows.scale, opt, ctx);
    spread_results(rows.out, x.rows, t.kept);
    rows.finish(targets, to.loss, to.metrics, opt.loss);
  };
  if constexpr (few_cross_entropy_in_f64<B, T>)
    if (x.rows <= few_rows) {
      const auto wide = numbers_in_f64(frame, upstream);
      const auto weights = numbers_in_f64(frame, std::span(rows.weight, rows.weight == nullptr ? 0 : w.rows));
      return run(
          linear_loss<in_f64<T>>{layer_in_f64(t.head), gradients_in_f64(t.out), {wide.data(), wide.size()}, t.kept},
          weights.data());
    }
  run(t, rows.weight);
}

}  // namespace TIGON_ABI
}  // namespace detail

/// Loss, metrics and, for mean and sum, all gradients in one call. With reduction::none the gradients belong to
/// fused_linear_cross_entropy_backward, unless the upstream gradient is known beforehand and given here. See
/// fused_linear_cross_entropy_options for the contract.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void fused_linear_cross_entropy_forward(const linear_layer<T>& layer, const Target& target,
                                        std::type_identity_t<cross_entropy_results<accumulator_t<T>>> to,
                                        std::type_identity_t<linear_gradients<T>> gradients = {},
                                        fused_linear_cross_entropy_options opt = {},
                                        const Weight& class_weight = absent,
                                        std::type_identity_t<std::span<const accumulator_t<T>>> upstream = {},
                                        context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<input_t<T>>(class_weight);
  static_assert(admits_parameter<input_t<T>, decltype(weight)>());
  detail::linear_cross_entropy<B, T>("fused_linear_cross_entropy_forward",
                                     {layer, gradients, {upstream.data(), upstream.size()}}, target, weight, to, opt,
                                     ctx);
}

/// dx, dw and dbias for an upstream gradient of one number, or one a row; the logits are computed again.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void fused_linear_cross_entropy_backward(const linear_layer<T>& layer, const Target& target,
                                         std::type_identity_t<std::span<const accumulator_t<T>>> upstream,
                                         std::type_identity_t<linear_gradients<T>> gradients,
                                         fused_linear_cross_entropy_options opt = {},
                                         const Weight& class_weight = absent, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<input_t<T>>(class_weight);
  static_assert(admits_parameter<input_t<T>, decltype(weight)>());
  expects("fused_linear_cross_entropy_backward")
      .that(upstream.data() != nullptr || layer.x.rows == 0, error_code::shape, "upstream", "empty",
            "one number, or one for each row");
  const accumulator_t<T> one(1);
  const vector_view<const accumulator_t<T>> g{upstream.data() == nullptr ? &one : upstream.data(),
                                              upstream.data() == nullptr ? 1 : upstream.size()};
  detail::linear_cross_entropy<B, T>("fused_linear_cross_entropy_backward", {layer, gradients, g}, target, weight, {},
                                     opt, ctx);
}

}  // namespace tigon

#include <tigon/losses/cross_entropy.hpp>  // the doors beside these, for callers

#endif  // TIGON_LOSSES_FUSED_LINEAR_CROSS_ENTROPY_HPP
