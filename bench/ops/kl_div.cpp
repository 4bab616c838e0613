#include <tigon/losses/kl_div.hpp>

#include "ops/divergence.hpp"
#include "plain/losses.hpp"
#include "plain/provider.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan kl_div_plan(const request& r) {
  const bool logs = r.variant == "log_target";
  const tigon::kl_div_options opt{.log_target = logs};
  return divergence_plan<B, T>(
      r, {-14, -8, logs ? -14.0 : 0.0, logs ? -8.0 : 1e-4}, 1,
      [=](auto student, auto teacher, auto loss, auto dstudent, tigon::context& ctx) {
        if constexpr (std::same_as<B, plain>)
          passes::kl_div<T>(ctx, student, teacher, loss.data(), dstudent);
        else
          tigon::kl_div_forward<B>(student, teacher, loss, dstudent, opt, ctx);
      },
      [=](auto, auto teacher, auto upstream, auto dstudent, tigon::context& ctx) {
        if constexpr (!std::same_as<B, plain>) tigon::kl_div_backward<B>(teacher, upstream, dstudent, opt, ctx);
      });
}

}  // namespace

op_entry kl_div() {
  const std::vector<mode> all{mode::forward, mode::backward, mode::full};
  return with_plain({.name = "kl_div",
                     .dims = "tokens x vocab",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {1024, 32000}, all}, {"log_target", {1024, 32000}, all}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return kl_div_plan<B, T>(r); });
}

}  // namespace tigon_bench
