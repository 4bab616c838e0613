#include <tigon/losses/selective_log_softmax.hpp>

#include "ops/table.hpp"
#include "plain/linear_losses.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {
namespace {

template <class B, class T>
plan selective_log_softmax_plan(const request& r) {
  const std::size_t tokens = r.shape[0], vocab = r.shape[1], bytes = tokens * vocab * sizeof(T);
  const bool forward = has_forward(r.direction), backward = has_backward(r.direction),
             saves = !std::same_as<B, plain> && r.direction != mode::no_grad_forward;
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(1, 0, bytes, false));
  if (backward) p.limits.push_back(limit_request::stream(1, 1, bytes, false));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto logits = uniform_matrix<T>(tokens, vocab, -4, 4, 1);
    const auto dlogits = backward ? matrix<T>(tokens, vocab) : matrix<T>();
    const auto target = uniform<std::int32_t>(tokens, 0, static_cast<double>(vocab) - 1, 2);
    const auto dlogp = uniform_matrix<A>(1, tokens, -1, 1, 3);
    const matrix<A> logp(1, tokens);
    const buffer<tigon::lse_parts<A>> saved(saves ? tokens : 0);
    const tigon::matrix_view<const std::int32_t> ids(target.data(), 1, tokens);
    const auto steps = steps_for<B, passes::logit_steps<T>>(tokens, vocab);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        steps->log_probabilities_of(ctx, logits.view(), target.span(), logp.values.data());
      else
        tigon::selective_log_softmax_forward<B>(logits.view(), ids, logp.view(), {}, tigon::absent, saved.span(), ctx);
    };
    if (!forward) run_forward();
    return {.run =
                [=, &ctx] {
                  (void)target;  // ids is a view of it
                  if (forward) run_forward();
                  if (!backward) return;
                  if constexpr (std::same_as<B, plain>)
                    steps->log_probabilities_backward(ctx, target.span(), static_cast<const A*>(dlogp.values.data()),
                                                      dlogits.view());
                  else
                    tigon::selective_log_softmax_backward<B>(logits.view(), ids, saved.span(), dlogp.view(),
                                                             dlogits.view(), {}, tigon::absent, ctx);
                },
            .restore = {},
            .output_bytes = (forward ? logp.values.bytes() + saved.bytes() : 0) + dlogits.bytes() + bytes_of(steps)};
  };
  return p;
}

}  // namespace

op_entry selective_log_softmax() {
  return with_plain(
      {.name = "selective_log_softmax",
       .dims = "tokens x vocab",
       .dtypes = all_dtypes(),
       .variants = {{"default", {1024, 32000}, {mode::no_grad_forward, mode::forward, mode::backward, mode::full}}},
       .backends = {},
       .make_plan = {}},
      []<class B, class T>(const request& r) { return selective_log_softmax_plan<B, T>(r); });
}

}  // namespace tigon_bench
