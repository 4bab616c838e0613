#include <tigon/ops/sparsemax.hpp>

#include "ops/table.hpp"
#include "plain/provider.hpp"
#include "plain/sparsemax.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan sparsemax_plan(const request& r) {
  const std::size_t rows = r.shape[0], cols = r.shape[1], bytes = rows * cols * sizeof(T);
  const bool in_place = r.variant == "in_place", first_axis = r.variant == "first_axis";
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(1, 1, bytes, in_place));
  if (backward) p.limits.push_back(limit_request::stream(2, 1, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto x = uniform_matrix<T>(rows, cols, -4, 4, 1);
    const auto y = in_place ? x : matrix<T>(rows, cols);
    const auto axis_of = [=](const matrix<T>& m) { return tigon::axis_view<T>(m.view().data, 1, rows, cols); };
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        passes::sparsemax_forward<T>(ctx, x.view(), y.view());
      else if (first_axis)
        tigon::sparsemax_forward<B>(axis_of(x), axis_of(y), {}, ctx);
      else
        tigon::sparsemax_forward<B>(x.view(), y.view(), {}, ctx);
    };
    const auto restore_x = [=] { x.fill(-4, 4, 1); };
    if (!backward) {
      runnable run{.run = run_forward, .restore = {}, .output_bytes = 0};
      if (in_place)
        run.restore = restore_x;
      else
        run.output_bytes = y.bytes();
      return run;
    }

    run_forward();  // leaves y
    const auto dy = uniform_matrix<T>(rows, cols, -2, 2, 2);
    const auto dx = in_place ? dy : forward ? matrix<T>(rows, cols) : x;
    runnable run;
    run.run = [=, &ctx] {
      if (forward) run_forward();
      if constexpr (std::same_as<B, plain>)
        passes::sparsemax_backward<T>(ctx, dy.view(), y.view(), dx.view());
      else if (first_axis)
        tigon::sparsemax_backward<B>(axis_of(dy), axis_of(y), axis_of(dx), {}, ctx);
      else
        tigon::sparsemax_backward<B>(dy.view(), y.view(), dx.view(), {}, ctx);
    };
    if (in_place) run.restore = [=] { dy.fill(-2, 2, 2); };
    run.output_bytes = (forward ? y.bytes() : 0) + (in_place ? 0 : dx.bytes());
    return run;
  };
  return p;
}

}  // namespace

op_entry sparsemax() {
  return with_plain({.name = "sparsemax",
                     .dims = "rows x cols",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                                  {"in_place", {2048, 4096}, {mode::forward, mode::backward}},
                                  {"first_axis", {2048, 4096}, {mode::forward, mode::backward}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return sparsemax_plan<B, T>(r); });
}

}  // namespace tigon_bench
