#include <tigon/ops/swiglu.hpp>

#include "ops/gate.hpp"
#include "ops/table.hpp"
#include "support/backends.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan swiglu_plan(const request& r) {
  using view = tigon::matrix_view<T>;
  return gate_plan<T>(
      r, [](view a, view b, view c, tigon::context& ctx) { tigon::swiglu_forward<B>(a, b, c, {}, ctx); },
      [](view dc, view a, view b, view da, view db, tigon::context& ctx) {
        tigon::swiglu_backward<B>(dc, a, b, da, db, {}, ctx);
      });
}

}  // namespace

op_entry swiglu() {
  return {.name = "swiglu",
          .dims = "rows x cols",
          .dtypes = all_dtypes(),
          .variants = {{"default", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                       {"in_place", {2048, 4096}, {mode::forward, mode::backward}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return swiglu_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
