// The generic kernel of qwen2vl_mrope.
#ifndef TIGON_OPS_ROTARY_QWEN2VL_MROPE_KERNEL_HPP
#define TIGON_OPS_ROTARY_QWEN2VL_MROPE_KERNEL_HPP

#include <tigon/ops/rotary/qwen2vl_mrope_options.hpp>
#include <tigon/ops/rotary/rotation.hpp>

namespace tigon {

template <>
struct kernel<op::qwen2vl_mrope, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, element U>
  static void forward(in_heads<T> q, in_heads<T> k, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> q_out,
                      heads_view<T> k_out, qwen2vl_mrope_options opt, context& ctx) {
    rotate<B>(q, k, detail::rotary_tables<U>{cos, sin}, q_out, k_out, opt, accumulator_t<T>(1), ctx);
  }

  template <backend B, element T, element U>
  static void backward(in_heads<T> dq_out, in_heads<T> dk_out, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> dq,
                       heads_view<T> dk, qwen2vl_mrope_options opt, context& ctx) {
    rotate<B>(dq_out, dk_out, detail::rotary_tables<U>{cos, sin}, dq, dk, opt, accumulator_t<T>(-1), ctx);
  }

  template <backend B, element T, element U, class A>
  static void rotate(heads_view<const T> q, heads_view<const T> k, detail::rotary_tables<U> tables, heads_view<T> q_out,
                     heads_view<T> k_out, qwen2vl_mrope_options opt, A sign, context& ctx) {
    const matrix_view<const U> cos = tables.cos, sin = tables.sin;
    const std::size_t tokens = q.batch * q.seq_len, half = q.head_dim / 2, width = (q.heads + k.heads) * q.head_dim;
    if (width == 0) return;
    for_rows<B, A>(ctx, tokens, width, {.scratch = 1}, [=] TIGON_FN(auto token) {
      const std::size_t b = token.i / q.seq_len, s = token.i % q.seq_len;
      // One row of each table for all heads of the token: a token is at least as wide as both.
      const vector_view<A> c{token.scratch(0).data, half}, z{token.scratch(0).data + half, half};
      for (std::size_t t = 0, first = 0; t < 3; first += opt.sections[t++])
        token.part(first, opt.sections[t])
            .map(reads(in_vector<U>{cos.row(t * tokens + token.i), half},
                       in_vector<U>{sin.row(t * tokens + token.i), half}),
                 writes(c, z), [](auto cv, auto zv) {
                   return pack{cv, zv};
                 });
      detail::for_heads_of_token<B>(q, k, q_out, k_out, b, s, [=](const T* from, detail::row_at<T> to) TIGON_LAMBDA {
        detail::turn_halves(token, from, to, half, c, z, sign);
      });
    });
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_ROTARY_QWEN2VL_MROPE_KERNEL_HPP
