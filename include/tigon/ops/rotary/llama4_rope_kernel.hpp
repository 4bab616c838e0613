// The generic kernel of llama4_rope.
#ifndef TIGON_OPS_ROTARY_LLAMA4_ROPE_KERNEL_HPP
#define TIGON_OPS_ROTARY_LLAMA4_ROPE_KERNEL_HPP

#include <tigon/ops/rotary/llama4_rope_options.hpp>
#include <tigon/ops/rotary/rotation.hpp>

namespace tigon {

template <>
struct kernel<op::llama4_rope, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, element U>
  static void forward(in_heads<T> q, in_heads<T> k, in_matrix<U> freqs, heads_view<T> q_out, heads_view<T> k_out,
                      llama4_rope_options opt, context& ctx) {
    rotate<B>(q, k, freqs, q_out, k_out, opt, accumulator_t<T>(1), ctx);
  }

  template <backend B, element T, element U>
  static void backward(in_heads<T> dq_out, in_heads<T> dk_out, in_matrix<U> freqs, heads_view<T> dq, heads_view<T> dk,
                       llama4_rope_options opt, context& ctx) {
    rotate<B>(dq_out, dk_out, freqs, dq, dk, opt, accumulator_t<T>(-1), ctx);
  }

  template <backend B, element T, element U, class A>
  static void rotate(heads_view<const T> q, heads_view<const T> k, matrix_view<const U> freqs, heads_view<T> q_out,
                     heads_view<T> k_out, llama4_rope_options opt, A sign, context& ctx) {
    const bool shared = opt.freqs == rotary_table::shared;
    for_rows<B, A>(ctx, q.batch * q.seq_len, (q.heads + k.heads) * q.head_dim, [=] TIGON_FN(auto token) {
      const std::size_t b = token.i / q.seq_len, s = token.i % q.seq_len;
      const U* f = freqs.row(shared ? s : token.i);
      detail::for_heads_of_token<B>(q, k, q_out, k_out, b, s, [=](const T* from, detail::row_at<T> to) TIGON_LAMBDA {
        detail::turn_neighbours<B>(token, from, to, q.head_dim, f, sign);
      });
    });
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_ROTARY_LLAMA4_ROPE_KERNEL_HPP
