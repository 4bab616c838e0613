#include <tigon/ops/mlp.hpp>

#include "ops/gated_mlp.hpp"
#include "ops/table.hpp"

#include <memory>

namespace tigon_bench {
namespace {

/// Forward has three products, backward six; `recompute` saves nothing and makes two of the three again. Memory of this
/// op means what it needs beside its results: what forward leaves for backward, and scratch.
template <class B, class T>
plan mlp_plan(const request& r) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], intermediate = r.shape[2];
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  const bool saves = r.variant == "default";
  plan p;
  p.limits.push_back(product_limit<T>(r, (forward ? 3 : 0) + (backward ? (saves ? 6 : 8) : 0)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto m = std::make_shared<gated_mlp<T>>(tokens, hidden, intermediate, forward || saves, backward);
    const matrix<T> memory = saves ? matrix<T>(tokens, 3 * intermediate) : matrix<T>();
    const auto saved = std::make_shared<tigon::mlp_saved<T>>(tigon::mlp_saved<T>{memory.view()});
    const auto run_forward = [=, &ctx] {
      if (saves)
        tigon::mlp_forward<B>(m->x.view(), tigon::mlp_weights{m->wg.view(), m->wu.view(), m->wd.view()}, m->y.view(),
                              *saved, {}, ctx);
      else
        tigon::mlp_forward_inference<B>(m->x.view(), tigon::mlp_weights{m->wg.view(), m->wu.view(), m->wd.view()},
                                        m->y.view(), {}, ctx);
    };
    const auto run_backward = [=, &ctx] {
      if (saves)
        tigon::mlp_backward<B>(m->dy.view(), m->x.view(), tigon::mlp_weights{m->wg.view(), m->wu.view(), m->wd.view()},
                               *saved, m->dx.view(), tigon::mlp_weights{m->dwg.view(), m->dwu.view(), m->dwd.view()},
                               {}, ctx);
      else
        tigon::mlp_backward_recompute<B>(m->dy.view(), m->x.view(),
                                         tigon::mlp_weights{m->wg.view(), m->wu.view(), m->wd.view()}, m->dx.view(),
                                         tigon::mlp_weights{m->dwg.view(), m->dwu.view(), m->dwd.view()}, {}, ctx);
    };
    runnable run;
    run.run = [=] {
      (void)memory;
      if (forward) run_forward();
      saved->filled = true;  // a few calls follow each other on what they leave: as much work, and small numbers still
      if (backward) run_backward();
    };
    if (saves && !forward) run.restore = run_forward;
    run.output_bytes = memory.bytes();
    return run;
  };
  return p;
}

}  // namespace

op_entry mlp() {
  const extents shape{2048, 2048, 5632};
  return {.name = "mlp",
          .dims = "tokens x hidden x intermediate",
          .dtypes = all_dtypes(),
          .variants = {{"default", shape, {mode::forward, mode::backward, mode::full}},
                       {"inference", shape, {mode::forward}},
                       {"recompute", shape, {mode::backward, mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return mlp_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
