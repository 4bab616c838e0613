// Rotary embedding: for each token the table's row, then as many heads as fit, each in two halves. Heads that are
// rotated in part, or by pairs of neighbours, are the parent's.
#ifndef TIGON_BACKENDS_ASCEND_ROPE_HPP
#define TIGON_BACKENDS_ASCEND_ROPE_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/rope.hpp>

namespace tigon {

template <>
struct kernel<op::rope, backends::ascend> {
  template <class>
  using saved = no_state;
  using parents = kernel_for<op::rope, backends::ascend::parent>;

  template <backend B, element T, element U>
  static void forward(in_heads<T> q, in_heads<T> k, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> q_out,
                      heads_view<T> k_out, rope_options opt, context& ctx) {
    if (!rotates_halves(opt, q.head_dim))
      parents::template forward<B, T, U>(q, k, cos, sin, q_out, k_out, opt, ctx);
    else
      rotate<B>(q, k, cos, sin, q_out, k_out, accumulator_t<T>(1), ctx);
  }
  template <backend B, element T, element U>
  static void backward(in_heads<T> dq_out, in_heads<T> dk_out, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> dq,
                       heads_view<T> dk, rope_options opt, context& ctx) {
    if (!rotates_halves(opt, dq_out.head_dim))
      parents::template backward<B, T, U>(dq_out, dk_out, cos, sin, dq, dk, opt, ctx);
    else
      rotate<B>(dq_out, dk_out, cos, sin, dq, dk, accumulator_t<T>(-1), ctx);
  }

  static bool rotates_halves(rope_options opt, std::size_t head_dim) {
    return opt.rotary_dim >= head_dim && opt.pairs == rotary_pairs::halves;
  }

  template <backend B, element T, element U, class A>
  static void rotate(heads_view<const T> q, heads_view<const T> k, matrix_view<const U> cos, matrix_view<const U> sin,
                     heads_view<T> q_out, heads_view<T> k_out, A sign, context& ctx) {
    using plan = ub::plan<B, op::rope, tiling::pass::forward, A>;
    const std::size_t half = q.head_dim / 2;
    if (half == 0) return;
    const bool shared = cos.rows == q.seq_len;
    ub::for_programs<plan>(
        ctx, q.batch * q.seq_len, plan::programs, [=](auto& core, std::size_t, auto tokens) TIGON_LAMBDA {
          using heads_in = matrix_view<const T>;
          using heads_out = matrix_view<T>;
          using table = in_vector<U>;
          auto tiles = core.place(heads_in{}, heads_in{}, table{}, table{}, heads_out{}, heads_out{});
          std::apply(
              [&](auto& ut, auto& vt, auto& ct, auto& zt, auto& to_u, auto& to_v) TIGON_LAMBDA {
                tokens([&](std::size_t token) TIGON_LAMBDA {
                  const std::size_t b = token / q.seq_len, s = token % q.seq_len, angle = shared ? s : token;
                  core.point(ct, table{cos.row(angle), half});
                  core.point(zt, table{sin.row(angle), half});
                  for (const bool of_q : {true, false}) {
                    const heads_view<const T> in = of_q ? q : k;
                    const heads_view<T> out = of_q ? q_out : k_out;
                    core.point(ut, heads_in{in.at(b, 0, s), in.heads, half, in.head_stride});
                    core.point(vt, heads_in{in.at(b, 0, s) + half, in.heads, half, in.head_stride});
                    core.point(to_u, heads_out{out.at(b, 0, s), in.heads, half, out.head_stride});
                    core.point(to_v, heads_out{out.at(b, 0, s) + half, in.heads, half, out.head_stride});
                    core.shape(in.heads, half, plan::cut_of(half));
                    for (std::size_t block = 0; block < core.row_blocks(); ++block) {
                      core.rows_at(block);
                      core.pass(ub::reads(ut, vt, ct, zt), ub::writes(to_u, to_v),
                                [=](auto row, auto uv, auto vv, auto cv, auto zv, auto ru, auto rv) TIGON_LAMBDA {
                                  row.map(reads(uv, vv, cv, zv), writes(ru, rv), [=](auto u, auto v, auto c, auto z) {
                                    return detail::rotation()(u, v, c, z * sign);
                                  });
                                });
                    }
                  }
                });
              },
              tiles);
        });
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_ROPE_HPP
