#include <tigon/ops/geglu.hpp>

#include "ops/gate.hpp"
#include "ops/table.hpp"

namespace tigon_bench {
namespace {

struct geglu_gate {
  template <class B, class V>
  static void forward(V a, V b, V c, tigon::context& ctx) {
    tigon::geglu_forward<B>(a, b, c, {}, ctx);
  }
  template <class B, class V>
  static void backward(V dc, V a, V b, V da, V db, tigon::context& ctx) {
    tigon::geglu_backward<B>(dc, a, b, da, db, {}, ctx);
  }
};

}  // namespace

op_entry geglu() { return gate_entry<geglu_gate>("geglu"); }

}  // namespace tigon_bench
