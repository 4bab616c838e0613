// The generic kernel of qk_norm_rope.
#ifndef TIGON_OPS_ROTARY_QK_NORM_ROPE_KERNEL_HPP
#define TIGON_OPS_ROTARY_QK_NORM_ROPE_KERNEL_HPP

#include <tigon/backend/caches.hpp>
#include <tigon/core/division.hpp>
#include <tigon/ops/rotary/normed_head.hpp>
#include <tigon/ops/rotary/qk_norm_rope_options.hpp>
#include <tigon/rows/row.hpp>

namespace tigon {

template <>
struct kernel<op::qk_norm_rope, backends::generic> {
  template <class>
  using saved = no_state;
  template <class T>
  using inputs = qk_heads<const T>;
  template <class W>
  using weights = qk_norm_weights<in_vector<W>, in_vector<W>>;
  template <class T, class W>
  using outputs = qk_norm_rope_gradients<T, vector_view<W>, vector_view<W>>;

  template <backend B, element T, element W, element U>
  static void forward(inputs<T> x, weights<W> w, rope_tables<const U> tables, qk_heads<T> y, qk_norm_rope_options opt,
                      context& ctx) {
    with_rounding<T>(opt.casting, [&](auto rule) { forward_heads<B, rule.value, T>(x, w, tables, y, opt, ctx); });
  }

  template <backend B, element T, element W, element U>
  static void backward(inputs<T> dy, inputs<T> x, weights<W> w, rope_tables<const U> tables, outputs<T, W> to,
                       qk_norm_rope_options opt, context& ctx) {
    with_rounding<T>(opt.casting, [&](auto rule) { backward_heads<B, rule.value, T>(dy, x, w, tables, to, opt, ctx); });
  }

  /// Heads whose rstd are computed before any of them is written: such a chain of operations takes longer than a head.
  static constexpr std::size_t group = 8;

  /// Rows of the programs below: the heads of q of a token, then those of k, token by token.
  struct heads_of_tokens {
    std::size_t heads, kv_heads, seq_len, d, tokens;
    bool shared;  ///< one table for all sequences

    template <class T, class U>
    heads_of_tokens(qk_heads<const T> x, rope_tables<const U> tables)
        : heads(x.q.heads),
          kv_heads(x.k.heads),
          seq_len(x.q.seq_len),
          d(x.q.head_dim),
          tokens(x.q.batch * x.q.seq_len),
          shared(tables.cos.rows == x.q.seq_len) {}
    std::size_t rows() const { return tokens * (heads + kv_heads); }
    struct place {
      bool of_q;
      std::size_t b, h, s, angle, next;  ///< next: 1 where a token of the same sequence follows, otherwise 0
    };
    TIGON_INLINE place of(std::size_t row) const {
      const std::size_t token = row / (heads + kv_heads), h = row - token * (heads + kv_heads);
      const std::size_t b = token / seq_len, s = token - b * seq_len;
      const bool of_q = h < heads;
      return {of_q, b, of_q ? h : h - heads, s, shared ? s : token, s + 1 < seq_len ? std::size_t{1} : 0};
    }
  };

  template <backend B, casting C, element T, element W, element U, class A = accumulator_t<T>>
  static void forward_heads(inputs<T> x, weights<W> w, rope_tables<const U> tables, qk_heads<T> y,
                            qk_norm_rope_options opt, context& ctx) {
    const heads_of_tokens all(x, tables);
    const std::size_t count = all.rows();
    for_rows<B, A>(ctx, detail::ceil_div(count, group), group * all.d, {.scratch = 1}, [=] TIGON_FN(auto rows) {
      const std::size_t first = rows.i * group, n = std::min(group, count - first);
      const auto row = rows.part(0, all.d);
      A result[group];  // rstd
      for (std::size_t k = 0; k < n; ++k) {
        const auto at = all.of(first + k);
        const heads_view<const T> in = at.of_q ? x.q : x.k;
        const T* const from = in.at(at.b, at.h, at.s);
        prefetch<B>(in_vector<T>{from + at.next * in.seq_stride, all.d});
        result[k] = head<W, U, A>(all.d, at.of_q ? w.q : w.k, tables, at.angle, opt).rstd(row, from);
      }
      for (std::size_t k = 0; k < n; ++k) {
        const auto at = all.of(first + k);
        const heads_view<T> out = at.of_q ? y.q : y.k;
        const T* const from = (at.of_q ? x.q : x.k).at(at.b, at.h, at.s);
        T* const to = out.at(at.b, at.h, at.s);
        head<W, U, A>(all.d, at.of_q ? w.q : w.k, tables, at.angle, opt)
            .template forward<C>(row, from, result[k], detail::row_at<T>{to, to == from ? 0 : bytes(out)},
                                 vector_view<A>{rows.scratch(0).data, all.d});
      }
    });
  }

  template <backend B, casting C, element T, element W, element U, class A = accumulator_t<T>>
  static void backward_heads(inputs<T> dy, inputs<T> x, weights<W> w, rope_tables<const U> tables, outputs<T, W> to,
                             qk_norm_rope_options opt, context& ctx) {
    const heads_of_tokens all(x, tables);
    const bool sums = to.dw_q.data != nullptr || to.dw_k.data != nullptr;
    const auto head_of = [=](auto row, vector_view<A> dw_q, vector_view<A> dw_k, vector_view<A> g) TIGON_LAMBDA {
      const auto at = all.of(row.i);
      const heads_view<const T> d = at.of_q ? dy.q : dy.k, in = at.of_q ? x.q : x.k;
      const heads_view<T> out = at.of_q ? to.dq : to.dk;
      const vector_view<A> dw = at.of_q ? dw_q : dw_k;
      if (out.data == nullptr && dw.data == nullptr) return;
      const T *const dy_at = d.at(at.b, at.h, at.s), *const x_at = in.at(at.b, at.h, at.s);
      prefetch<B>(in_vector<T>{dy_at + at.next * d.seq_stride, all.d});
      prefetch<B>(in_vector<T>{x_at + at.next * in.seq_stride, all.d});
      T* const dx_at = out.data == nullptr ? nullptr : out.at(at.b, at.h, at.s);
      const detail::row_at<T> dx{dx_at, dx_at == dy_at || dx_at == x_at ? 0 : bytes(out)};
      head<W, U, A>(all.d, at.of_q ? w.q : w.k, tables, at.angle, opt)
          .template backward<C>(row, dy_at, x_at, dx, dw, g);
    };
    if (!sums)
      return for_rows<B, A>(ctx, all.rows(), all.d, {.scratch = 1}, [=] TIGON_FN(auto row) {
        head_of(row, vector_view<A>{}, vector_view<A>{}, row.scratch(0));
      });
    const bool of_q = to.dw_q.data != nullptr, of_k = to.dw_k.data != nullptr;
    // Of the third row of sums nothing is made: it is scratch.
    for_rows<B, A>(ctx, all.rows(), all.d,
                   adds_to(parameter_gradient<W>{to.dw_q, opt.dw}, parameter_gradient<W>{to.dw_k, opt.dw},
                           parameter_gradient<A>{}),
                   [=] TIGON_FN(auto row) TIGON_LAMBDA {
                     head_of(row, of_q ? row.partial(0) : vector_view<A>{}, of_k ? row.partial(1) : vector_view<A>{},
                             row.partial(2));
                   });
  }

  template <class W, class U, class A>
  static TIGON_INLINE detail::normed_head<W, U, A> head(std::size_t d, in_vector<W> w, rope_tables<const U> tables,
                                                        std::size_t angle, qk_norm_rope_options opt) {
    const detail::rotated_part part(d, opt.rotary_dim, opt.columns, opt.pairs);
    return {part, {static_cast<A>(d), static_cast<A>(opt.eps)}, w ? static_cast<A>(opt.offset) : A(0),
            w,    {tables.cos.row(angle), part.half()},         {tables.sin.row(angle), part.half()}};
  }
  template <class T>
  static std::size_t bytes(heads_view<T> h) {
    return h.batch * h.heads * h.seq_len * h.head_dim * sizeof(T);
  }
  template <element T, class Run>
  static void with_rounding(casting rule, Run run) {
    if constexpr (!std::same_as<T, accumulator_t<T>>)
      if (rule == casting::llama) return run(std::integral_constant<casting, casting::llama>{});
    run(std::integral_constant<casting, casting::none>{});
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_ROTARY_QK_NORM_ROPE_KERNEL_HPP
