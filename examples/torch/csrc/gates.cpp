// Gated activations and rotary position embedding.
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/swiglu.hpp>

#include "call.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

void swiglu(const host& h, matrix gate, matrix up, matrix y) {
  with_type("swiglu", gate.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) {
      tigon::swiglu_forward(view<const T>(gate), view<const T>(up), view<T>(y), {}, ctx);
    });
  });
}

void swiglu_backward(const host& h, matrix dy, matrix gate, matrix up, matrix dgate, matrix dup) {
  with_type("swiglu_backward", gate.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) {
      tigon::swiglu_backward(view<const T>(dy), view<const T>(gate), view<const T>(up), view<T>(dgate), view<T>(dup),
                             {}, ctx);
    });
  });
}

tigon::geglu_options geglu_form(bool tanh) { return {.form = tanh ? tigon::gelu_form::tanh : tigon::gelu_form::erf}; }

void geglu(const host& h, matrix gate, matrix up, matrix y, bool tanh) {
  with_type("geglu", gate.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) {
      tigon::geglu_forward(view<const T>(gate), view<const T>(up), view<T>(y), geglu_form(tanh), ctx);
    });
  });
}

void geglu_backward(const host& h, matrix dy, matrix gate, matrix up, matrix dgate, matrix dup, bool tanh) {
  with_type("geglu_backward", gate.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) {
      tigon::geglu_backward(view<const T>(dy), view<const T>(gate), view<const T>(up), view<T>(dgate), view<T>(dup),
                            geglu_form(tanh), ctx);
    });
  });
}

void rope(const host& h, heads q, heads k, matrix cos, matrix sin, heads q_out, heads k_out, bool backward) {
  with_type("rope", q.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const tigon::rope_options opt{.rotary_dim = 2 * cos.cols};
    const auto c = view<const A>(cos), s = view<const A>(sin);
    run(h, [&](tigon::context& ctx) {
      if (backward)
        tigon::rope_backward(view<const T>(q), view<const T>(k), c, s, view<T>(q_out), view<T>(k_out), opt, ctx);
      else
        tigon::rope_forward(view<const T>(q), view<const T>(k), c, s, view<T>(q_out), view<T>(k_out), opt, ctx);
    });
  });
}

void mrope(const host& h, heads q, heads k, matrix cos, matrix sin, heads q_out, heads k_out,
           const std::int64_t* sections, bool backward) {
  with_type("mrope", q.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    tigon::qwen2vl_mrope_options opt;
    for (std::size_t i = 0; i < 3; ++i) opt.sections[i] = static_cast<std::size_t>(sections[i]);
    const auto c = view<const A>(cos), s = view<const A>(sin);
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::qwen2vl_mrope_workspace<tigon::default_backend, T>(q.heads + k.heads, q.head_dim, ctx);
        },
        [&](tigon::context& ctx) {
          if (backward)
            tigon::qwen2vl_mrope_backward(view<const T>(q), view<const T>(k), c, s, view<T>(q_out), view<T>(k_out), opt,
                                          ctx);
          else
            tigon::qwen2vl_mrope_forward(view<const T>(q), view<const T>(k), c, s, view<T>(q_out), view<T>(k_out), opt,
                                         ctx);
        });
  });
}

}  // namespace

const gate_kernels* gates() {
  static constexpr gate_kernels table{&swiglu, &swiglu_backward, &geglu, &geglu_backward};
  return &table;
}

const rotary_kernels* rotary() {
  static constexpr rotary_kernels table{&rope, &mrope};
  return &table;
}

}  // namespace tigon_torch
