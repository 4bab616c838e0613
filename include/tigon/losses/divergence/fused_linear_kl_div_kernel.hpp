// The generic kernel of fused_linear_kl_div.
#ifndef TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_KL_DIV_KERNEL_HPP
#define TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_KL_DIV_KERNEL_HPP

#include <tigon/losses/divergence/fused_linear_kl_div_options.hpp>
#include <tigon/losses/divergence/kl_div_program.hpp>
#include <tigon/losses/softmax/row_softmax.hpp>

namespace tigon {

template <>
struct kernel<op::fused_linear_kl_div, backends::generic> {
  template <class>
  using saved = no_state;

  /// Losses and gradients in one pass over the rows that count; the gradients times `factor`. loss: of these rows.
  template <backend B, layer_types T>
  static void forward(const detail::linear_kl_div<T>& t, double* loss, double factor,
                      const fused_linear_kl_div_options& opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t all = t.head.x.rows, hidden = t.head.x.cols, vocab = t.head.w.rows;
    const detail::kept_chunk chunk =
        detail::chunk_of<T>(t.kept, detail::chunk_rows<B, A>(all, hidden, vocab, ctx), all,
                            detail::bytes_of_row<T>(hidden, vocab), t.out.dx.data != nullptr);
    workspace::frame frame(ctx.workspace());
    A* logits = frame.template take<A>(chunk.rows * vocab);
    detail::kept_linear<B, T> layer(frame, t.head, t.out, t.kept, chunk, t.out.dx, ctx);
    detail::for_chunks(t.kept.n, chunk.rows, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, vocab);
      const bool whole = t.kept.all();
      const detail::kl_div_rows<A> of{loss + begin,
                                      whole ? nullptr : t.kept.row + begin,
                                      std::max(static_cast<A>(opt.eps), std::numeric_limits<A>::min()),
                                      static_cast<A>(1 / opt.temperature),
                                      static_cast<A>(factor / opt.temperature),
                                      t.out.any()};
      const auto part = [=](auto m) { return m.data == nullptr || !whole ? m : m.rows_from(begin, n); };
      layer.logits(begin, z);
      if (opt.log_target)
        chunk_rows<row_backend<B>, true, input_t<T>, A>(z, part(t.teacher), part(t.elements), part(t.upstream), of,
                                                        ctx);
      else
        chunk_rows<row_backend<B>, false, input_t<T>, A>(z, part(t.teacher), part(t.elements), part(t.upstream), of,
                                                         ctx);
      if (t.out.any()) layer.backward(begin, z);
    });
    layer.finish();
    detail::clear_other_rows<B>(t.elements, t.kept, ctx);
  }

  /// The gradients, from logits that are computed again.
  template <backend B, layer_types T>
  static void backward(const detail::linear_kl_div<T>& t, double* loss, double factor,
                       const fused_linear_kl_div_options& opt, context& ctx) {
    forward<B, T>(t, loss, factor, opt, ctx);
  }

  /// Losses of a chunk, and D over its logits.
  template <backend B, bool Log, element T, class A>
  static void chunk_rows(matrix_view<A> z, matrix_view<const T> all_teachers,
                         matrix_view<accumulator_t<T>> all_elements, matrix_view<const accumulator_t<T>> upstreams,
                         detail::kl_div_rows<A> of, context& ctx) {
    const detail::kl_div_program<Log, A> program{of.lowest, A(0)};
    for_rows<B, A>(ctx, z.rows, z.cols, {.scratch = 1}, [=] TIGON_FN(auto row) {
      const vector_view<A> e = row.scratch(0);
      const cached v{z};  // written in place
      const auto teacher = detail::moved_to(all_teachers, of.row, row.i);
      const auto elements = detail::moved_to(all_elements, of.row, row.i);
      const auto upstream = detail::moved_to(upstreams, of.row, row.i);
      const A top = row.max(reads(z), [](auto s) { return s; });
      const A sum = row.map_sum(reads(v), writes(e), [=](auto s) {
        const auto p = exp_nonpositive((s - top) * of.inverse);
        return pack{p, p};
      });
      A d = sum - A(1);
      if (d < A(1)) d = detail::sum_without_one(row, e);
      const A tail = math::log1p(d);
      // g P takes the place of the logits.
      const auto loss_of = [=](auto s, auto t) {
        return program.map(fma(s - top, decltype(s)(of.inverse), decltype(s)(-tail)), t);
      };
      A loss(0), mass(0);
      if (elements.data != nullptr) {
        const auto sums = row.map_sum(reads(v, teacher), writes(v, elements), [=](auto s, auto t) {
          const auto l = loss_of(s, t), p = detail::teacher_probability<Log>(t);
          return pack{p, l, p};
        });
        mass = sums;
      } else if (upstream.data != nullptr) {
        mass = row.map_sum(reads(teacher, upstream), writes(v), [=](auto t, auto g) {
          const auto p = g * detail::teacher_probability<Log>(t);
          return pack{p, p};
        });
      } else {
        const auto sums = row.map_sum(reads(v, teacher), writes(v), [=](auto s, auto t) {
          const auto p = detail::teacher_probability<Log>(t);
          return pack{p, loss_of(s, t), p};
        });
        loss = sums[0], mass = sums[1];
      }
      if (row.first()) of.loss[row.i] = static_cast<double>(loss);
      if (!of.gradient) return;
      const A of_q = of.factor * mass / (A(1) + d), of_p = of.factor;
      row.map(reads(e, v), writes(v),
              [=](auto q, auto p) { return normal_or_zero(fnma(p, decltype(p)(of_p), q * of_q)); });
    });
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_KL_DIV_KERNEL_HPP
