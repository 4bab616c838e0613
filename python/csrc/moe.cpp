// Mixture of experts.
#include <tigon/ops/moe.hpp>

#include "call.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

tigon::moe_shape shape_of(const moe_call& c) { return {c.x.rows, c.indices.cols, c.experts, c.x.cols, c.down.cols}; }
template <class A>
tigon::moe_choices<std::int64_t, A> choices_of(const moe_call& c) {
  return {view<const std::int64_t>(c.indices), view<const A>(c.weights)};
}

void moe(const host& h, const moe_call& c, matrix y, matrix saved) {
  with_type("moe", c.x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const tigon::moe_options opt{.layout =
                                     c.interleaved ? tigon::gate_layout::interleaved : tigon::gate_layout::halves};
    const tigon::moe_weights<const T> w{view<const T>(c.gate_up), view<const T>(c.down), c.experts};
    const bool keep = saved.data != nullptr;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::moe_workspace<tigon::default_backend, T>(
              keep ? tigon::moe_pass::forward : tigon::moe_pass::inference, shape_of(c), ctx.executor().workers());
        },
        [&](tigon::context& ctx) {
          tigon::moe_saved<T> memory{view<T>(saved), false};
          if (keep)
            tigon::moe_forward(view<const T>(c.x), choices_of<A>(c), w, view<T>(y), memory, opt, ctx);
          else
            tigon::moe_forward_inference(view<const T>(c.x), choices_of<A>(c), w, view<T>(y), opt, ctx);
        });
  });
}

void moe_backward(const host& h, matrix dy, const moe_call& c, matrix saved, const moe_gradients& to) {
  with_type("moe_backward", c.x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const tigon::moe_options opt{.layout =
                                     c.interleaved ? tigon::gate_layout::interleaved : tigon::gate_layout::halves};
    const tigon::moe_weights<const T> w{view<const T>(c.gate_up), view<const T>(c.down), c.experts};
    const tigon::moe_gradients<T, T, A> gradients{view<T>(to.dx), view<T>(to.dgate_up), view<T>(to.ddown),
                                                  view<A>(to.dweights)};
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::moe_workspace<tigon::default_backend, T>(tigon::moe_pass::backward, shape_of(c),
                                                                 ctx.executor().workers(), gradients.of_weights());
        },
        [&](tigon::context& ctx) {
          const tigon::moe_saved<T> memory{view<T>(saved), true};
          tigon::moe_backward(view<const T>(dy), view<const T>(c.x), choices_of<A>(c), w, memory, gradients, opt, ctx);
        });
  });
}

}  // namespace

const moe_kernels* experts() {
  static constexpr moe_kernels table{&moe, &moe_backward};
  return &table;
}

}  // namespace tigon_torch
