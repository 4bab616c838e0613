#include <tigon/losses/selective_logprob.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
#include "plain/linear_losses.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {
namespace {

/// forward is one product of tokens, hidden and vocab; backward three, because it makes the logits again.
template <class B, class T>
plan selective_logprob_plan(const request& r) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2];
  const bool forward = r.direction == mode::forward;
  const double product = 2.0 * static_cast<double>(tokens) * static_cast<double>(hidden) * static_cast<double>(vocab);
  plan p;
  p.limits.push_back(product_peak<T>(forward ? product : 3 * product));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform_matrix<T>(tokens, hidden, -1, 1, 1), w = uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2);
    const auto target = uniform<std::int32_t>(tokens, 0, static_cast<double>(vocab) - 1, 3);
    const auto upstream = uniform<A>(tokens, -1, 1, 4);
    const buffer<A> logp(tokens);
    const buffer<tigon::lse_parts<A>> saved(tokens);
    const matrix<T> dx(forward ? 0 : tokens, hidden), dw(forward ? 0 : vocab, hidden);
    runnable run;
    if constexpr (std::same_as<B, plain>) {
      const auto steps = steps_for<B, passes::logit_steps<T>>(tokens, vocab);
      const passes::linear<T> layer{x.view(), w.view(), {}, dx.view(), dw.view(), {}};
      const auto first = [=, &ctx] {
        (void)x, (void)w;  // layer is a view of them
        steps->logits(ctx, layer);
        steps->log_probabilities(ctx, target.span(), logp.data());
      };
      if (forward) return {.run = first, .restore = {}, .output_bytes = steps->bytes()};
      first();
      return {.run =
                  [=, &ctx] {
                    (void)x, (void)w, (void)dx, (void)dw;
                    steps->log_probabilities_backward(ctx, target.span(), upstream.data(), steps->dz());
                    steps->gradients(ctx, layer);
                  },
              .restore = {},
              .output_bytes = steps->bytes()};
    } else if (forward) {
      run.run = [=, &ctx] {
        tigon::selective_logprob_forward<B, T>({x.view(), w.view()}, target.span(), logp.span(), saved.span(), {}, ctx);
      };
    } else {
      tigon::selective_logprob_forward<B, T>({x.view(), w.view()}, target.span(), logp.span(), saved.span(), {}, ctx);
      run.run = [=, &ctx] {
        tigon::selective_logprob_backward<B, T>({x.view(), w.view()}, target.span(), upstream.span(), saved.span(),
                                                {dx.view(), dw.view()}, {}, ctx);
      };
    }
    run.output_bytes = 0;  // memory: beside the gradients
    return run;
  };
  return p;
}

}  // namespace

op_entry selective_logprob() {
  return with_plain({.name = "selective_logprob",
                     .dims = "tokens x hidden x vocab",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 2048, 32000}, {mode::forward, mode::backward}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return selective_logprob_plan<B, T>(r); });
}

}  // namespace tigon_bench
