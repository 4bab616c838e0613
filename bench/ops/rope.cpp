#include <tigon/ops/rope.hpp>

#include "ops/rotary.hpp"
#include "ops/table.hpp"

namespace tigon_bench {
namespace {

struct rope_rotary : rotary_halves {
  static std::size_t rows(std::size_t, std::size_t seq_len) { return seq_len; }
  template <class B, class H, class M>
  static void forward(H q, H k, M cos, M sin, H q_out, H k_out, tigon::context& ctx) {
    tigon::rope_forward<B>(q, k, cos, sin, q_out, k_out, {}, ctx);
  }
  template <class B, class H, class M>
  static void backward(H dq_out, H dk_out, M cos, M sin, H dq, H dk, tigon::context& ctx) {
    tigon::rope_backward<B>(dq_out, dk_out, cos, sin, dq, dk, {}, ctx);
  }
};

}  // namespace

op_entry rope() { return rotary_entry<rope_rotary>("rope", {1, 2048, 32, 32, 128}); }

}  // namespace tigon_bench
