// AdamW over a list of parameters.
#include <tigon/ops/adamw.hpp>

#include <vector>

#include "call.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

tigon::adamw_options options(const adamw_options& o) {
  tigon::adamw_options opt;
  opt.learning_rate = o.learning_rate, opt.beta1 = o.beta1, opt.beta2 = o.beta2, opt.eps = o.eps;
  opt.weight_decay = o.weight_decay, opt.step = o.step;
  opt.stochastic_rounding = o.stochastic_rounding, opt.seed = o.seed;
  return opt;
}

void adamw(const host& h, const trained* parameters, std::size_t count, const adamw_options& o) {
  if (count == 0) return;
  with_type<tigon::op::adamw>("adamw", parameters[0].w.of, [&]<class T>() {
    std::vector<tigon::adamw_parameter<T, T, T>> list(count);
    std::size_t elements = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const trained& p = parameters[i];
      list[i].w = view<T>(p.w), list[i].g = view<const T>(p.g);
      list[i].m = view<T>(p.m), list[i].v = view<T>(p.v);
      elements += p.w.size;
    }
    run(
        h, [&](const tigon::context&) { return tigon::adamw_workspace(count, elements); },
        [&](tigon::context& ctx) { tigon::adamw_with_norm(list, 0, options(o), ctx); });  // nothing is clipped
  });
}

}  // namespace

const optimizer_kernels* optimizers() {
  static constexpr optimizer_kernels table{entry<tigon::op::adamw>(&adamw)};
  return &table;
}

}  // namespace tigon_torch
