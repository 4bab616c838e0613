#include <tigon/ops/geglu.hpp>

#include "ops/gate.hpp"
#include "ops/table.hpp"
#include "support/backends.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan geglu_plan(const request& r) {
  using view = tigon::matrix_view<T>;
  return gate_plan<T>(
      r, [](view a, view b, view c, tigon::context& ctx) { tigon::geglu_forward<B>(a, b, c, {}, ctx); },
      [](view dc, view a, view b, view da, view db, tigon::context& ctx) {
        tigon::geglu_backward<B>(dc, a, b, da, db, {}, ctx);
      });
}

}  // namespace

op_entry geglu() {
  return {.name = "geglu",
          .dims = "rows x cols",
          .dtypes = all_dtypes(),
          .variants = {{"default", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                       {"in_place", {2048, 4096}, {mode::forward, mode::backward}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return geglu_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
