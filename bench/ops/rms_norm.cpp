#include <tigon/ops/rms_norm.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/buffers.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan rms_norm_plan(const request& r) {
  const std::size_t rows = r.shape.at(0), cols = r.shape.at(1), bytes = rows * cols * sizeof(T);
  const bool in_place = r.variant == "in_place", forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(1, 1, bytes));
  if (backward) p.limits.push_back(limit_request::stream(2, 1, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform<T>(rows * cols, -2, 2, 1), w = uniform<T>(cols, 0.5, 1.5, 2);
    const auto dy = backward ? uniform<T>(rows * cols, -2, 2, 3) : buffer<T>();
    const buffer<T> y(forward ? rows * cols : 0), dw(backward ? cols : 0);
    const auto dx = in_place || !backward ? dy : buffer<T>(rows * cols);
    const buffer<A> rstd(rows);
    const auto matrix = [=](const buffer<T>& b) { return tigon::matrix_view<T>(b.data(), rows, cols); };
    const auto run_forward = [=, &ctx](const buffer<T>& to) {
      tigon::rms_norm_forward<B>(matrix(x), w.span(), matrix(to), rstd.span(), {}, ctx);
    };
    if (!forward) run_forward(dx);  // leaves rstd
    runnable run;
    run.run = [=, &ctx] {
      if (forward) run_forward(y);
      if (backward)
        tigon::rms_norm_backward<B>(matrix(dy), matrix(x), w.span(), rstd.span(), matrix(dx), dw.span(), {}, ctx);
    };
    if (in_place) run.restore = [=] { fill_uniform(dy.span(), -2, 2, 3); };
    run.output_bytes = (forward ? y.bytes() + rstd.bytes() : 0) + (backward && !in_place ? dx.bytes() : 0) + dw.bytes();
    return run;
  };
  return p;
}

}  // namespace

op_entry rms_norm() {
  return {.name = "rms_norm",
          .dims = "rows x cols",
          .dtypes = all_dtypes(),
          .variants = {{"default", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                       {"in_place", {2048, 4096}, {mode::backward}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return rms_norm_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
