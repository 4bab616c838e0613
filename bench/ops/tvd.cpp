#include <tigon/losses/tvd.hpp>

#include "ops/divergence.hpp"
#include "plain/losses.hpp"
#include "plain/provider.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan tvd_plan(const request& r) {
  return divergence_plan<B, T>(
      r, {0, 1e-4, 0, 1e-4}, 2,
      [](auto student, auto teacher, auto loss, auto dstudent, tigon::context& ctx) {
        if constexpr (std::same_as<B, plain>)
          passes::tvd<T>(ctx, student, teacher, loss.data(), dstudent);
        else
          tigon::tvd_forward<B>(student, teacher, loss, dstudent, {}, tigon::absent, ctx);
      },
      [](auto student, auto teacher, auto upstream, auto dstudent, tigon::context& ctx) {
        if constexpr (!std::same_as<B, plain>)
          tigon::tvd_backward<B>(student, teacher, upstream, dstudent, {}, tigon::absent, ctx);
      });
}

}  // namespace

op_entry tvd() {
  return with_plain({.name = "tvd",
                     .dims = "tokens x vocab",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {1024, 32000}, {mode::forward, mode::backward, mode::full}},
                                  {"in_place", {1024, 32000}, {mode::full}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return tvd_plan<B, T>(r); });
}

}  // namespace tigon_bench
