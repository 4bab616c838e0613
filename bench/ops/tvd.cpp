#include <tigon/losses/tvd.hpp>

#include "ops/divergence.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan tvd_plan(const request& r) {
  return divergence_plan<B, T>(
      r, {0, 1e-4, 0, 1e-4}, 2,
      [](auto student, auto teacher, auto loss, auto dstudent, tigon::context& ctx) {
        tigon::tvd_forward<B>(student, teacher, loss, dstudent, {}, tigon::absent, ctx);
      },
      [](auto student, auto teacher, auto upstream, auto dstudent, tigon::context& ctx) {
        tigon::tvd_backward<B>(student, teacher, upstream, dstudent, {}, tigon::absent, ctx);
      });
}

}  // namespace

op_entry tvd() {
  return {.name = "tvd",
          .dims = "tokens x vocab",
          .dtypes = all_dtypes(),
          .variants = {{"default", {1024, 32000}, {mode::forward, mode::backward, mode::full}},
                       {"in_place", {1024, 32000}, {mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return tvd_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
