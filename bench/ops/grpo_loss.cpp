#include <tigon/losses/grpo_loss.hpp>

#include "ops/policy.hpp"
#include "plain/linear_losses.hpp"
#include "plain/sequences.hpp"

namespace tigon_bench {
namespace {

/// The logits are read once forward, and read and written once backward; `one_call` does with one reading.
template <class B, class T>
plan grpo_loss_plan(const request& r) {
  const std::size_t tokens = r.shape[0], vocab = r.shape[1], bytes = tokens * vocab * sizeof(T);
  const bool one_call = r.variant == "one_call", in_place = one_call || r.variant == "in_place",
             forward = has_forward(r.direction), backward = has_backward(r.direction),
             saves = !std::same_as<B, plain> && r.direction != mode::no_grad_forward;
  plan p;
  if (forward && !one_call) p.limits.push_back(limit_request::stream(1, 0, bytes, false));
  if (backward) p.limits.push_back(limit_request::stream(1, 1, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto logits = uniform_matrix<T>(tokens, vocab, -4, 4, 1);
    const auto dlogits = !backward ? matrix<T>() : in_place ? logits : matrix<T>(tokens, vocab);
    const policy_case<A> c(tokens, vocab);
    const buffer<tigon::lse_parts<A>> saved(saves ? tokens : 0);
    const tigon::policy_options opt = policy_options_of(r);
    const auto steps = steps_for<B, passes::logit_steps<T>>(tokens, vocab);
    const buffer<A> logp(steps == nullptr ? 0 : tokens);
    if constexpr (std::same_as<B, plain>) {
      // A framework makes the loss's own gradient in forward or backward: a few numbers a token.
      const auto made = passes::of_policy<A>(c.batch, c.advantages.span(), opt.beta);
      const auto first = [=, &ctx] {
        steps->log_probabilities_of(ctx, logits.view(), c.ids.span(), logp.data());
        c.loss[0] = static_cast<A>(made(logp.span(), c.ref_logp.span(), steps->room_for_gradients()));
      };
      if (!forward) first();
      return {.run =
                  [=, &ctx] {
                    if (forward) first();
                    if (backward)
                      steps->log_probabilities_backward(ctx, c.ids.span(), steps->room_for_gradients(), dlogits.view());
                  },
              .restore = {},
              .output_bytes = logp.bytes() + dlogits.bytes() + steps->bytes()};
    } else {
      const auto run_forward = [=, &ctx] {
        tigon::grpo_loss_forward<B>(logits.view(), c.given(), c.loss.span(), saved.span(), opt, {}, ctx);
      };
      if (!forward) run_forward();
      runnable run;
      run.run = [=, &ctx] {
        if (forward) run_forward();
        if (backward)
          tigon::grpo_loss_backward<B>(logits.view(), c.given(), saved.span(), {}, dlogits.view(), opt, ctx);
      };
      if (one_call)
        run.run = [=, &ctx] {
          tigon::grpo_loss_forward_backward<B>(logits.view(), c.given(), c.loss.span(), dlogits.view(), opt, {}, {},
                                               ctx);
        };
      if (in_place && backward) run.restore = [=] { logits.fill(-4, 4, 1); };
      run.output_bytes = saved.bytes() + (in_place ? 0 : dlogits.bytes());
      return run;
    }
  };
  return p;
}

}  // namespace

op_entry grpo_loss() {
  const std::vector<mode> every{mode::forward, mode::backward, mode::full};
  return with_plain(
      {.name = "grpo_loss",
       .dims = "tokens x vocab",
       .dtypes = all_dtypes(),
       .variants = {{"default", {1024, 32000}, {mode::no_grad_forward, mode::forward, mode::backward, mode::full}},
                    {"sequence", {1024, 32000}, every},
                    {"in_place", {1024, 32000}, {mode::backward, mode::full}},
                    {"one_call", {1024, 32000}, {mode::full}}},
       .backends = {},
       .make_plan = {}},
      []<class B, class T>(const request& r) { return grpo_loss_plan<B, T>(r); });
}

}  // namespace tigon_bench
