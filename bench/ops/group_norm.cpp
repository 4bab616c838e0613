#include <tigon/ops/group_norm.hpp>

#include "ops/table.hpp"
#include "plain/norms.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan group_norm_plan(const request& r) {
  const std::size_t batch = r.shape[0], channels = r.shape[1], positions = r.shape[2], rows = batch * channels;
  const std::size_t bytes = rows * positions * sizeof(T);
  const bool in_place = r.variant == "in_place", forward = r.direction != mode::backward,
             backward = r.direction != mode::forward;
  // Groups of four channels, or 32 groups: a group then outgrows the first-level cache.
  const tigon::group_norm_options opt{.groups = r.variant == "large_groups" ? 32 : channels / 4};
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(1, 1, bytes));
  if (backward) p.limits.push_back(limit_request::stream(2, 1, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform_matrix<T>(rows, positions, -2, 2, 1);
    const auto w = uniform<T>(channels, 0.5, 1.5, 2), b = uniform<T>(channels, -1, 1, 3);
    const matrix<T> y(rows, positions);
    const buffer<A> mean(batch * opt.groups), rstd(batch * opt.groups);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        passes::group_norm_forward<T>(ctx, x.view(), {channels, opt.groups}, {w.data(), channels}, {b.data(), channels},
                                      y.view(), mean.data(), rstd.data(), opt.eps);
      else
        tigon::group_norm_forward<B>(x.view(), w.span(), b.span(), y.view(), mean.span(), rstd.span(), opt, ctx);
    };
    const std::size_t forward_bytes = y.bytes() + mean.bytes() + rstd.bytes();
    if (!backward) return {.run = run_forward, .restore = {}, .output_bytes = forward_bytes};

    run_forward();  // leaves what backward needs
    const auto dy = uniform_matrix<T>(rows, positions, -2, 2, 4);
    const auto dx = in_place ? dy : forward ? matrix<T>(rows, positions) : y;
    const buffer<T> dw(channels), db(channels);
    runnable run;
    run.run = [=, &ctx] {
      if (forward) run_forward();
      if constexpr (std::same_as<B, plain>)
        passes::group_norm_backward<T>(ctx, dy.view(), x.view(), {channels, opt.groups}, {w.data(), channels},
                                       static_cast<const A*>(mean.data()), static_cast<const A*>(rstd.data()),
                                       dx.view(), {dw.data(), channels}, {db.data(), channels});
      else
        tigon::group_norm_backward<B>(dy.view(), x.view(), w.span(), mean.span(), rstd.span(),
                                      tigon::norm_gradients{dx.view(), dw.span(), db.span()}, opt, ctx);
    };
    if (in_place) run.restore = [=] { dy.fill(-2, 2, 4); };
    run.output_bytes = (forward ? forward_bytes : 0) + (in_place ? 0 : dx.bytes()) + dw.bytes() + db.bytes();
    return run;
  };
  return p;
}

}  // namespace

op_entry group_norm() {
  return with_plain({.name = "group_norm",
                     .dims = "batch x hidden x seq_len",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {4, 4096, 512}, {mode::forward, mode::backward, mode::full}},
                                  {"large_groups", {4, 512, 4096}, {mode::forward, mode::backward, mode::full}},
                                  {"in_place", {4, 4096, 512}, {mode::backward}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return group_norm_plan<B, T>(r); });
}

}  // namespace tigon_bench
