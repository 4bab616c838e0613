// What swiglu and geglu share: two inputs, one output, two gradients that may replace the inputs. A Gate has
// forward<B>(a, b, c, ctx) and backward<B>(dc, a, b, da, db, ctx), which call the doors, or run elementary steps where
// B is `plain`.
#ifndef TIGON_BENCH_OPS_GATE_HPP
#define TIGON_BENCH_OPS_GATE_HPP

#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"
#include "support/registry.hpp"

#include <string>

namespace tigon_bench {

template <class Gate, class B, class T>
plan gate_plan(const request& r) {
  const std::size_t rows = r.shape[0], cols = r.shape[1], bytes = rows * cols * sizeof(T);
  const bool in_place = r.variant == "in_place", forward = r.direction != mode::backward,
             backward = r.direction != mode::forward;
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(2, 1, bytes, in_place));
  if (backward) p.limits.push_back(limit_request::stream(3, 2, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto a = uniform_matrix<T>(rows, cols, -2, 2, 1), b = uniform_matrix<T>(rows, cols, 1, 2, 2);
    const auto dc = backward ? uniform_matrix<T>(rows, cols, 1, 2, 3) : matrix<T>();
    const auto c = !forward ? matrix<T>() : in_place ? a : matrix<T>(rows, cols);
    const auto da = !backward ? matrix<T>() : in_place ? a : matrix<T>(rows, cols);
    const auto db = !backward ? matrix<T>() : in_place ? b : matrix<T>(rows, cols);
    runnable run;
    run.run = [=, &ctx] {
      if (forward) Gate::template forward<B>(a.view(), b.view(), c.view(), ctx);
      if (backward) Gate::template backward<B>(dc.view(), a.view(), b.view(), da.view(), db.view(), ctx);
    };
    if (in_place)
      run.restore = [=] { a.fill(-2, 2, 1), b.fill(1, 2, 2); };
    else
      run.output_bytes = c.bytes() + da.bytes() + db.bytes();
    return run;
  };
  return p;
}

template <class Gate>
op_entry gate_entry(const std::string& name) {
  return with_plain({.name = name,
                     .dims = "tokens x intermediate",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                                  {"in_place", {2048, 4096}, {mode::forward, mode::backward}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return gate_plan<Gate, B, T>(r); });
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_GATE_HPP
