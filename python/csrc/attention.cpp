// Attention, and linear layers.
#include <tigon/ops/attention.hpp>

#include "call.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

tigon::attention_options options(const attention_options& o) {
  tigon::attention_options opt;
  opt.mask = o.causal ? tigon::attention_mask::causal : tigon::attention_mask::none;
  opt.scale = o.scale, opt.softcap = o.softcap;
  if (o.window_left >= 0) opt.window_left = static_cast<std::size_t>(o.window_left);
  if (o.window_right >= 0) opt.window_right = static_cast<std::size_t>(o.window_right);
  opt.offset = static_cast<std::size_t>(o.offset);
  opt.cumulative_lengths = view<const std::int32_t>(o.cumulative_lengths);
  opt.sinks = view<const float>(o.sinks);
  opt.key_begins = view<const std::int32_t>(o.key_begins), opt.key_ends = view<const std::int32_t>(o.key_ends);
  return opt;
}

void attention(const host& h, heads q, heads k, heads v, heads o, vector lse, const attention_options& of) {
  with_type("attention", q.of, [&]<class T>() {
    const tigon::attention_options opt = options(of);
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::attention_workspace<tigon::default_backend, T>(q.seq_len, q.head_dim, opt,
                                                                       ctx.executor().workers(), v.head_dim);
        },
        [&](tigon::context& ctx) {
          tigon::attention_forward(view<const T>(q), view<const T>(k), view<const T>(v), view<T>(o),
                                   view<tigon::accumulator_t<T>>(lse), opt, ctx);
        });
  });
}

void attention_backward(const host& h, heads d_o, const attention_saved& saved, heads dq, heads dk, heads dv,
                        vector dsinks, const attention_options& of) {
  const heads q = saved.q;
  with_type("attention_backward", q.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const tigon::attention_options opt = options(of);
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::attention_backward_workspace<tigon::default_backend, T>(
              q.seq_len, q.head_dim, opt, ctx.executor().workers(), saved.v.head_dim);
        },
        [&](tigon::context& ctx) {
          tigon::attention_gradients<T> to{view<T>(dq), view<T>(dk), view<T>(dv), view<A>(dsinks)};
          const std::size_t rows = q.batch * q.heads * q.seq_len;
          if (sizeof(T) < sizeof(A) && dk.data != nullptr && dq.data == nullptr && rows != 0)
            to.delta = {static_cast<A*>(h.scratch(h.memory, rows * sizeof(A))), rows};
          tigon::attention_backward(view<const T>(d_o), view<const T>(q), view<const T>(saved.k),
                                    view<const T>(saved.v), {view<const T>(saved.o), view<const A>(saved.lse)}, to, opt,
                                    ctx);
        });
  });
}

/// y = x w^T + bias
void linear(const host& h, matrix x, matrix w, vector bias, matrix y) {
  with_type("linear", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::gemm_workspace<tigon::default_backend, T, T, T>(y.rows, y.cols, x.cols,
                                                                        ctx.executor().workers());
        },
        [&](tigon::context& ctx) {
          tigon::gemm(view<const T>(x), view<const T>(w), view<T>(y), view<const T>(bias), tigon::no_epilogue{},
                      {.b = tigon::transpose::yes}, ctx);
        });
  });
}

/// dx = dy w where dx has memory, dw = dy^T x where dw has.
void linear_backward(const host& h, matrix dy, matrix x, matrix w, matrix dx, matrix dw) {
  with_type("linear_backward", x.of, [&]<class T>() {
    const tigon::gemm_backward_options opt{.b = tigon::transpose::yes};
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::gemm_backward_workspace<tigon::default_backend, T, T, T>(dy.rows, dy.cols, x.cols, opt,
                                                                                 ctx.executor().workers());
        },
        [&](tigon::context& ctx) {
          const auto d = view<const T>(dy), in = view<const T>(x), weight = view<const T>(w);
          if (dx.data != nullptr && dw.data != nullptr)
            tigon::gemm_backward(d, in, weight, view<T>(dx), view<T>(dw), opt, ctx);
          else if (dx.data != nullptr)
            tigon::gemm_backward(d, in, weight, view<T>(dx), tigon::absent, opt, ctx);
          else if (dw.data != nullptr)
            tigon::gemm_backward(d, in, weight, tigon::absent, view<T>(dw), opt, ctx);
        });
  });
}

}  // namespace

const attention_kernels* attention_group() {
  static constexpr attention_kernels table{&attention, &attention_backward, &linear, &linear_backward};
  return &table;
}

}  // namespace tigon_torch
