#include <tigon/ops/qwen2vl_mrope.hpp>

#include "ops/rotary.hpp"
#include "ops/table.hpp"

namespace tigon_bench {
namespace {

struct mrope_rotary : rotary_halves {
  static std::size_t rows(std::size_t batch, std::size_t seq_len) { return 3 * batch * seq_len; }
  /// 16, 24 and 24 of 64 pairs, as the models have them.
  static tigon::qwen2vl_mrope_options options(std::size_t head_dim) {
    const std::size_t part = head_dim * 3 / 16;
    return {.sections = {head_dim / 2 - 2 * part, part, part}};
  }
  template <class T, class A>
  static void turn(tigon::heads_view<T> x, tigon::matrix_view<A> cos, tigon::matrix_view<A> sin, tigon::heads_view<T> y,
                   A sign, tigon::context& ctx) {
    const std::size_t tokens = x.batch * x.seq_len;
    const matrix<A> c(tokens, x.head_dim / 2), z(tokens, x.head_dim / 2);
    passes::section_table<A>(ctx, cos, options(x.head_dim).sections, c.view());
    passes::section_table<A>(ctx, sin, options(x.head_dim).sections, z.view());
    passes::turn_halves<T, A>(ctx, passes::head_rows(x), c.view(), z.view(), {x.heads, x.seq_len, true},
                              passes::head_rows(y), sign);
  }
  template <class B, class H, class M>
  static void forward(H q, H k, M cos, M sin, H q_out, H k_out, tigon::context& ctx) {
    tigon::qwen2vl_mrope_forward<B>(q, k, cos, sin, q_out, k_out, options(q.head_dim), ctx);
  }
  template <class B, class H, class M>
  static void backward(H dq_out, H dk_out, M cos, M sin, H dq, H dk, tigon::context& ctx) {
    tigon::qwen2vl_mrope_backward<B>(dq_out, dk_out, cos, sin, dq, dk, options(dq.head_dim), ctx);
  }
};

}  // namespace

op_entry qwen2vl_mrope() { return rotary_entry<mrope_rotary>("qwen2vl_mrope", {1, 2048, 32, 8, 128}); }

}  // namespace tigon_bench
