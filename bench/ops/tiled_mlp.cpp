#include <tigon/ops/tiled_mlp.hpp>

#include "ops/gated_mlp.hpp"
#include "ops/table.hpp"
#include "plain/products.hpp"
#include "plain/provider.hpp"

#include <memory>

namespace tigon_bench {
namespace {

/// Forward has three products, backward eight: gate and up are made again. Memory of this op means its scratch.
template <class B, class T>
plan tiled_mlp_plan(const request& r) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], intermediate = r.shape[2];
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  const tigon::mlp_gate gate = r.variant == "geglu" ? tigon::mlp_gate::geglu : tigon::mlp_gate::swiglu;
  const tigon::tiled_mlp_options options{.mlp = {.gate = gate}, .shards = r.shape[3]};
  plan p;
  p.limits.push_back(product_limit<T>(r, (forward ? 3 : 0) + (backward ? 8 : 0)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto m = std::make_shared<gated_mlp<T>>(tokens, hidden, intermediate, true, backward);
    const auto steps =
        steps_for<B, passes::mlp_steps<T>>(tokens, intermediate, gate == tigon::mlp_gate::geglu, backward);
    if constexpr (std::same_as<B, plain>) {
      const passes::mlp_matrices<T> w{m->wg.view(), m->wu.view(), m->wd.view()},
          dw{m->dwg.view(), m->dwu.view(), m->dwd.view()};
      steps->forward(ctx, m->x.view(), w, m->y.view());  // leaves what backward reads
      return {.run =
                  [=, &ctx] {
                    if (forward) steps->forward(ctx, m->x.view(), w, m->y.view());
                    if (backward) steps->backward(ctx, m->dy.view(), m->x.view(), w, m->dx.view(), dw);
                  },
              .restore = {},
              .output_bytes = steps->bytes()};
    } else
      return {.run =
                  [=, &ctx] {
                    if (forward)
                      tigon::tiled_mlp_forward<B>(m->x.view(),
                                                  tigon::mlp_weights{m->wg.view(), m->wu.view(), m->wd.view()},
                                                  m->y.view(), options, ctx);
                    if (backward)
                      tigon::tiled_mlp_backward<B>(
                          m->dy.view(), m->x.view(), tigon::mlp_weights{m->wg.view(), m->wu.view(), m->wd.view()},
                          m->dx.view(), tigon::mlp_weights{m->dwg.view(), m->dwu.view(), m->dwd.view()}, options, ctx);
                  },
              .restore = {},
              .output_bytes = 0};
  };
  return p;
}

}  // namespace

op_entry tiled_mlp() {
  const extents shape{2048, 2048, 5632, 4};
  const std::vector<mode> modes{mode::forward, mode::backward, mode::full};
  return with_plain({.name = "tiled_mlp",
                     .dims = "tokens x hidden x intermediate x shards",
                     .dtypes = all_dtypes(),
                     .variants = {{"swiglu", shape, modes}, {"geglu", shape, modes}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return tiled_mlp_plan<B, T>(r); }, {"swiglu", "geglu"});
}

}  // namespace tigon_bench
