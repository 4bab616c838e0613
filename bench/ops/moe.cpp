#include <tigon/ops/moe.hpp>

#include "ops/experts.hpp"
#include "ops/products.hpp"
#include "ops/table.hpp"
#include "support/backends.hpp"

#include <memory>

namespace tigon_bench {
namespace {

/// Forward has three products for a pair of a token and an expert, backward six; `recompute` saves nothing and makes
/// two of the three again. Memory of this op means what it needs beside its results: what forward leaves, and scratch.
template <class B, class T>
plan moe_plan(const request& r) {
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  const bool saves = r.variant == "default" || r.variant == "interleaved";
  const tigon::moe_options opt{.layout = r.variant == "interleaved" ? tigon::gate_layout::interleaved
                                                                    : tigon::gate_layout::halves};
  const double products = (forward ? 3 : 0) + (backward ? (saves ? 6 : 8) : 0);
  plan p;
  p.limits.push_back(product_peak<T>(products * 2 * static_cast<double>(r.shape[0]) * static_cast<double>(r.shape[2]) *
                                     static_cast<double>(r.shape[3]) * static_cast<double>(r.shape[4])));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto m = std::make_shared<experts<T>>(r.shape, saves, backward);
    const auto saved = std::make_shared<tigon::moe_saved<T>>(tigon::moe_saved<T>{m->saved.view()});
    const auto run_forward = [=, &ctx] {
      if (saves)
        tigon::moe_forward<B>(m->x.view(), m->choices(), m->matrices(), m->y.view(), *saved, opt, ctx);
      else
        tigon::moe_forward_inference<B>(m->x.view(), m->choices(), m->matrices(), m->y.view(), opt, ctx);
    };
    if (saves && !forward) run_forward();
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  if (!backward) return;
                  if (saves)
                    tigon::moe_backward<B>(m->dy.view(), m->x.view(), m->choices(), m->matrices(), *saved,
                                           m->gradients(), opt, ctx);
                  else
                    tigon::moe_backward_recompute<B>(m->dy.view(), m->x.view(), m->choices(), m->matrices(),
                                                     m->gradients(), opt, ctx);
                },
            .restore = {},
            .output_bytes = m->saved.bytes()};
  };
  return p;
}

}  // namespace

op_entry moe() {
  const extents shape{2048, 16, 4, 2048, 768};
  return {.name = "moe",
          .dims = "tokens x experts x top_k x hidden x intermediate",
          .dtypes = all_dtypes(),
          .variants = {{"default", shape, {mode::forward, mode::backward, mode::full}},
                       {"interleaved", shape, {mode::forward, mode::backward, mode::full}},
                       {"inference", shape, {mode::forward}},
                       {"recompute", shape, {mode::backward, mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return moe_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
