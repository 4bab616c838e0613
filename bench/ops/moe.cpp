#include <tigon/ops/moe.hpp>

#include "ops/experts.hpp"
#include "ops/products.hpp"
#include "ops/table.hpp"
#include "plain/products.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"

#include <memory>

namespace tigon_bench {
namespace {

/// Forward has three products for a pair of a token and an expert, backward six; `recompute` saves nothing and makes
/// two of the three again. Memory of this op means what it needs beside its results: what forward leaves, and scratch.
template <class B, class T>
plan moe_plan(const request& r) {
  const bool forward = has_forward(r.direction), backward = has_backward(r.direction);
  const bool saves = !std::same_as<B, plain> && r.variant != "recompute" && r.direction != mode::no_grad_forward;
  const tigon::moe_options opt{.layout = r.variant == "interleaved" ? tigon::gate_layout::interleaved
                                                                    : tigon::gate_layout::halves};
  const double products = (forward ? 3 : 0) + (backward ? (r.variant == "recompute" ? 8 : 6) : 0);
  plan p;
  p.limits.push_back(product_peak<T>(products * 2 * static_cast<double>(r.shape[0]) * static_cast<double>(r.shape[2]) *
                                     static_cast<double>(r.shape[3]) * static_cast<double>(r.shape[4])));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto m = std::make_shared<experts<T>>(r.shape, saves, backward);
    const auto saved = std::make_shared<tigon::moe_saved<T>>(tigon::moe_saved<T>{m->saved.view()});
    const auto steps = steps_for<B, passes::moe_steps<T>>(
        passes::moe_sizes{r.shape[0], r.shape[1], r.shape[2], r.shape[3], r.shape[4]}, backward);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        steps->forward(ctx, m->x.view(), {m->indices.view(), m->weights.view()}, {m->gate_up.view(), m->down.view()},
                       m->y.view());
      else if (saves)
        tigon::moe_forward<B>(m->x.view(), m->choices(), m->matrices(), m->y.view(), *saved, opt, ctx);
      else
        tigon::moe_forward_inference<B>(m->x.view(), m->choices(), m->matrices(), m->y.view(), opt, ctx);
    };
    if (!forward) run_forward();
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  if (!backward) return;
                  if constexpr (std::same_as<B, plain>)
                    steps->backward(ctx, m->dy.view(), m->x.view(), {m->indices.view(), m->weights.view()},
                                    {m->gate_up.view(), m->down.view()},
                                    {m->dx.view(), m->dgate_up.view(), m->ddown.view(), m->dweights.view()});
                  else if (saves)
                    tigon::moe_backward<B>(m->dy.view(), m->x.view(), m->choices(), m->matrices(), *saved,
                                           m->gradients(), opt, ctx);
                  else
                    tigon::moe_backward_recompute<B>(m->dy.view(), m->x.view(), m->choices(), m->matrices(),
                                                     m->gradients(), opt, ctx);
                },
            .restore = {},
            .output_bytes = m->saved.bytes() + bytes_of(steps)};
  };
  return p;
}

}  // namespace

op_entry moe() {
  const extents shape{2048, 16, 4, 2048, 768};
  return with_plain(
      {.name = "moe",
       .dims = "tokens x experts x top_k x hidden x intermediate",
       .dtypes = all_dtypes(),
       .variants = {{"default", shape, {mode::no_grad_forward, mode::forward, mode::backward, mode::full}},
                    {"interleaved", shape, {mode::forward, mode::backward, mode::full}},
                    {"recompute", shape, {mode::backward, mode::full}}},
       .backends = {},
       .make_plan = {}},
      []<class B, class T>(const request& r) { return moe_plan<B, T>(r); });
}

}  // namespace tigon_bench
