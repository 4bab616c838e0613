#include <tigon/ops/rope.hpp>

#include "ops/rotary.hpp"
#include "ops/table.hpp"

namespace tigon_bench {
namespace {

struct rope_rotary : rotary_halves {
  static std::size_t rows(std::size_t, std::size_t seq_len) { return seq_len; }
  template <class T, class A>
  static void turn(tigon::heads_view<T> x, tigon::matrix_view<A> cos, tigon::matrix_view<A> sin, tigon::heads_view<T> y,
                   A sign, tigon::context& ctx) {
    passes::turn_halves<T, A>(ctx, passes::head_rows(x), cos, sin, {x.heads, x.seq_len}, passes::head_rows(y), sign);
  }
  template <class B, class H, class M>
  static void forward(H q, H k, M cos, M sin, H q_out, H k_out, tigon::context& ctx) {
    tigon::rope_forward<B>(q, k, cos, sin, q_out, k_out, {}, ctx);
  }
  template <class B, class H, class M>
  static void backward(H dq_out, H dk_out, M cos, M sin, H dq, H dk, tigon::context& ctx) {
    tigon::rope_backward<B>(dq_out, dk_out, cos, sin, dq, dk, {}, ctx);
  }
};

/// Pairs of neighbours, as DeepSeek has them.
struct neighbours_rotary : rope_rotary {
  static constexpr tigon::rope_options options{.pairs = tigon::rotary_pairs::neighbours};
  template <class B, class H, class M>
  static void forward(H q, H k, M cos, M sin, H q_out, H k_out, tigon::context& ctx) {
    tigon::rope_forward<B>(q, k, cos, sin, q_out, k_out, options, ctx);
  }
  template <class B, class H, class M>
  static void backward(H dq_out, H dk_out, M cos, M sin, H dq, H dk, tigon::context& ctx) {
    tigon::rope_backward<B>(dq_out, dk_out, cos, sin, dq, dk, options, ctx);
  }
};

}  // namespace

op_entry rope() {
  op_entry entry = rotary_entry<rope_rotary>("rope", {1, 2048, 32, 32, 128});
  entry.variants.push_back({"neighbours", {1, 2048, 32, 32, 128}, {mode::forward, mode::backward, mode::full}});
  const op_entry neighbours = rotary_entry<neighbours_rotary>("rope", {});
  entry.make_plan = [halves = entry.make_plan, neighbours = neighbours.make_plan](const request& r) {
    return r.variant == "neighbours" ? neighbours(r) : halves(r);
  };
  return entry;
}

}  // namespace tigon_bench
