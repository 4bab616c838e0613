// Rotary embedding with three positions a token: as rope, with the token's row of the table put together in the buffer
// out of the rows of time, height and width.
#ifndef TIGON_BACKENDS_ASCEND_QWEN2VL_MROPE_HPP
#define TIGON_BACKENDS_ASCEND_QWEN2VL_MROPE_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>

namespace tigon {

template <>
struct kernel<op::qwen2vl_mrope, backends::ascend> {
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
    using plan = ub::plan<B, op::qwen2vl_mrope, tiling::pass::forward, A>;
    const std::size_t half = q.head_dim / 2, count = q.batch * q.seq_len;
    if (half == 0) return;
    ub::for_programs<plan>(ctx, count, plan::programs, [=](auto& core, std::size_t, auto tokens) TIGON_LAMBDA {
      using heads_in = matrix_view<const T>;
      using heads_out = matrix_view<T>;
      using table = in_vector<U>;
      auto tiles = core.place(heads_in{}, heads_in{}, table{}, table{}, heads_out{}, heads_out{});
      std::apply(
          [&](auto& ut, auto& vt, auto& ct, auto& zt, auto& to_u, auto& to_v) TIGON_LAMBDA {
            tokens([&](std::size_t token) TIGON_LAMBDA {
              const std::size_t b = token / q.seq_len, s = token % q.seq_len;
              ct.held_col = zt.held_col = ub::nothing;
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
                  for (std::size_t j = 0; j < core.col_blocks(); ++j) {
                    core.cols_at(j);
                    gather(core, ct, cos, token, count, opt);
                    gather(core, zt, sin, token, count, opt);
                    core.part(ub::reads(ut, vt, ct, zt), ub::writes(to_u, to_v),
                              [=](auto row, auto uv, auto vv, auto cv, auto zv, auto ru, auto rv) TIGON_LAMBDA {
                                row.map(reads(uv, vv, cv, zv), writes(ru, rv), [=](auto u, auto v, auto c, auto z) {
                                  return detail::rotation()(u, v, c, z * sign);
                                });
                              });
                  }
                }
              }
            });
          },
          tiles);
    });
  }

  /// The present columns of a token's table, unless they are there: from each of the three rows the pairs that it
  /// rotates.
  template <class Core, element U>
  static TIGON_INLINE void gather(Core& core, ub::tile<vector_view<const U>>& table, matrix_view<const U> from,
                                  std::size_t token, std::size_t tokens, const qwen2vl_mrope_options& opt) {
    if (table.held_col == core.col) return;
    const std::size_t begin = core.col, end = begin + core.col_count;
    for (std::size_t t = 0, first = 0; t < 3; first += opt.sections[t++]) {
      const std::size_t low = std::max(first, begin), high = std::min(first + opt.sections[t], end);
      if (low >= high) continue;
      core.col = low, core.col_count = high - low;
      ub::tile<vector_view<const U>> section{{from.row(t * tokens + token), high}, table.data + (low - begin)};
      core.fetch(section);
    }
    core.col = begin, core.col_count = end - begin;
    table.held_col = begin;
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_QWEN2VL_MROPE_HPP
