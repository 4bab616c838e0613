#include <tigon/ops/attn_res.hpp>

#include "ops/table.hpp"
#include "plain/provider.hpp"
#include "plain/streams.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan attn_res_plan(const request& r) {
  const std::size_t blocks = r.shape[0], rows = r.shape[1], cols = r.shape[2], bytes = rows * cols * sizeof(T);
  const bool in_place = r.variant == "in_place", forward = r.direction != mode::backward,
             backward = r.direction != mode::forward;
  plan p;
  // A few arrays at a time, as the limits have it: v; y of the last.
  int left = static_cast<int>(blocks);
  for (; forward && left > 4; left -= 4) p.limits.push_back(limit_request::stream(4, 0, bytes));
  if (forward) p.limits.push_back(limit_request::stream(left, 1, bytes));
  // v, dy with the last; dv.
  left = static_cast<int>(blocks);
  for (; backward && left > 2; left -= 2) p.limits.push_back(limit_request::stream(2, 2, bytes, in_place));
  if (backward) p.limits.push_back(limit_request::stream(left + 1, left, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto v = uniform_matrix<T>(blocks * rows, cols, -2, 2, 1);
    const auto w_query = uniform<T>(cols, -0.04, 0.04, 2), w_norm = uniform<T>(cols, 0.5, 1.5, 3);
    const matrix<T> y(rows, cols);
    const buffer<A> alpha(rows * blocks), rstd(rows * blocks);
    const auto of = [=](const matrix<T>& m) {
      return tigon::blocks_view<T>::stacked(m.view().data, blocks, rows, cols);
    };
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        passes::attn_res_forward<T>(ctx, of(v), {w_query.data(), cols}, {w_norm.data(), cols}, y.view(), alpha.data(),
                                    rstd.data(), 1e-6);
      else
        tigon::attn_res_forward<B>(of(v), w_query.span(), w_norm.span(), y.view(), alpha.span(), rstd.span(), {}, ctx);
    };
    const std::size_t forward_bytes = y.bytes() + alpha.bytes() + rstd.bytes();
    if (!backward) return {.run = run_forward, .restore = {}, .output_bytes = forward_bytes};

    run_forward();  // leaves alpha and rstd
    const auto dy = forward ? uniform_matrix<T>(rows, cols, -2, 2, 4) : y;
    dy.fill(-2, 2, 4);
    const auto dv = in_place ? v : matrix<T>(blocks * rows, cols);
    const buffer<T> dw_query(cols), dw_norm(cols);
    runnable run;
    run.run = [=, &ctx] {
      if (forward) run_forward();
      if constexpr (std::same_as<B, plain>)
        passes::attn_res_backward<T>(ctx, dy.view(), of(v), {w_query.data(), cols}, {w_norm.data(), cols},
                                     static_cast<const A*>(alpha.data()), static_cast<const A*>(rstd.data()), of(dv),
                                     {dw_query.data(), cols}, {dw_norm.data(), cols});
      else
        tigon::attn_res_backward<B>(dy.view(), of(v), w_query.span(), w_norm.span(), {alpha.span(), rstd.span()},
                                    tigon::attn_res_gradients{of(dv), dw_query.span(), dw_norm.span()}, {}, ctx);
    };
    if (in_place) run.restore = [=] { v.fill(-2, 2, 1); };
    run.output_bytes = (forward ? forward_bytes : 0) + (in_place ? 0 : dv.bytes()) + dw_query.bytes() + dw_norm.bytes();
    return run;
  };
  return p;
}

}  // namespace

op_entry attn_res() {
  return with_plain({.name = "attn_res",
                     .dims = "blocks x rows x cols",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {8, 1024, 4096}, {mode::forward, mode::backward, mode::full}},
                                  {"in_place", {8, 1024, 4096}, {mode::backward}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return attn_res_plan<B, T>(r); });
}

}  // namespace tigon_bench
