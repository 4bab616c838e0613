#include <tigon/ops/modulated_rms_norm.hpp>

#include "ops/table.hpp"
#include "plain/norms.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan modulated_rms_norm_plan(const request& r) {
  const std::size_t rows = r.shape[0], cols = r.shape[1], bytes = rows * cols * sizeof(T);
  // Each row its own scale and shift, or all of them one, or one for a sixteenth of the rows.
  const bool shared = r.variant == "shared", sequences = r.variant == "sequences", by_row = !shared && !sequences;
  const std::size_t groups = shared ? 1 : sequences ? 16 : rows;
  if (rows % groups != 0) throw unsupported("rows are cut into sixteen sequences");
  const bool in_place = r.variant == "in_place", forward = r.direction != mode::backward,
             backward = r.direction != mode::forward;
  const tigon::modulated_rms_norm_options opt{.group_rows = rows / groups};
  plan p;  // x, scale, shift; y and dy, x, scale; dx, dscale, dshift. What rows share stays in the caches
  if (forward) p.limits.push_back(limit_request::stream(by_row ? 3 : 1, 1, bytes));
  if (backward) p.limits.push_back(limit_request::stream(by_row ? 3 : 2, by_row ? 3 : 1, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform_matrix<T>(rows, cols, -2, 2, 1);
    const auto scale = uniform_matrix<T>(groups, cols, -0.5, 0.5, 2), shift = uniform_matrix<T>(groups, cols, -1, 1, 3);
    const auto w = uniform<T>(cols, 0.5, 1.5, 5);
    const matrix<T> y(rows, cols);
    const buffer<A> rstd(rows);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        passes::modulated_rms_norm_forward<T>(ctx, x.view(), {w.data(), w.size()}, scale.view(), shift.view(), y.view(),
                                              rstd.data(), opt.eps);
      else
        tigon::modulated_rms_norm_forward<B>(x.view(), w.span(), scale.view(), shift.view(), y.view(), rstd.span(), opt,
                                             ctx);
    };
    const std::size_t forward_bytes = y.bytes() + rstd.bytes();
    if (!backward) return {.run = run_forward, .restore = {}, .output_bytes = forward_bytes};

    run_forward();  // leaves what backward needs
    const auto dy = uniform_matrix<T>(rows, cols, -2, 2, 4);
    const auto dx = in_place ? dy : forward ? matrix<T>(rows, cols) : y;
    const matrix<T> dscale(groups, cols), dshift(groups, cols);
    const buffer<T> dw(cols);
    const auto of_norm = std::same_as<B, plain> ? matrix<A>(rows, cols) : matrix<A>();
    runnable run;
    run.run = [=, &ctx] {
      if (forward) run_forward();
      if constexpr (std::same_as<B, plain>)
        passes::modulated_rms_norm_backward<T>(ctx, dy.view(), x.view(), {w.data(), w.size()}, scale.view(),
                                               static_cast<const A*>(rstd.data()), of_norm.view(),
                                               {dx.view(), {dw.data(), dw.size()}, dscale.view(), dshift.view()});
      else
        tigon::modulated_rms_norm_backward<B>(
            dy.view(), x.view(), w.span(), scale.view(), rstd.span(),
            tigon::modulated_rms_norm_gradients{dx.view(), dw.span(), dscale.view(), dshift.view()}, opt, ctx);
    };
    if (in_place) run.restore = [=] { dy.fill(-2, 2, 4); };
    run.output_bytes = (forward ? forward_bytes : 0) + (in_place ? 0 : dx.bytes()) + dw.bytes() + dscale.bytes() +
                       dshift.bytes() + of_norm.bytes();
    return run;
  };
  return p;
}

}  // namespace

op_entry modulated_rms_norm() {
  return with_plain({.name = "modulated_rms_norm",
                     .dims = "tokens x hidden",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                                  {"shared", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                                  {"sequences", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                                  {"in_place", {2048, 4096}, {mode::backward}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return modulated_rms_norm_plan<B, T>(r); });
}

}  // namespace tigon_bench
