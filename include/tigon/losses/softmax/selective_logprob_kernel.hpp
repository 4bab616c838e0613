// The generic kernel of selective_logprob.
#ifndef TIGON_LOSSES_SOFTMAX_SELECTIVE_LOGPROB_KERNEL_HPP
#define TIGON_LOSSES_SOFTMAX_SELECTIVE_LOGPROB_KERNEL_HPP

#include <tigon/losses/linear/gathered_linear.hpp>
#include <tigon/losses/linear/tiled_linear.hpp>
#include <tigon/losses/softmax/partial_softmax.hpp>
#include <tigon/losses/softmax/selective_log_softmax_kernel.hpp>
#include <tigon/losses/softmax/selective_logprob_options.hpp>

namespace tigon {

template <>
struct kernel<op::selective_logprob, backends::generic> {
  template <class T>
  using saved = std::span<lse_parts<accumulator_t<T>>>;

  /// logp[i] and lse[i] of row[i], i < n, for column[i].
  template <backend B, layer_types T>
  static void forward(linear_layer<T> head, detail::selected_columns of, double temperature, accumulator_t<T>* logp,
                      lse_parts<accumulator_t<T>>* lse, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t *row = of.row, n = of.n;
    const std::int64_t* column = of.column;
    if constexpr (B::chunk.rule == chunk_rule::stream)
      if (detail::streams<B>(head.w.rows)) return forward_tiles<B>(head, of, temperature, logp, lse, ctx);
    const std::size_t vocab = head.w.rows;
    const std::size_t chunk = detail::chunk_rows<B, A>(head.x.rows, head.x.cols, vocab, ctx);
    workspace::frame frame(ctx.workspace());
    A* memory = frame.template take<A>(chunk * vocab);
    detail::gathered_linear<B, T> rows(frame, head, {}, chunk, chunk, 0, ctx);
    detail::for_chunks(n, chunk, [&](std::size_t begin, std::size_t count) {
      const matrix_view<A> z(memory, count, vocab);
      rows.logits(row + begin, z);
      kernel_for<op::selective_log_softmax, row_backend<B>>::template forward<row_backend<B>, A>(
          z, column + begin, temperature, logp + begin, lse + begin, ctx);
    });
  }

  /// The gradients from u[i] = d loss / d logp[i].
  template <backend B, layer_types T>
  static void backward(linear_layer<T> head, linear_gradients<T> out, detail::selected_columns of, double temperature,
                       const accumulator_t<T>* u, const lse_parts<accumulator_t<T>>* lse, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t *row = of.row, n = of.n;
    const std::int64_t* column = of.column;
    if constexpr (B::chunk.rule == chunk_rule::stream)
      if (detail::streams<B>(head.w.rows)) return backward_tiles<B>(head, out, of, temperature, u, lse, ctx);
    const std::size_t vocab = head.w.rows;
    const std::size_t chunk = detail::chunk_rows<B, A>(head.x.rows, head.x.cols, vocab, ctx);
    workspace::frame frame(ctx.workspace());
    A* memory = frame.template take<A>(chunk * vocab);
    detail::gathered_linear<B, T> rows(frame, head, out, chunk, chunk,
                                       detail::gathered_linear<B, T>::most_chunks(head.x.rows, chunk), ctx);
    detail::clear_other_rows<B>(out.dx, {row, n}, ctx);
    detail::for_chunks(n, chunk, [&](std::size_t begin, std::size_t count) {
      const matrix_view<A> z(memory, count, vocab);
      rows.logits(row + begin, z);
      kernel_for<op::selective_log_softmax, row_backend<B>>::template backward<row_backend<B>, A>(
          z, lse + begin, selected_gradient<A>{column + begin, u + begin}, selected_gradient<A>{}, temperature, z, ctx);
      rows.backward(row + begin, z);
    });
    rows.finish();
  }

  /// The same by tiles: the softmax of a row is merged from those of its parts, tile by tile.
  template <backend B, layer_types T>
  static void forward_tiles(linear_layer<T> head, detail::selected_columns of, double temperature,
                            accumulator_t<T>* logp, lse_parts<accumulator_t<T>>* lse, context& ctx) {
    using A = accumulator_t<T>;
    const std::int64_t* column = of.column;
    const std::size_t n = of.n;
    const double inverse = static_cast<A>(1 / temperature);
    workspace::frame frame(ctx.workspace());
    const std::size_t tile = detail::chunk_rows<B, A>(head.x.rows, head.x.cols, head.w.rows, ctx);
    detail::tiled_layer<B, T> layer(frame, head, {}, {of.row, n}, {tile, tile}, ctx);
    auto* all = frame.template take<lse_parts<double>>(n);
    auto* part = frame.template take<lse_parts<A>>(tile);
    A* unused = frame.template take<A>(tile);
    auto* local = frame.template take<std::int64_t>(tile);
    layer.for_each([&](std::size_t begin, std::size_t first, matrix_view<A> z) {
      const auto own = [&](std::size_t i) { return static_cast<std::size_t>(column[begin + i]) - first; };
      for (std::size_t i = 0; i < z.rows; ++i) {
        const bool here = own(i) < z.cols;
        local[i] = here ? static_cast<std::int64_t>(own(i)) : 0;
        if (here) logp[begin + i] = z.row(i)[own(i)];  // the logit, until all is known
      }
      kernel_for<op::selective_log_softmax, row_backend<B>>::template forward<row_backend<B>, A>(z, local, temperature,
                                                                                                 unused, part, ctx);
      for (std::size_t i = 0; i < z.rows; ++i)
        if (first == 0)
          all[begin + i] = {part[i].top, part[i].rest};
        else
          detail::add_part(all[begin + i], part[i], detail::logits_times{inverse});
    });
    for (std::size_t i = 0; i < n; ++i) {
      lse[i] = {static_cast<A>(all[i].top), static_cast<A>(all[i].rest)};
      logp[i] = static_cast<A>(lse[i].log_p(logp[i], temperature));
    }
  }

  template <backend B, layer_types T>
  static void backward_tiles(linear_layer<T> head, linear_gradients<T> out, detail::selected_columns selected,
                             double temperature, const accumulator_t<T>* u, const lse_parts<accumulator_t<T>>* lse,
                             context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t n = selected.n;
    const A inverse = static_cast<A>(1 / temperature);
    if (n == 0) {
      detail::clear_other_rows<B>(out.dx, {selected.row, n}, ctx);
      return detail::clear_parameters<row_backend<B>>(out, ctx);
    }
    workspace::frame frame(ctx.workspace());
    const std::size_t tile = detail::chunk_rows<B, A>(head.x.rows, head.x.cols, head.w.rows, ctx);
    detail::tiled_layer<B, T> layer(frame, head, out, {selected.row, n}, {tile, tile}, ctx);
    layer.for_each([&](std::size_t begin, std::size_t first, matrix_view<A> z) {
      const auto* of = lse + begin;
      const auto* target = selected.column + begin;
      const A* up = u + begin;
      for_rows<B, A>(ctx, z.rows, z.cols, [=] TIGON_FN(auto r) {
        const lse_parts<A> parts = of[r.i];
        const A top = parts.top, scaled = -up[r.i] * inverse, factor = scaled / (A(1) + parts.rest);
        const std::size_t own = static_cast<std::size_t>(target[r.i]) - first;
        A at(0);
        if (own < r.cols) at = scaled * static_cast<A>(math::expm1(parts.log_p(r.at(z, own), temperature)));
        r.map(reads(z), writes(z),
              [=](auto v) { return normal_or_zero(exp_nonpositive((v - top) * inverse) * factor); });
        if (own < r.cols && r.first()) r.put(z, own, at);
      });
      layer.backward(begin, z);
    });
    layer.finish();
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_SELECTIVE_LOGPROB_KERNEL_HPP
