// RMS norm of each head of q and k and its rotation, in one pass, forward and backward.
#ifndef TIGON_OPS_QK_NORM_ROPE_HPP
#define TIGON_OPS_QK_NORM_ROPE_HPP

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
    for_rows_with_scratch<B, A>(ctx, detail::ceil_div(count, group), group * all.d, 1, [=] TIGON_FN(auto rows) {
      const std::size_t first = rows.i * group, n = std::min(group, count - first);
      const auto row = rows.narrow(all.d);
      A result[group];  // rstd
      for (std::size_t k = 0; k < n; ++k) {
        const auto at = all.of(first + k);
        const heads_view<const T> in = at.of_q ? x.q : x.k;
        const T* const from = in.at(at.b, at.h, at.s);
        prefetch_elements<B>(from + at.next * in.seq_stride, all.d);
        result[k] = head<W, U, A>(all.d, at.of_q ? w.q : w.k, tables, at.angle, opt).rstd(row, from);
      }
      for (std::size_t k = 0; k < n; ++k) {
        const auto at = all.of(first + k);
        const heads_view<T> out = at.of_q ? y.q : y.k;
        const T* const from = (at.of_q ? x.q : x.k).at(at.b, at.h, at.s);
        T* const to = out.at(at.b, at.h, at.s);
        head<W, U, A>(all.d, at.of_q ? w.q : w.k, tables, at.angle, opt)
            .template forward<C>(row, from, result[k], row_at<T>{to, to == from ? 0 : bytes(out)},
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
      prefetch_elements<B>(dy_at + at.next * d.seq_stride, all.d);
      prefetch_elements<B>(x_at + at.next * in.seq_stride, all.d);
      T* const dx_at = out.data == nullptr ? nullptr : out.at(at.b, at.h, at.s);
      const row_at<T> dx{dx_at, dx_at == dy_at || dx_at == x_at ? 0 : bytes(out)};
      head<W, U, A>(all.d, at.of_q ? w.q : w.k, tables, at.angle, opt)
          .template backward<C>(row, dy_at, x_at, dx, dw, g);
    };
    if (!sums)
      return for_rows_with_scratch<B, A>(ctx, all.rows(), all.d, 1, [=] TIGON_FN(auto row) {
        head_of(row, vector_view<A>{}, vector_view<A>{}, row.scratch(0));
      });
    const bool of_q = to.dw_q.data != nullptr, of_k = to.dw_k.data != nullptr;
    // Of the third row of sums nothing is made: it is scratch.
    for_rows_with_partials<B, A>(
        ctx, all.rows(), all.d,
        [=] TIGON_FN(auto row) TIGON_LAMBDA {
          head_of(row, of_q ? row.partial(0) : vector_view<A>{}, of_k ? row.partial(1) : vector_view<A>{},
                  row.partial(2));
        },
        parameter_gradient<W>{to.dw_q, opt.dw}, parameter_gradient<W>{to.dw_k, opt.dw}, parameter_gradient<A>{});
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

/// Bytes of workspace that qk_norm_rope_forward takes.
template <class B = default_backend, class T>
std::size_t qk_norm_rope_workspace(std::size_t head_dim, const context& ctx = default_context()) {
  using of = kernel<op::qk_norm_rope, backends::generic>;
  return simd::scratch_workspace<B, accumulator_t<T>>(workspace::product(of::group, head_dim), 1, ctx);
}
/// Bytes of workspace that qk_norm_rope_backward takes for so many heads: batch * seq_len * (heads + kv_heads).
template <class B = default_backend, class T>
std::size_t qk_norm_rope_backward_workspace(std::size_t heads, std::size_t head_dim,
                                            const context& ctx = default_context()) {
  return std::max(simd::partials_workspace<B, accumulator_t<T>>(heads, head_dim, 3),
                  qk_norm_rope_workspace<B, T>(head_dim, ctx));
}

namespace detail {
inline namespace TIGON_ABI {
/// Weights, options and tables, of heads that are declared.
template <class A, class W, class U>
void declare_qk_norm(arguments& args, in_vector<W> w_q, in_vector<W> w_k, rope_tables<const U> tables, heads_shape q,
                     qk_norm_rope_options opt) {
  args.at_least_one("head_dim of q", q.head_dim);
  const std::size_t turned = declare_rotary_dim(args, q.head_dim, opt.rotary_dim);
  args.optional_in("w_q", w_q, q.head_dim);
  args.optional_in("w_k", w_k, q.head_dim);
  declare_rotary_tables(args, rotary_tables<U>{tables.cos, tables.sin}, q.batch, q.seq_len, turned,
                        opt.rotary_dim == whole_head);
  args.eps<A>(opt.eps);
  args.finite<A>("offset", opt.offset);
}
template <class W>
vector_view<W> absent_if_empty(vector_view<W> v) {
  return v.size == 0 ? vector_view<W>{} : v;
}
template <class T>
heads_shape shape_of(heads_view<T> h) {
  return {h.batch, h.heads, h.seq_len, h.head_dim};
}
}  // namespace TIGON_ABI
}  // namespace detail

/// q_out and k_out from q, k and the weights: qk_norm_rope_forward({q, k}, qk_norm_weights{w_q, w_k},
/// rope_tables{cos, sin}, qk_heads{q_out, k_out}). See qk_norm_rope_options for the contract.
template <class B = default_backend, class T, class WQ, class WK, class U>
void qk_norm_rope_forward(std::type_identity_t<qk_heads<const T>> x, const qk_norm_weights<WQ, WK>& w,
                          rope_tables<U> tables, qk_heads<T> y, qk_norm_rope_options opt = {},
                          context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, WQ, WK>;
  using E = std::remove_const_t<U>;
  const auto w_q = as_in_vector<P>(w.q), w_k = as_in_vector<P>(w.k);
  static_assert(admits_parameter<T, decltype(w_q), decltype(w_k)>() && admits_parameter<T, vector_view<E>>());
  arguments args("qk_norm_rope_forward");
  detail::declare_rotated<T>(args, x.q, x.k, y.q, y.k);
  detail::declare_qk_norm<accumulator_t<T>, P, E>(args, w_q, w_k, {tables.cos, tables.sin}, detail::shape_of(x.q), opt);
  args.check();
  ctx.workspace().expect("qk_norm_rope_forward", qk_norm_rope_workspace<B, T>(x.q.head_dim, ctx));
  kernel_for<op::qk_norm_rope, B>::template forward<B, T, P, E>(
      x, qk_norm_weights<in_vector<P>, in_vector<P>>{w_q, w_k}, rope_tables<const E>{tables.cos, tables.sin}, y, opt,
      ctx);
}

/// dq, dk, dw_q and dw_k from dq_out, dk_out, q, k and the weights: qk_norm_rope_backward({dq_out, dk_out}, {q, k},
/// ..., qk_norm_rope_gradients{dq, dk, dw_q, dw_k}). See qk_norm_rope_options for the contract.
template <class B = default_backend, class T, class WQ, class WK, class U, class DWQ, class DWK>
void qk_norm_rope_backward(std::type_identity_t<qk_heads<const T>> dy, std::type_identity_t<qk_heads<const T>> x,
                           const qk_norm_weights<WQ, WK>& w, rope_tables<U> tables,
                           const qk_norm_rope_gradients<T, DWQ, DWK>& gradients, qk_norm_rope_options opt = {},
                           context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, WQ, WK, DWQ, DWK>;
  using E = std::remove_const_t<U>;
  const auto w_q = as_in_vector<P>(w.q), w_k = as_in_vector<P>(w.k);
  const auto dw_q = detail::absent_if_empty(as_out_vector<P>(gradients.dw_q)),
             dw_k = detail::absent_if_empty(as_out_vector<P>(gradients.dw_k));
  static_assert(admits_parameter<T, decltype(w_q), decltype(w_k), decltype(dw_q), decltype(dw_k)>() &&
                admits_parameter<T, vector_view<E>>());
  arguments args("qk_norm_rope_backward");
  const detail::heads_shape of_q = detail::shape_of(x.q), of_k{of_q.batch, x.k.heads, of_q.seq_len, of_q.head_dim};
  args.in("q", x.q, of_q);
  args.in("k", x.k, of_k);
  args.in("dq_out", dy.q, of_q);
  args.in("dk_out", dy.k, of_k);
  detail::declare_qk_norm<accumulator_t<T>, P, E>(args, w_q, w_k, {tables.cos, tables.sin}, of_q, opt);
  if (gradients.dk.data != nullptr) args.out("dk", gradients.dk, of_k).may_be("dk_out", "k");
  if (gradients.dq.data != nullptr) args.out("dq", gradients.dq, of_q).may_be("dq_out", "q");
  args.optional_out("dw_k", dw_k, w_k.size);
  args.optional_out("dw_q", dw_q, w_q.size);
  args.check();
  const std::size_t heads = workspace::product(of_q.batch, of_q.seq_len, of_q.heads + of_k.heads);
  ctx.workspace().expect("qk_norm_rope_backward", qk_norm_rope_backward_workspace<B, T>(heads, of_q.head_dim, ctx));
  kernel_for<op::qk_norm_rope, B>::template backward<B, T, P, E>(
      dy, x, qk_norm_weights<in_vector<P>, in_vector<P>>{w_q, w_k}, rope_tables<const E>{tables.cos, tables.sin},
      qk_norm_rope_gradients<T, vector_view<P>, vector_view<P>>{gradients.dq, gradients.dk, dw_q, dw_k}, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_QK_NORM_ROPE_HPP
