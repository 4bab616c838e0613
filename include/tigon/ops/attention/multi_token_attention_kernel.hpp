// The generic kernel of multi_token_attention.
#ifndef TIGON_OPS_ATTENTION_MULTI_TOKEN_ATTENTION_KERNEL_HPP
#define TIGON_OPS_ATTENTION_MULTI_TOKEN_ATTENTION_KERNEL_HPP

#include <tigon/ops/attention/multi_token_attention_options.hpp>
#include <tigon/ops/attention/own_tasks.hpp>
#include <tigon/ops/attention/plane_gradients.hpp>
#include <tigon/ops/softmax/softmax_kernel.hpp>
#include <tigon/ops/softmax/sparsemax_kernel.hpp>

#include <algorithm>
#include <cstddef>

namespace tigon {

template <>
struct kernel<op::multi_token_attention, backends::generic> {
  template <class T>
  using saved = heads_view<T>;  // probs

  template <class B, class T>
  using vector_of = simd::vec<typename B::engine, accumulator_t<T>>;
  template <class B, class T>
  using plane_of = detail::plane_convolution<vector_of<B, T>>;

  template <backend B, element T>
  static void forward(in_heads<T> scores, in_heads<T> w, in_vector<T> b, heads_view<T> y, heads_view<T> probs,
                      multi_token_attention_options opt, context& ctx) {
    using A = accumulator_t<T>;
    probabilities<B, T>(scores, probs, opt, ctx);
    const plane_of<B, T> plane = geometry<B, T>(scores.batch, scores.seq_len, w, opt);
    workspace::frame scratch(ctx.workspace());
    const std::size_t taps = plane.taps_of_output();
    const detail::packed_taps<A> packed{scratch.take<std::size_t>(taps), scratch.take<A>(taps * w.batch), taps};
    A* const start = scratch.take<A>(w.batch);
    plane.template pack_forward<T>(w, packed);
    for (std::size_t o = 0; o < w.batch; ++o) start[o] = b.data == nullptr ? A(0) : static_cast<A>(b.data[o]);
    const std::size_t numbers = plane.forward_numbers();
    detail::for_tasks<B>(ctx, plane.batch * plane.groups * plane.output_blocks(), workspace::bytes_for<A>(numbers),
                         [&](std::size_t task, context& own) {
                           workspace::frame mine(own.workspace());
                           plane.template forward<T>(probs, y, task, packed, start, mine.take<A>(numbers));
                         });
  }

  template <backend B, element T>
  static void backward(in_heads<T> dy, in_heads<T> w, in_heads<T> probs, multi_token_attention_gradients<T> gradients,
                       multi_token_attention_options opt, context& ctx) {
    const detail::plane_gradients<vector_of<B, T>> plane(geometry<B, T>(probs.batch, probs.seq_len, w, opt));
    // dscores may take the place of probs: it comes last.
    if (gradients.dw.data != nullptr || !gradients.db.empty())
      parameter_gradients<B, T>(plane, dy, probs, gradients, opt, ctx);
    score_gradients<B, T>(plane, dy, w, probs, gradients.dscores, opt, ctx);
  }

  /// probs = softmax or sparsemax of the scores up to the diagonal.
  template <backend B, element T>
  static void probabilities(in_heads<T> scores, heads_view<T> probs, multi_token_attention_options opt, context& ctx) {
    constexpr std::size_t block = 16;
    const std::size_t len = scores.seq_len, blocks = detail::ceil_div(len, block);
    detail::for_tasks<B>(ctx, scores.batch * scores.heads * blocks, normaliser_bytes<B, T>(len, opt),
                         [&](std::size_t task, context& own) {
                           const std::size_t head = task / blocks, b = head / scores.heads, h = head % scores.heads;
                           const std::size_t first = task % blocks * block, end = std::min(len, first + block);
                           for (std::size_t i = first; i < end; ++i) {
                             const matrix_view<const T> x(scores.at(b, h, i), 1, i + 1);
                             const matrix_view<T> p(probs.at(b, h, i), 1, i + 1);
                             if (opt.sparse)
                               kernel_for<op::sparsemax, B>::template forward<B, T>(axis_view(x), axis_view(p),
                                                                                    sparsemax_options{}, own);
                             else
                               kernel_for<op::softmax, B>::template forward<B, T>(x, p, softmax_options{}, own);
                           }
                         });
  }

  template <backend B, element T, class Plane>
  static void parameter_gradients(const Plane& plane, in_heads<T> dy, in_heads<T> probs,
                                  multi_token_attention_gradients<T> to, multi_token_attention_options opt,
                                  context& ctx) {
    using A = accumulator_t<T>;
    workspace::frame scratch(ctx.workspace());
    const std::size_t taps = plane.taps_of_output(), slices = plane.slices(), sums = plane.sums_of_group();
    const detail::packed_taps<A> packed{scratch.take<std::size_t>(taps), nullptr, taps};
    double* const results = scratch.take<double>(plane.groups * slices * sums);
    plane.template pack_forward<T>({}, packed);
    const std::size_t numbers = plane.parameter_numbers();
    detail::for_tasks<B>(
        ctx, plane.groups * slices, workspace::bytes_for<A>(numbers), [&](std::size_t task, context& own) {
          workspace::frame mine(own.workspace());
          plane.template of_parameters<T>(probs, dy, task / slices, task % slices, packed.offset, to.dw.data != nullptr,
                                          results + task * sums, mine.take<A>(numbers));
        });
    const auto add = [](T& out, double sum, gradient mode) {
      const A value = static_cast<A>(sum);
      out = static_cast<T>(mode == gradient::accumulate ? static_cast<A>(out) + value : value);
    };
    for (std::size_t o = 0; o < plane.groups * plane.outputs; ++o) {
      const double* const of = results + o / plane.outputs * slices * sums + o % plane.outputs * (taps + 1);
      const auto sum = [=](std::size_t t) {
        double total = 0;
        for (std::size_t slice = 0; slice < slices; ++slice) total += of[slice * sums + t];
        return total;
      };
      if (!to.db.empty()) add(to.db[o], sum(taps), opt.dparams);
      if (to.dw.data == nullptr) continue;
      for (std::size_t t = 0; t < taps; ++t) {
        const std::size_t row = t / plane.cols.taps;
        add(to.dw.at(o, row / plane.rows.taps, row % plane.rows.taps)[t % plane.cols.taps], sum(t), opt.dparams);
      }
    }
  }

  template <backend B, element T, class Plane>
  static void score_gradients(const Plane& plane, in_heads<T> dy, in_heads<T> w, in_heads<T> probs,
                              heads_view<T> dscores, multi_token_attention_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using V = vector_of<B, T>;
    constexpr std::size_t block = Plane::block, together = Plane::together;
    workspace::frame scratch(ctx.workspace());
    const std::size_t taps = plane.taps_of_input(), starts = plane.rows.remainders() * plane.cols.remainders() + 1;
    const detail::packed_taps<A> packed{scratch.take<std::size_t>(taps), scratch.take<A>(taps * probs.heads), taps};
    std::size_t* const first_of = scratch.take<std::size_t>(starts);
    plane.template pack_backward<T>(w, packed, first_of);
    const std::size_t blocks = plane.input_blocks(), len = probs.seq_len, row = plane.input_row();
    const std::size_t numbers = plane.input_numbers(), widened = std::same_as<T, A> ? 0 : len;
    const std::size_t bytes = workspace::bytes_for<A>(numbers) + workspace::bytes_for<A>(widened);
    detail::for_tasks<B>(ctx, plane.batch * plane.groups * blocks, bytes, [&](std::size_t task, context& own) {
      workspace::frame mine(own.workspace());
      A* const memory = mine.take<A>(numbers);
      A* const wide = mine.take<A>(widened);
      const std::size_t first = task % blocks * block, count = std::min(block, len - first);
      for (std::size_t c = 0; c < plane.inputs; c += together) {
        const typename Plane::input_rows rows{task / blocks / plane.groups,
                                              task / blocks % plane.groups,
                                              c,
                                              std::min(together, plane.inputs - c),
                                              first,
                                              count};
        plane.template of_input<T>(dy, rows, packed, first_of, memory, memory + together * block * row);
        for (std::size_t k = 0; k < rows.some; ++k)
          for (std::size_t r = 0; r < count; ++r) {
            const std::size_t head = rows.group * plane.inputs + c + k, i = first + r;
            const T* const p = probs.at(rows.b, head, i);
            T* const out = dscores.at(rows.b, head, i);
            const matrix_view<A> dp(memory + (k * block + r) * row, 1, i + 1);
            if constexpr (std::same_as<T, A>) {
              normaliser_backward<B, A>(dp, {p, 1, i + 1}, {out, 1, i + 1}, opt, own);
            } else {
              detail::load_line<V>(p, 0, 1, i + 1, wide, i + 1);
              normaliser_backward<B, A>(dp, {wide, 1, i + 1}, dp, opt, own);
              detail::store_line<V>(dp.data, out, i + 1);
            }
            Plane::clear_above_diagonal(out, i, len);
          }
      }
    });
  }

  template <backend B, element A>
  static void normaliser_backward(in_matrix<A> dp, in_matrix<A> p, matrix_view<A> to, multi_token_attention_options opt,
                                  context& ctx) {
    if (opt.sparse)
      kernel_for<op::sparsemax, B>::template backward<B, A>(axis_view(dp), axis_view(p), axis_view(to),
                                                            sparsemax_options{}, ctx);
    else
      kernel_for<op::softmax, B>::template backward<B, A>(dp, p, to, softmax_options{}, ctx);
  }

  template <class B, class T>
  static plane_of<B, T> geometry(std::size_t batch, std::size_t len, in_heads<T> w, multi_token_attention_options opt) {
    return {detail::query_axis(len, w.seq_len, opt),
            detail::key_axis(len, w.head_dim, opt),
            batch,
            opt.groups,
            w.heads,
            w.batch / std::max<std::size_t>(opt.groups, 1)};
  }

  template <class B, class T>
  static std::size_t normaliser_bytes(std::size_t len, multi_token_attention_options opt) {
    workspace nothing;
    const context alone(serial(), nothing);
    return opt.sparse ? sparsemax_workspace<B, T>(len, alone) : softmax_workspace<B, T>(len, alone);
  }
  template <backend B, element T>
  static std::size_t forward_workspace(std::size_t len, in_heads<T> w, multi_token_attention_options opt,
                                       std::size_t workers) {
    using A = accumulator_t<T>;
    const plane_of<B, T> plane = geometry<B, T>(0, len, w, opt);
    const std::size_t taps = plane.taps_of_output(), own = workspace::bytes_for<A>(plane.forward_numbers());
    return std::max(workspace::bytes_for<std::byte>(workers, normaliser_bytes<B, T>(len, opt)),
                    workspace::bytes_for<std::size_t>(taps) + workspace::bytes_for<A>(taps, w.batch) +
                        workspace::bytes_for<A>(w.batch) + workspace::bytes_for<std::byte>(workers, own));
  }
  template <backend B, element T>
  static std::size_t backward_workspace(std::size_t batch, std::size_t len, in_heads<T> w,
                                        multi_token_attention_options opt, std::size_t workers, bool with_parameters) {
    using A = accumulator_t<T>;
    const plane_of<B, T> plane = geometry<B, T>(batch, len, w, opt);
    const std::size_t widened = std::same_as<T, A> ? 0 : workspace::bytes_for<A>(len), taps = plane.taps_of_input();
    const std::size_t of_scores =
        workspace::bytes_for<std::size_t>(taps) + workspace::bytes_for<A>(taps, plane.groups, plane.inputs) +
        workspace::bytes_for<std::size_t>(plane.rows.remainders() * plane.cols.remainders() + 1) +
        workspace::bytes_for<std::byte>(workers, workspace::bytes_for<A>(plane.input_numbers()) + widened);
    if (!with_parameters) return of_scores;
    return std::max(of_scores,
                    workspace::bytes_for<std::size_t>(plane.taps_of_output()) +
                        workspace::bytes_for<double>(plane.groups, plane.slices(), plane.sums_of_group()) +
                        workspace::bytes_for<std::byte>(workers, workspace::bytes_for<A>(plane.parameter_numbers())));
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_ATTENTION_MULTI_TOKEN_ATTENTION_KERNEL_HPP
