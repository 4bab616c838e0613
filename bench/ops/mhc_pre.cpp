#include <tigon/ops/mhc_pre.hpp>

#include "ops/table.hpp"
#include "plain/provider.hpp"
#include "plain/streams.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

/// Forward reads the streams and writes one row for each token; backward reads both, and writes the gradient of the
/// streams.
template <class B, class T>
plan mhc_pre_plan(const request& r) {
  using A = tigon::accumulator_t<T>;
  const std::size_t tokens = r.shape[0], n = r.shape[1], channels = r.shape[2], bytes = tokens * channels * sizeof(T);
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  plan p;
  if (forward) {
    p.limits.push_back(limit_request::stream(1, 0, n * bytes));
    p.limits.push_back(limit_request::stream(0, 1, bytes));
  }
  if (backward) {
    p.limits.push_back(limit_request::stream(1, 1, n * bytes));
    p.limits.push_back(limit_request::stream(1, 0, bytes));
  }
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto x = uniform_matrix<T>(tokens, n * channels, -2, 2, 1);
    const auto h = uniform_matrix<A>(tokens, n, 0, 1, 2);
    const matrix<T> y(tokens, channels);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        passes::mhc_pre_forward<T, A>(ctx, x.view(), h.view(), y.view());
      else
        tigon::mhc_pre_forward<B>(x.view(), h.view(), y.view(), ctx);
    };
    if (!backward) return {.run = run_forward, .restore = {}, .output_bytes = y.bytes()};

    const auto dy = uniform_matrix<T>(tokens, channels, -2, 2, 3);
    const matrix<T> dx(tokens, n * channels);
    const matrix<A> dh(tokens, n);
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  if constexpr (std::same_as<B, plain>)
                    passes::mhc_pre_backward<T, A>(ctx, dy.view(), x.view(), h.view(), dx.view(), dh.view());
                  else
                    tigon::mhc_pre_backward<B>(dy.view(), x.view(), h.view(),
                                               tigon::mhc_pre_gradients<T>{dx.view(), dh.view()}, {}, ctx);
                },
            .restore = {},
            .output_bytes = (forward ? y.bytes() : 0) + dx.bytes() + dh.bytes()};
  };
  return p;
}

}  // namespace

op_entry mhc_pre() {
  return with_plain({.name = "mhc_pre",
                     .dims = "tokens x streams x channels",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 4, 4096}, {mode::forward, mode::backward, mode::full}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return mhc_pre_plan<B, T>(r); });
}

}  // namespace tigon_bench
