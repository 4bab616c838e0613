#include <tigon/ops/geglu.hpp>

#include "ops/gate.hpp"
#include "ops/table.hpp"
#include "plain/gates.hpp"

namespace tigon_bench {
namespace {

template <tigon::gelu_form Form>
struct geglu_gate {
  template <class B, class T>
  static void forward(tigon::matrix_view<T> a, tigon::matrix_view<T> b, tigon::matrix_view<T> c, tigon::context& ctx) {
    if constexpr (std::same_as<B, plain>)
      passes::gate_forward<T>(ctx, a, b, c, [](auto v) { return tigon::detail::gelu<Form, passes::bits<T>>::of(v); });
    else
      tigon::geglu_forward<B>(a, b, c, {.form = Form}, ctx);
  }
  template <class B, class T>
  static void backward(tigon::matrix_view<T> dc, tigon::matrix_view<T> a, tigon::matrix_view<T> b,
                       tigon::matrix_view<T> da, tigon::matrix_view<T> db, tigon::context& ctx) {
    if constexpr (std::same_as<B, plain>)
      passes::gate_backward<T>(
          ctx, dc, a, b, da, db, [](auto v) { return tigon::detail::gelu<Form, passes::bits<T>>::of(v); },
          [](auto v) { return tigon::detail::gelu<Form, passes::bits<T>>::with_slope(v)[1]; });
    else
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
