#include <tigon/ops/swiglu.hpp>

#include "ops/gate.hpp"
#include "ops/table.hpp"

namespace tigon_bench {
namespace {

struct swiglu_gate {
  template <class B, class V>
  static void forward(V a, V b, V c, tigon::context& ctx) {
    tigon::swiglu_forward<B>(a, b, c, {}, ctx);
  }
  template <class B, class V>
  static void backward(V dc, V a, V b, V da, V db, tigon::context& ctx) {
    tigon::swiglu_backward<B>(dc, a, b, da, db, {}, ctx);
  }
};

}  // namespace

op_entry swiglu() { return gate_entry<swiglu_gate>("swiglu"); }

}  // namespace tigon_bench
