#include <tigon/ops/llama4_rope.hpp>

#include "ops/rotary.hpp"
#include "ops/table.hpp"

namespace tigon_bench {
namespace {

/// One table of complex numbers, in the place of the cosines.
struct llama4_rotary {
  static std::size_t rows(std::size_t, std::size_t seq_len) { return seq_len; }
  static std::size_t cols(std::size_t head_dim) { return head_dim; }
  template <class A>
  static void fill(tigon::matrix_view<A> freqs, tigon::matrix_view<A>, std::size_t head_dim) {
    for (std::size_t s = 0; s < freqs.rows; ++s)
      for (std::size_t j = 0; j < head_dim / 2; ++j) {
        const double angle = rotary_angle(s, j, head_dim);
        freqs.row(s)[2 * j] = static_cast<A>(std::cos(angle)),
                         freqs.row(s)[2 * j + 1] = static_cast<A>(std::sin(angle));
      }
  }
  template <class T, class A>
  static void turn(tigon::heads_view<T> x, tigon::matrix_view<A> freqs, tigon::matrix_view<A>, tigon::heads_view<T> y,
                   A sign, tigon::context& ctx) {
    passes::turn_neighbours<T, A>(ctx, passes::head_rows(x), freqs, {x.heads, x.seq_len}, passes::head_rows(y), sign);
  }
  template <class B, class H, class M>
  static void forward(H q, H k, M freqs, M, H q_out, H k_out, tigon::context& ctx) {
    tigon::llama4_rope_forward<B>(q, k, freqs, q_out, k_out, {}, ctx);
  }
  template <class B, class H, class M>
  static void backward(H dq_out, H dk_out, M freqs, M, H dq, H dk, tigon::context& ctx) {
    tigon::llama4_rope_backward<B>(dq_out, dk_out, freqs, dq, dk, {}, ctx);
  }
};

}  // namespace

op_entry llama4_rope() { return rotary_entry<llama4_rotary>("llama4_rope", {1, 2048, 32, 8, 128}); }

}  // namespace tigon_bench
