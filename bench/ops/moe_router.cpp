#include <tigon/ops/moe_router.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>
#include <string>

namespace tigon_bench {
namespace {

/// Eight groups of which four are kept, as DeepSeek-V3 has it.
tigon::moe_router_options options_of(const std::string& variant, std::size_t experts) {
  tigon::moe_router_options opt;
  if (variant != "softmax") opt.score = tigon::router_score::sigmoid;
  if (variant == "sqrt_softplus") opt.score = tigon::router_score::sqrt_softplus;
  if (variant == "groups" && experts % 8 == 0) opt.groups = 8, opt.kept_groups = 4;
  return opt;
}

/// Reads the logits; backward writes as many gradients.
template <class B, class T>
plan moe_router_plan(const request& r) {
  const std::size_t tokens = r.shape[0], experts = r.shape[1], k = r.shape[2];
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  const bool biased = r.variant != "softmax";
  const tigon::moe_router_options opt = options_of(r.variant, experts);
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(1, 0, tokens * experts * sizeof(T)));
  if (backward) p.limits.push_back(limit_request::stream(0, 1, tokens * experts * sizeof(T)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto logits = uniform_matrix<T>(tokens, experts, -3, 3, 1), dweights = uniform_matrix<T>(tokens, k, -1, 1, 2);
    const auto bias = uniform<T>(experts, -0.1, 0.1, 3);
    const matrix<std::int32_t> indices(tokens, k);
    const matrix<T> weights(tokens, k), dlogits(tokens, experts);
    const auto run_forward = [=, &ctx] {
      if (biased)
        tigon::moe_router_forward<B>(logits.view(), bias, indices.view(), weights.view(), opt, ctx);
      else
        tigon::moe_router_forward<B>(logits.view(), tigon::absent, indices.view(), weights.view(), opt, ctx);
    };
    if (!forward) run_forward();
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  if (backward)
                    tigon::moe_router_backward<B>(dweights.view(), logits.view(), indices.view(), dlogits.view(), opt,
                                                  ctx);
                },
            .restore = {},
            .output_bytes = indices.bytes() + weights.bytes() + dlogits.bytes()};
  };
  return p;
}

}  // namespace

op_entry moe_router() {
  const extents shape{8192, 128, 8};
  const std::vector<mode> modes{mode::forward, mode::backward, mode::full};
  return {.name = "moe_router",
          .dims = "tokens x experts x top_k",
          .dtypes = all_dtypes(),
          .variants = {{"softmax", shape, modes},
                       {"sigmoid", shape, modes},
                       {"sqrt_softplus", shape, modes},
                       {"groups", shape, modes}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return moe_router_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
