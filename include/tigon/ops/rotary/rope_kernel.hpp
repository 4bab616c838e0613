// The generic kernel of rope.
#ifndef TIGON_OPS_ROTARY_ROPE_KERNEL_HPP
#define TIGON_OPS_ROTARY_ROPE_KERNEL_HPP

#include <tigon/ops/rotary/rope_options.hpp>
#include <tigon/ops/rotary/rotation.hpp>

namespace tigon {

template <>
struct kernel<op::rope, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, element U>
  static void forward(in_heads<T> q, in_heads<T> k, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> q_out,
                      heads_view<T> k_out, rope_options opt, context& ctx) {
    rotate<B>(q, k, detail::rotary_tables<U>{cos, sin}, q_out, k_out, opt, accumulator_t<T>(1), ctx);
  }

  template <backend B, element T, element U>
  static void backward(in_heads<T> dq_out, in_heads<T> dk_out, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> dq,
                       heads_view<T> dk, rope_options opt, context& ctx) {
    rotate<B>(dq_out, dk_out, detail::rotary_tables<U>{cos, sin}, dq, dk, opt, accumulator_t<T>(-1), ctx);
  }

  template <backend B, element T, element U, class A>
  static void rotate(heads_view<const T> q, heads_view<const T> k, detail::rotary_tables<U> tables, heads_view<T> q_out,
                     heads_view<T> k_out, rope_options opt, A sign, context& ctx) {
    if (opt.pairs == rotary_pairs::halves)
      rotate_pairs<rotary_pairs::halves, B>(q, k, tables, q_out, k_out, opt, sign, ctx);
    else
      rotate_pairs<rotary_pairs::neighbours, B>(q, k, tables, q_out, k_out, opt, sign, ctx);
  }

  /// A loop for each way to pair: a branch inside would be taken for every head.
  template <rotary_pairs P, backend B, element T, element U, class A>
  static void rotate_pairs(heads_view<const T> q, heads_view<const T> k, detail::rotary_tables<U> tables,
                           heads_view<T> q_out, heads_view<T> k_out, rope_options opt, A sign, context& ctx) {
    const matrix_view<const U> cos = tables.cos, sin = tables.sin;
    const detail::rotated_part part(q.head_dim, opt.rotary_dim, opt.columns, opt.pairs);
    const std::size_t half = part.half(), rest = q.head_dim - part.count, other = part.first == 0 ? part.count : 0;
    const bool shared = cos.rows == q.seq_len;
    for_rows<B, A>(ctx, q.batch * q.seq_len, (q.heads + k.heads) * q.head_dim, [=] TIGON_FN(auto token) {
      const std::size_t b = token.i / q.seq_len, s = token.i % q.seq_len, angle = shared ? s : token.i;
      const in_vector<U> c{cos.row(angle), half}, z{sin.row(angle), half};
      detail::for_heads_of_token<B>(q, k, q_out, k_out, b, s, [=](const T* from, detail::row_at<T> to) TIGON_LAMBDA {
        part.template turn<P>(token, from, to, c, z, sign);
        if (rest != 0 && from != to.data)
          token.part(0, rest).map(reads(in_vector<T>{from + other, rest}),
                                  writes(detail::row_at<T>{to.data + other, to.bytes}), [](auto v) { return v; });
      });
    });
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_ROTARY_ROPE_KERNEL_HPP
