// The gated MLP and the mixture of experts.
#include <tigon/ops/mlp.hpp>
#include <tigon/ops/moe.hpp>

#include "plain/check.hpp"
#include "plain/products.hpp"

namespace tigon_bench {
namespace {

using B = passes::lanes;
constexpr std::size_t tokens = 37, hidden = 43, inner = 29;

void gated(tigon::context& ctx, tigon::mlp_gate gate) {
  const auto x = uniform_matrix<float>(tokens, hidden, -1, 1, 1), dy = uniform_matrix<float>(tokens, hidden, -1, 1, 2),
             wg = uniform_matrix<float>(inner, hidden, -.5, .5, 3),
             wu = uniform_matrix<float>(inner, hidden, -.5, .5, 4),
             wd = uniform_matrix<float>(hidden, inner, -.5, .5, 5);
  both_matrices y(tokens, hidden), dx(tokens, hidden), dwg(inner, hidden), dwu(inner, hidden), dwd(hidden, inner);
  const passes::mlp_steps<float> steps(tokens, inner, gate == tigon::mlp_gate::geglu, true);
  steps.forward(ctx, x.view(), {wg.view(), wu.view(), wd.view()}, y.got.view());
  steps.backward(ctx, dy.view(), x.view(), {wg.view(), wu.view(), wd.view()}, dx.got.view(),
                 {dwg.got.view(), dwu.got.view(), dwd.got.view()});
  const tigon::mlp_weights w{wg.view(), wu.view(), wd.view()};
  tigon::mlp_forward_inference<B>(x.view(), w, y.want.view(), {.gate = gate}, ctx);
  tigon::mlp_backward_recompute<B>(dy.view(), x.view(), w, dx.want.view(),
                                   tigon::mlp_weights{dwg.want.view(), dwu.want.view(), dwd.want.view()},
                                   {.gate = gate}, ctx);
  const bool gelu = gate == tigon::mlp_gate::geglu;
  y.agree(gelu ? "mlp, geglu y" : "mlp y"), dx.agree(gelu ? "mlp, geglu dx" : "mlp dx");
  dwg.agree("mlp dw_gate"), dwu.agree("mlp dw_up"), dwd.agree("mlp dw_down");
}

void mixture(tigon::context& ctx) {
  constexpr std::size_t experts = 7, chosen = 5, k = 2;  // nobody chooses the last two
  const auto x = uniform_matrix<float>(tokens, hidden, -1, 1, 1), dy = uniform_matrix<float>(tokens, hidden, -1, 1, 2),
             up = uniform_matrix<float>(experts * 2 * inner, hidden, -.5, .5, 3),
             down = uniform_matrix<float>(experts * hidden, inner, -.5, .5, 4),
             weights = uniform_matrix<float>(tokens, k, 0, 1, 5);
  const auto indices = uniform_matrix<std::int32_t>(tokens, k, 0, chosen, 6);
  both_matrices y(tokens, hidden), dx(tokens, hidden), dup(up.rows, hidden), ddown(down.rows, inner),
      dweights(tokens, k);
  passes::moe_steps<float> steps({tokens, experts, k, hidden, inner}, true);
  steps.forward(ctx, x.view(), {indices.view(), weights.view()}, {up.view(), down.view()}, y.got.view());
  steps.backward(ctx, dy.view(), x.view(), {indices.view(), weights.view()}, {up.view(), down.view()},
                 {dx.got.view(), dup.got.view(), ddown.got.view(), dweights.got.view()});
  const tigon::moe_choices of{indices.view(), weights.view()};
  const tigon::moe_weights w{up.view(), down.view(), experts};
  tigon::moe_forward_inference<B>(x.view(), of, w, y.want.view(), {}, ctx);
  tigon::moe_backward_recompute<B>(
      dy.view(), x.view(), of, w,
      tigon::moe_gradients{dx.want.view(), dup.want.view(), ddown.want.view(), dweights.want.view()}, {}, ctx);
  y.agree("moe y"), dx.agree("moe dx"), dup.agree("moe dgate_up"), ddown.agree("moe ddown");
  dweights.agree("moe dweights");
}

}  // namespace

void check_products(tigon::context& ctx) {
  gated(ctx, tigon::mlp_gate::swiglu), gated(ctx, tigon::mlp_gate::geglu), mixture(ctx);
}

}  // namespace tigon_bench
