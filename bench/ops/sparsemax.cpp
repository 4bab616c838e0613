#include <tigon/ops/sparsemax.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <algorithm>
#include <functional>

namespace tigon_bench {
namespace {

/// What the operator is held against: a sorted copy of the row, and a scalar loop down to the threshold.
template <class T>
void sorted_sparsemax(tigon::matrix_view<const T> x, tigon::matrix_view<T> y, std::span<tigon::accumulator_t<T>> z) {
  using A = tigon::accumulator_t<T>;
  for (std::size_t i = 0; i < x.rows; ++i) {
    std::copy_n(x.row(i), x.cols, z.begin());
    std::sort(z.begin(), z.end(), std::greater<>());
    A sum = 0, tau = 0;
    for (std::size_t k = 0; k < x.cols; ++k) {
      sum += z[k];
      if (1 + static_cast<A>(k + 1) * z[k] <= sum) break;
      tau = (sum - 1) / static_cast<A>(k + 1);
    }
    for (std::size_t j = 0; j < x.cols; ++j)
      y.row(i)[j] = static_cast<T>(std::max(A(0), static_cast<A>(x.row(i)[j]) - tau));
  }
}

template <class B, class T>
plan sparsemax_plan(const request& r) {
  const std::size_t rows = r.shape[0], cols = r.shape[1], bytes = rows * cols * sizeof(T);
  const bool in_place = r.variant == "in_place", sorted = r.variant == "sorted", first_axis = r.variant == "first_axis";
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  if (sorted && r.threads != 1) throw unsupported("sorts on one thread only");
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(1, 1, bytes, in_place));
  if (backward) p.limits.push_back(limit_request::stream(2, 1, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto x = uniform_matrix<T>(rows, cols, -4, 4, 1);
    const auto y = in_place ? x : matrix<T>(rows, cols);
    const auto axis_of = [=](const matrix<T>& m) { return tigon::axis_view<T>(m.view().data, 1, rows, cols); };
    const buffer<tigon::accumulator_t<T>> z(sorted ? cols : 0);
    const auto run_forward = [=, &ctx] {
      if (sorted)
        sorted_sparsemax<T>(x.view(), y.view(), z.span());
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
      if (first_axis)
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
  return {.name = "sparsemax",
          .dims = "rows x cols",
          .dtypes = all_dtypes(),
          .variants = {{"default", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                       {"in_place", {2048, 4096}, {mode::forward, mode::backward}},
                       {"first_axis", {2048, 4096}, {mode::forward, mode::backward}},
                       {"sorted", {2048, 4096}, {mode::forward}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return sparsemax_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
