#include <tigon/ops/swiglu.hpp>

#include "ops/gate.hpp"
#include "ops/table.hpp"
#include "plain/gates.hpp"

namespace tigon_bench {
namespace {

struct swiglu_gate {
  template <class B, class T>
  static void forward(tigon::matrix_view<T> a, tigon::matrix_view<T> b, tigon::matrix_view<T> c, tigon::context& ctx) {
    if constexpr (std::same_as<B, plain>)
      passes::gate_forward<T>(ctx, a, b, c, [](auto v) { return tigon::detail::silu<passes::bits<T>>(v); });
    else
      tigon::swiglu_forward<B>(a, b, c, {}, ctx);
  }
  template <class B, class T>
  static void backward(tigon::matrix_view<T> dc, tigon::matrix_view<T> a, tigon::matrix_view<T> b,
                       tigon::matrix_view<T> da, tigon::matrix_view<T> db, tigon::context& ctx) {
    if constexpr (std::same_as<B, plain>)
      passes::gate_backward<T>(
          ctx, dc, a, b, da, db, [](auto v) { return tigon::detail::silu<passes::bits<T>>(v); },
          [](auto v) { return tigon::detail::silu_and_slope<passes::bits<T>>(v)[1]; });
    else
      tigon::swiglu_backward<B>(dc, a, b, da, db, {}, ctx);
  }
};

}  // namespace

op_entry swiglu() { return gate_entry<swiglu_gate>("swiglu"); }

}  // namespace tigon_bench
