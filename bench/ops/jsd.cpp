#include <tigon/losses/jsd.hpp>

#include "ops/divergence.hpp"
#include "plain/losses.hpp"
#include "plain/provider.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan jsd_plan(const request& r) {
  const double beta = r.variant == "forward_kl" ? 0 : r.variant == "reverse_kl" ? 1 : 0.5;
  return divergence_plan<B, T>(
      r, {-14, -8, -14, -8}, 1,
      [=](auto student, auto teacher, auto loss, auto dstudent, tigon::context& ctx) {
        if constexpr (std::same_as<B, plain>)
          passes::jsd<T>(ctx, student, teacher, loss.data(), dstudent);
        else
          tigon::jsd_forward<B>(student, teacher, loss, dstudent, {.beta = beta}, tigon::absent, ctx);
      },
      [](auto saved, auto, auto upstream, auto dstudent, tigon::context& ctx) {
        if constexpr (!std::same_as<B, plain>) tigon::jsd_backward<B>(saved, upstream, dstudent, ctx);
      });
}

}  // namespace

op_entry jsd() {
  const std::vector<mode> both{mode::forward, mode::full};
  return with_plain({.name = "jsd",
                     .dims = "tokens x vocab",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {1024, 32000}, {mode::forward, mode::backward, mode::full}},
                                  {"forward_kl", {1024, 32000}, both},
                                  {"reverse_kl", {1024, 32000}, both}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return jsd_plan<B, T>(r); });
}

}  // namespace tigon_bench
