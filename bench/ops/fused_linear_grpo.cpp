#include <tigon/losses/fused_linear_grpo.hpp>

#include "ops/policy.hpp"
#include "ops/products.hpp"
#include "plain/linear_losses.hpp"
#include "plain/sequences.hpp"

namespace tigon_bench {
namespace {

/// The loss and all gradients in one call: three products of tokens, hidden and vocab, and one more for a reference
/// layer. Of a sequence that does not fit in a chunk most logits are made twice, which the limit does not count.
template <class B, class T>
plan fused_linear_grpo_plan(const request& r) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2];
  const bool layer = r.variant == "reference";
  const bool trained = has_backward(r.direction);
  plan p;
  p.limits.push_back(product_peak<T>(linear_flops((trained ? 3 : 1) + (layer ? 1 : 0), r)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform_matrix<T>(tokens, hidden, -1, 1, 1), w = uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2);
    const auto ref_w = layer ? uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 3) : matrix<T>();
    const matrix<T> dx(trained ? tokens : 0, hidden), dw(trained ? vocab : 0, hidden);
    const auto gradients = [=] {
      return trained ? tigon::linear_gradients<T>{dx.view(), dw.view()} : tigon::linear_gradients<T>{};
    };
    const auto steps = steps_for<B, passes::logit_steps<T>>(tokens, vocab);
    const buffer<A> logp(steps == nullptr ? 0 : tokens);
    const policy_case<A> c(tokens, vocab);
    const tigon::policy_options opt = policy_options_of(r);
    return {
        .run =
            [=, &ctx] {
              if constexpr (std::same_as<B, plain>) {
                const passes::linear<T> policy{x.view(), w.view(), {}, dx.view(), dw.view(), {}};
                passes::linear_token_loss<T, A>(ctx, policy, {}, c.ids.span(), *steps, {logp.span(), c.ref_logp.span()},
                                                c.loss.data(),
                                                passes::of_policy<A>(c.batch, c.advantages.span(), opt.beta));
              } else {
                tigon::reference_model<T> reference;
                if (layer) reference.layer = {x.view(), ref_w.view()};
                tigon::fused_linear_grpo_forward<B, T>({x.view(), w.view()}, c.given(!layer), {c.loss.span()},
                                                       gradients(), opt, reference, {}, ctx);
              }
            },
        .restore = {},
        .output_bytes = logp.bytes() + bytes_of(steps)};  // memory of this op means what it needs beside its gradients
  };
  return p;
}

}  // namespace

op_entry fused_linear_grpo() {
  return with_plain({.name = "fused_linear_grpo",
                     .dims = "tokens x hidden x vocab",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 2048, 32000}, linear_loss_modes()},
                                  {"sequence", {2048, 2048, 32000}, linear_loss_modes()},
                                  {"reference", {2048, 2048, 32000}, linear_loss_modes()}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return fused_linear_grpo_plan<B, T>(r); });
}

}  // namespace tigon_bench
