#include <tigon/ops/geglu.hpp>

#include "ops/gate.hpp"
#include "ops/table.hpp"

namespace tigon_bench {
namespace {

template <tigon::gelu_form Form>
struct geglu_gate {
  template <class B, class V>
  static void forward(V a, V b, V c, tigon::context& ctx) {
    tigon::geglu_forward<B>(a, b, c, {.form = Form}, ctx);
  }
  template <class B, class V>
  static void backward(V dc, V a, V b, V da, V db, tigon::context& ctx) {
    tigon::geglu_backward<B>(dc, a, b, da, db, {.form = Form}, ctx);
  }
};

}  // namespace

op_entry geglu() {
  op_entry entry = gate_entry<geglu_gate<tigon::gelu_form::tanh>>("geglu");
  const op_entry exact = gate_entry<geglu_gate<tigon::gelu_form::erf>>("geglu");
  entry.variants.push_back({"erf", {2048, 4096}, {mode::forward, mode::backward}});
  entry.make_plan = [tanh = entry.make_plan, erf = exact.make_plan](const request& r) {
    return r.variant == "erf" ? erf(r) : tanh(r);
  };
  return entry;
}

}  // namespace tigon_bench
