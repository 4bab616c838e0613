#include <tigon/ops/mhc_post_res.hpp>

#include "ops/table.hpp"
#include "plain/provider.hpp"
#include "plain/streams.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

/// Forward reads the streams and the output of the layer, and writes streams; backward reads their gradient too, and
/// writes the gradients of both.
template <class B, class T>
plan mhc_post_res_plan(const request& r) {
  using A = tigon::accumulator_t<T>;
  const std::size_t tokens = r.shape[0], n = r.shape[1], channels = r.shape[2], bytes = tokens * channels * sizeof(T);
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  plan p;
  if (forward) {
    p.limits.push_back(limit_request::stream(1, 1, n * bytes));
    p.limits.push_back(limit_request::stream(1, 0, bytes));
  }
  if (backward) {
    p.limits.push_back(limit_request::stream(2, 1, n * bytes));
    p.limits.push_back(limit_request::stream(1, 1, bytes));
  }
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto x = uniform_matrix<T>(tokens, n * channels, -2, 2, 1), f = uniform_matrix<T>(tokens, channels, -2, 2, 2);
    const auto h_post = uniform_matrix<A>(tokens, n, 0, 2, 3), h_res = uniform_matrix<A>(tokens, n * n, 0, 1, 4);
    const matrix<T> y(tokens, n * channels);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        passes::mhc_post_res_forward<T, A>(ctx, x.view(), f.view(), h_post.view(), h_res.view(), y.view());
      else
        tigon::mhc_post_res_forward<B>(x.view(), f.view(), h_post.view(), h_res.view(), y.view(), ctx);
    };
    if (!backward) return {.run = run_forward, .restore = {}, .output_bytes = y.bytes()};

    const auto dy = uniform_matrix<T>(tokens, n * channels, -2, 2, 5);
    const matrix<T> dx(tokens, n * channels), df(tokens, channels);
    const matrix<A> dh_post(tokens, n), dh_res(tokens, n * n);
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  if constexpr (std::same_as<B, plain>)
                    passes::mhc_post_res_backward<T, A>(ctx, dy.view(), x.view(), f.view(), h_post.view(), h_res.view(),
                                                        {dx.view(), df.view(), dh_post.view(), dh_res.view()});
                  else
                    tigon::mhc_post_res_backward<B>(
                        dy.view(), x.view(), f.view(), h_post.view(), h_res.view(),
                        tigon::mhc_post_res_gradients<T>{dx.view(), df.view(), dh_post.view(), dh_res.view()}, {}, ctx);
                },
            .restore = {},
            .output_bytes = (forward ? y.bytes() : 0) + dx.bytes() + df.bytes() + dh_post.bytes() + dh_res.bytes()};
  };
  return p;
}

}  // namespace

op_entry mhc_post_res() {
  return with_plain({.name = "mhc_post_res",
                     .dims = "tokens x streams x channels",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 4, 4096}, {mode::forward, mode::backward, mode::full}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return mhc_post_res_plan<B, T>(r); });
}

}  // namespace tigon_bench
