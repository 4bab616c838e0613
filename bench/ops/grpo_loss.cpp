#include <tigon/losses/grpo_loss.hpp>

#include "ops/policy.hpp"

namespace tigon_bench {
namespace {

/// The logits are read once forward, and read and written once backward; `one_call` does with one reading.
template <class B, class T>
plan grpo_loss_plan(const request& r) {
  const std::size_t tokens = r.shape[0], vocab = r.shape[1], bytes = tokens * vocab * sizeof(T);
  const bool one_call = r.variant == "one_call", in_place = one_call || r.variant == "in_place",
             forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  plan p;
  if (forward && !one_call) p.limits.push_back(limit_request::stream(1, 0, bytes, false));
  if (backward) p.limits.push_back(limit_request::stream(1, 1, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto logits = uniform_matrix<T>(tokens, vocab, -4, 4, 1);
    const auto dlogits = !backward ? matrix<T>() : in_place ? logits : matrix<T>(tokens, vocab);
    const policy_case<A> c(tokens, vocab);
    const buffer<tigon::lse_parts<A>> saved(tokens);
    const tigon::policy_options opt = policy_options_of(r);
    const auto run_forward = [=, &ctx] {
      tigon::grpo_loss_forward<B>(logits.view(), c.given(), c.loss.span(), saved.span(), opt, {}, ctx);
    };
    if (!forward) run_forward();
    runnable run;
    run.run = [=, &ctx] {
      if (forward) run_forward();
      if (backward) tigon::grpo_loss_backward<B>(logits.view(), c.given(), saved.span(), {}, dlogits.view(), opt, ctx);
    };
    if (one_call)
      run.run = [=, &ctx] {
        tigon::grpo_loss_forward_backward<B>(logits.view(), c.given(), c.loss.span(), dlogits.view(), opt, {}, {}, ctx);
      };
    if (in_place && backward) run.restore = [=] { logits.fill(-4, 4, 1); };
    run.output_bytes = saved.bytes() + (in_place ? 0 : dlogits.bytes());
    return run;
  };
  return p;
}

}  // namespace

op_entry grpo_loss() {
  const std::vector<mode> every{mode::forward, mode::backward, mode::full};
  return {.name = "grpo_loss",
          .dims = "tokens x vocab",
          .dtypes = all_dtypes(),
          .variants = {{"default", {1024, 32000}, every},
                       {"sequence", {1024, 32000}, every},
                       {"in_place", {1024, 32000}, {mode::backward, mode::full}},
                       {"one_call", {1024, 32000}, {mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return grpo_loss_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
