#include <tigon/comm/communicator.hpp>
#include <tigon/ops/expert_parallel_moe.hpp>

#include "ops/experts.hpp"
#include "ops/products.hpp"
#include "ops/table.hpp"
#include "support/backends.hpp"

#include <memory>

namespace tigon_bench {
namespace {

/// One rank with all experts: what the exchange costs beside moe, without a network. Backward makes g and u again.
template <class B, class T>
plan expert_parallel_moe_plan(const request& r) {
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  plan p;
  p.limits.push_back(product_peak<T>(((forward ? 3 : 0) + (backward ? 8 : 0)) * 2 * static_cast<double>(r.shape[0]) *
                                     static_cast<double>(r.shape[2]) * static_cast<double>(r.shape[3]) *
                                     static_cast<double>(r.shape[4])));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto m = std::make_shared<experts<T>>(r.shape, false, backward);
    return {.run =
                [=, &ctx] {
                  const tigon::comm::serial alone;
                  if (forward)
                    tigon::expert_parallel_moe_forward<B>(alone, m->x.view(), m->choices(), m->matrices(), m->y.view(),
                                                          {}, ctx);
                  if (backward)
                    tigon::expert_parallel_moe_backward<B>(alone, m->dy.view(), m->x.view(), m->choices(),
                                                           m->matrices(), m->gradients(), {}, ctx);
                },
            .restore = {},
            .output_bytes = 0};
  };
  return p;
}

}  // namespace

op_entry expert_parallel_moe() {
  return {.name = "expert_parallel_moe",
          .dims = "tokens x experts x top_k x hidden x intermediate",
          .dtypes = all_dtypes(),
          .variants = {{"default", {2048, 16, 4, 2048, 768}, {mode::forward, mode::backward, mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return expert_parallel_moe_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
