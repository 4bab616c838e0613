#include <tigon/ops/fused_add_rms_norm.hpp>

#include "ops/table.hpp"
#include "plain/norms.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan fused_add_rms_norm_plan(const request& r) {
  const std::size_t rows = r.shape[0], cols = r.shape[1], bytes = rows * cols * sizeof(T);
  const bool in_place = r.variant == "in_place", forward = r.direction != mode::backward,
             backward = r.direction != mode::forward;
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(2, 2, bytes, in_place));   // x, r; s, y
  if (backward) p.limits.push_back(limit_request::stream(3, 1, bytes, in_place));  // dy, ds, s; dx
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform_matrix<T>(rows, cols, -2, 2, 1), residual = uniform_matrix<T>(rows, cols, -2, 2, 2);
    const auto w = uniform<T>(cols, 0.5, 1.5, 3);
    const auto y = in_place ? x : matrix<T>(rows, cols), s = in_place ? residual : matrix<T>(rows, cols);
    const buffer<A> rstd(rows);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        passes::fused_add_rms_norm_forward<T>(ctx, x.view(), residual.view(), {w.data(), w.size()}, y.view(), s.view(),
                                              rstd.data(), 1e-6);
      else
        tigon::fused_add_rms_norm_forward<B>(x.view(), residual.view(), w.span(), y.view(), s.view(), rstd.span(), {},
                                             ctx);
    };
    if (!backward) {
      runnable run{.run = run_forward, .restore = {}, .output_bytes = rstd.bytes()};
      if (in_place)
        run.restore = [=] { x.fill(-2, 2, 1), residual.fill(-2, 2, 2); };
      else
        run.output_bytes += y.bytes() + s.bytes();
      return run;
    }

    run_forward();  // leaves s and rstd
    const auto dy = uniform_matrix<T>(rows, cols, -2, 2, 4), ds = uniform_matrix<T>(rows, cols, -2, 2, 5);
    const auto dx = in_place ? dy : forward ? matrix<T>(rows, cols) : y;
    const buffer<T> dw(cols);
    runnable run;
    run.run = [=, &ctx] {
      if (forward) run_forward();
      if constexpr (std::same_as<B, plain>)
        passes::fused_add_rms_norm_backward<T>(ctx, dy.view(), ds.view(), s.view(), {w.data(), w.size()},
                                               static_cast<const A*>(rstd.data()), dx.view(), {dw.data(), dw.size()});
      else
        tigon::fused_add_rms_norm_backward<B>(dy.view(), ds.view(), s.view(), w.span(), rstd.span(),
                                              tigon::fused_add_rms_norm_gradients{dx.view(), dw.span()}, {}, ctx);
    };
    if (in_place) run.restore = [=] { dy.fill(-2, 2, 4); };
    run.output_bytes = (forward ? y.bytes() + s.bytes() + rstd.bytes() : 0) + (in_place ? 0 : dx.bytes()) + dw.bytes();
    return run;
  };
  return p;
}

}  // namespace

op_entry fused_add_rms_norm() {
  return with_plain({.name = "fused_add_rms_norm",
                     .dims = "tokens x hidden",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                                  {"in_place", {2048, 4096}, {mode::forward, mode::backward}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return fused_add_rms_norm_plan<B, T>(r); });
}

}  // namespace tigon_bench
