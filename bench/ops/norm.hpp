// What rms_norm and layer_norm share: one input, one output, a gradient that may replace the upstream one. A Norm<T>,
// made of rows and columns, holds parameters, what forward saves and gradients of parameters; it has
// forward<B>(x, y, ctx) and backward<B>(dy, x, dx, ctx), which call the doors, saved_bytes() and gradient_bytes(). One
// that takes `plain` for B too says so with a constant `steps`.
#ifndef TIGON_BENCH_OPS_NORM_HPP
#define TIGON_BENCH_OPS_NORM_HPP

#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"
#include "support/registry.hpp"

#include <string>

namespace tigon_bench {

template <class Norm, class B, class T>
plan norm_plan(const request& r) {
  const std::size_t rows = r.shape[0], cols = r.shape[1], bytes = rows * cols * sizeof(T);
  const bool in_place = r.variant == "in_place", forward = r.direction != mode::backward,
             backward = r.direction != mode::forward;
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(1, 1, bytes));
  if (backward) p.limits.push_back(limit_request::stream(2, 1, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto x = uniform_matrix<T>(rows, cols, -2, 2, 1);
    const Norm norm(rows, cols);
    const matrix<T> y(rows, cols);
    const auto run_forward = [=, &ctx] { norm.template forward<B>(x.view(), y.view(), ctx); };
    const std::size_t forward_bytes = y.bytes() + norm.saved_bytes();
    if (!backward) return {.run = run_forward, .restore = {}, .output_bytes = forward_bytes};

    run_forward();  // leaves what backward needs
    const auto dy = uniform_matrix<T>(rows, cols, -2, 2, 4);
    const auto dx = in_place ? dy : forward ? matrix<T>(rows, cols) : y;
    runnable run;
    run.run = [=, &ctx] {
      if (forward) run_forward();
      norm.template backward<B>(dy.view(), x.view(), dx.view(), ctx);
    };
    if (in_place) run.restore = [=] { dy.fill(-2, 2, 4); };
    run.output_bytes = (forward ? forward_bytes : 0) + (in_place ? 0 : dx.bytes()) + norm.gradient_bytes();
    return run;
  };
  return p;
}

template <template <class> class Norm>
op_entry norm_entry(const std::string& name, const std::string& dims = "tokens x hidden") {
  const op_entry entry{.name = name,
                       .dims = dims,
                       .dtypes = all_dtypes(),
                       .variants = {{"default", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                                    {"in_place", {2048, 4096}, {mode::backward}}},
                       .backends = all_backends::names(),
                       .make_plan = [](const request& r) {
                         return with_types<plan>(r, [&]<class B, class T>() { return norm_plan<Norm<T>, B, T>(r); });
                       }};
  if constexpr (requires { Norm<float>::steps; })
    return with_plain(entry, []<class B, class T>(const request& r) { return norm_plan<Norm<T>, B, T>(r); });
  else
    return entry;
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_NORM_HPP
