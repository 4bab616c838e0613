#include "ops/cross_entropy_divergence.hpp"

namespace tigon_bench {

op_entry cross_entropy_tvd() {
  return cross_entropy_divergence_entry("cross_entropy_tvd", []<class B, class T>(const request& r) {
    return cross_entropy_divergence_plan<B, T>(r, passes::distance::tvd, 0, 6e-5,
                                               [](const auto& logits, const auto& target, const auto& teacher,
                                                  const auto& loss, const auto& dlogits, tigon::context& ctx) {
                                                 tigon::cross_entropy_tvd_forward<B, T>(
                                                     logits.view(), target.span(), teacher.view(), {loss.span()},
                                                     dlogits.view(), {}, tigon::absent, ctx);
                                               });
  });
}

}  // namespace tigon_bench
