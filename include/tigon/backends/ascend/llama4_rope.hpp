// Rotary embedding, neighbours paired: for each token the row of the table, then as many heads as fit.
#ifndef TIGON_BACKENDS_ASCEND_LLAMA4_ROPE_HPP
#define TIGON_BACKENDS_ASCEND_LLAMA4_ROPE_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/llama4_rope.hpp>

namespace tigon {

template <>
struct kernel<op::llama4_rope, backends::ascend> {
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
    using plan = ub::plan<B, op::llama4_rope, tiling::pass::forward, A>;
    static_assert(plan::block % 2 == 0, "tigon: no pair lies in two blocks");
    const std::size_t d = q.head_dim;
    if (d == 0) return;
    const bool shared = opt.freqs == rotary_table::shared;
    ub::for_programs<plan>(
        ctx, q.batch * q.seq_len, plan::programs, [=](auto& core, std::size_t, auto tokens) TIGON_LAMBDA {
          auto tiles = core.place(matrix_view<const T>{}, in_vector<U>{}, matrix_view<T>{});
          std::apply(
              [&](auto& from, auto& table, auto& to) TIGON_LAMBDA {
                tokens([&](std::size_t token) TIGON_LAMBDA {
                  const std::size_t b = token / q.seq_len, s = token % q.seq_len;
                  core.point(table, in_vector<U>{freqs.row(shared ? s : token), d});
                  for (const bool of_q : {true, false}) {
                    const heads_view<const T> in = of_q ? q : k;
                    const heads_view<T> out = of_q ? q_out : k_out;
                    core.point(from, matrix_view<const T>{in.at(b, 0, s), in.heads, d, in.head_stride});
                    core.point(to, matrix_view<T>{out.at(b, 0, s), in.heads, d, out.head_stride});
                    core.shape(in.heads, d, plan::cut_of(d));
                    for (std::size_t block = 0; block < core.row_blocks(); ++block) {
                      core.rows_at(block);
                      core.pass(ub::reads(from, table), ub::writes(to),
                                [=](auto row, auto head, auto f, auto turned) TIGON_LAMBDA {
                                  detail::turn_neighbours<B>(row, head.data, detail::row_at<T>{turned.data, 0},
                                                             row.cols, f.data, sign);
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

#endif  // TIGON_BACKENDS_ASCEND_LLAMA4_ROPE_HPP
