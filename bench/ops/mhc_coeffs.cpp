#include <tigon/ops/mhc_coeffs.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
#include "plain/mhc_coeffs.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

/// Numbers that the operator keeps of its iteration; the steps have their own.
template <class B, class T>
std::size_t history_of(std::size_t tokens, std::size_t n) {
  if constexpr (std::same_as<B, plain>)
    return 0;
  else
    return tigon::mhc_coeffs_history<B, T>(tokens, n);
}

/// One product forward and two backward, each with n^2 + 2n numbers for every number of x.
template <class B, class T>
plan mhc_coeffs_plan(const request& r) {
  using A = tigon::accumulator_t<T>;
  const std::size_t tokens = r.shape[0], n = r.shape[1], cols = n * r.shape[2], mixes = n * n + 2 * n;
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  plan p;
  const double products = (forward ? 1 : 0) + (backward ? 2 : 0);
  p.limits.push_back(product_peak<T>(products * 2 * static_cast<double>(tokens * mixes) * static_cast<double>(cols)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto x = uniform_matrix<T>(tokens, cols, -2, 2, 1), phi = uniform_matrix<T>(cols, mixes, -0.02, 0.02, 2);
    const auto b = uniform<A>(mixes, -0.5, 0.5, 3), alpha = uniform<A>(3, 0.5, 1, 4);
    const matrix<A> h_pre(tokens, n), h_post(tokens, n), h_res(tokens, n * n), mix(tokens, mixes);
    const buffer<A> rstd(tokens), history(history_of<B, T>(tokens, n));
    const auto weights = [=] { return tigon::mhc_weights{phi.view(), b.span(), alpha.span()}; };
    const auto saved = [=] { return tigon::mhc_coeffs_saved<A>{mix.view(), rstd.span(), history.span()}; };
    const auto steps = steps_for<B, passes::mhc_coeffs_steps<T>>(tokens, n, backward ? cols : 0);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        steps->forward(ctx, x.view(), phi.view(), b.data(), alpha.data(), h_pre.view(), h_post.view(), h_res.view());
      else
        tigon::mhc_coeffs_forward<B>(x.view(), weights(), {h_pre.view(), h_post.view(), h_res.view()}, saved(), {},
                                     ctx);
    };
    const std::size_t forward_bytes =
        h_pre.bytes() + h_post.bytes() + h_res.bytes() + mix.bytes() + rstd.bytes() + history.bytes() + bytes_of(steps);
    if (!backward) return {.run = run_forward, .restore = {}, .output_bytes = forward_bytes};

    run_forward();  // leaves mix and rstd
    const auto dh_pre = uniform_matrix<A>(tokens, n, -1, 1, 5), dh_post = uniform_matrix<A>(tokens, n, -1, 1, 6),
               dh_res = uniform_matrix<A>(tokens, n * n, -1, 1, 7);
    const matrix<T> dx(tokens, cols), dphi(cols, mixes);
    const buffer<A> db(mixes), dalpha(3);
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  if constexpr (std::same_as<B, plain>)
                    steps->backward(ctx, x.view(), phi.view(), alpha.data(),
                                    {dh_pre.view(), dh_post.view(), dh_res.view()}, h_pre.view(), h_post.view(),
                                    {dx.view(), dphi.view(), db.data(), dalpha.data()});
                  else
                    tigon::mhc_coeffs_backward<B>(
                        {dh_pre.view(), dh_post.view(), dh_res.view()}, x.view(), weights(), saved(),
                        tigon::mhc_coeffs_gradients{dx.view(), dphi.view(), db.span(), dalpha.span()}, {}, ctx);
                },
            .restore = {},
            .output_bytes = (forward ? forward_bytes : 0) + dx.bytes() + dphi.bytes() + db.bytes() + dalpha.bytes()};
  };
  return p;
}

}  // namespace

op_entry mhc_coeffs() {
  return with_plain({.name = "mhc_coeffs",
                     .dims = "tokens x streams x channels",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 4, 4096}, {mode::forward, mode::backward, mode::full}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return mhc_coeffs_plan<B, T>(r); });
}

}  // namespace tigon_bench
