#include <tigon/ops/mlp.hpp>

#include "ops/gated_mlp.hpp"
#include "ops/table.hpp"
#include "plain/products.hpp"
#include "plain/provider.hpp"

#include <memory>

namespace tigon_bench {
namespace {

/// Forward has three products, backward six; `recompute` saves nothing and makes two of the three again. Memory of this
/// op means what it needs beside its results: what forward leaves for backward, and scratch.
template <class B, class T>
plan mlp_plan(const request& r) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], intermediate = r.shape[2];
  const bool forward = has_forward(r.direction), backward = has_backward(r.direction);
  const bool saves = !std::same_as<B, plain> && r.variant == "default" && r.direction != mode::no_grad_forward;
  plan p;
  p.limits.push_back(product_limit<T>(r, (forward ? 3 : 0) + (backward ? (r.variant == "default" ? 6 : 8) : 0)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto m = std::make_shared<gated_mlp<T>>(tokens, hidden, intermediate, true, backward);
    const matrix<T> memory = saves ? matrix<T>(tokens, 3 * intermediate) : matrix<T>();
    const auto saved = std::make_shared<tigon::mlp_saved<T>>(tigon::mlp_saved<T>{memory.view()});
    const auto steps = steps_for<B, passes::mlp_steps<T>>(tokens, intermediate, false, backward);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        steps->forward(ctx, m->x.view(), {m->wg.view(), m->wu.view(), m->wd.view()}, m->y.view());
      else if (saves)
        tigon::mlp_forward<B>(m->x.view(), tigon::mlp_weights{m->wg.view(), m->wu.view(), m->wd.view()}, m->y.view(),
                              *saved, {}, ctx);
      else
        tigon::mlp_forward_inference<B>(m->x.view(), tigon::mlp_weights{m->wg.view(), m->wu.view(), m->wd.view()},
                                        m->y.view(), {}, ctx);
    };
    const auto run_backward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        steps->backward(ctx, m->dy.view(), m->x.view(), {m->wg.view(), m->wu.view(), m->wd.view()}, m->dx.view(),
                        {m->dwg.view(), m->dwu.view(), m->dwd.view()});
      else if (saves)
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
    if (!forward && (saves || std::same_as<B, plain>)) run.restore = run_forward;
    run.output_bytes = memory.bytes() + bytes_of(steps);
    return run;
  };
  return p;
}

}  // namespace

op_entry mlp() {
  const extents shape{2048, 2048, 5632};
  return with_plain(
      {.name = "mlp",
       .dims = "tokens x hidden x intermediate",
       .dtypes = all_dtypes(),
       .variants = {{"default", shape, {mode::no_grad_forward, mode::forward, mode::backward, mode::full}},
                    {"recompute", shape, {mode::backward, mode::full}}},
       .backends = {},
       .make_plan = {}},
      []<class B, class T>(const request& r) { return mlp_plan<B, T>(r); });
}

}  // namespace tigon_bench
