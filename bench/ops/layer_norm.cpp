#include <tigon/ops/layer_norm.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan layer_norm_plan(const request& r) {
  const std::size_t rows = r.shape[0], cols = r.shape[1], bytes = rows * cols * sizeof(T);
  const bool in_place = r.variant == "in_place", forward = r.direction != mode::backward,
             backward = r.direction != mode::forward;
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(1, 1, bytes));
  if (backward) p.limits.push_back(limit_request::stream(2, 1, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform_matrix<T>(rows, cols, -2, 2, 1);
    const auto w = uniform<T>(cols, 0.5, 1.5, 2), b = uniform<T>(cols, -1, 1, 3);
    const buffer<A> mean(rows), rstd(rows);
    const matrix<T> y(rows, cols);
    const auto run_forward = [=, &ctx] {
      tigon::layer_norm_forward<B>(x.view(), w.span(), b.span(), y.view(), mean.span(), rstd.span(), {}, ctx);
    };
    const std::size_t forward_bytes = y.bytes() + mean.bytes() + rstd.bytes();
    if (!backward) return {.run = run_forward, .restore = {}, .output_bytes = forward_bytes};

    run_forward();  // leaves mean and rstd
    const auto dy = uniform_matrix<T>(rows, cols, -2, 2, 4);
    const auto dx = in_place ? dy : forward ? matrix<T>(rows, cols) : y;
    const buffer<T> dw(cols), db(cols);
    runnable run;
    run.run = [=, &ctx] {
      if (forward) run_forward();
      tigon::layer_norm_backward<B>(dy.view(), x.view(), w.span(), mean.span(), rstd.span(), dx.view(), dw.span(),
                                    db.span(), {}, ctx);
    };
    if (in_place) run.restore = [=] { dy.fill(-2, 2, 4); };
    run.output_bytes = (forward ? forward_bytes : 0) + (in_place ? 0 : dx.bytes()) + dw.bytes() + db.bytes();
    return run;
  };
  return p;
}

}  // namespace

op_entry layer_norm() {
  return {.name = "layer_norm",
          .dims = "rows x cols",
          .dtypes = all_dtypes(),
          .variants = {{"default", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                       {"in_place", {2048, 4096}, {mode::backward}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return layer_norm_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
