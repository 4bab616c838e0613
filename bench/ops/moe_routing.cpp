#include <tigon/ops/moe_routing.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {
namespace {

/// Reads the indices, and writes three arrays of as many numbers.
template <class B>
plan moe_routing_plan(const request& r) {
  const std::size_t tokens = r.shape[0], experts = r.shape[1], k = r.shape[2];
  plan p;
  p.limits.push_back(limit_request::stream(1, 3, tokens * k * sizeof(std::int32_t)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto indices = uniform_matrix<std::int32_t>(tokens, k, 0, static_cast<double>(experts), 1);
    const buffer<std::int32_t> offsets(experts + 1), gather(tokens * k), scatter(tokens * k), positions(tokens * k);
    return {.run =
                [=, &ctx] {
                  const tigon::moe_order<std::int32_t> to{.counts = {},
                                                          .offsets = offsets.span(),
                                                          .gather = gather.span(),
                                                          .scatter = scatter.span(),
                                                          .positions = positions.span()};
                  tigon::moe_routing_forward<B>(indices.view(), experts, to, ctx);
                },
            .restore = {},
            .output_bytes = 3 * gather.bytes() + offsets.bytes()};
  };
  return p;
}

}  // namespace

op_entry moe_routing() {
  return {.name = "moe_routing",
          .dims = "tokens x experts x top_k",
          .dtypes = {dtype::f32},
          .variants = {{"default", {8192, 128, 8}, {mode::forward}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class>() { return moe_routing_plan<B>(r); });
          }};
}

}  // namespace tigon_bench
