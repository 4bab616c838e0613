#include <tigon/losses/fused_linear_grpo.hpp>

#include "ops/policy.hpp"
#include "ops/products.hpp"

namespace tigon_bench {
namespace {

/// The loss and all gradients in one call: three products of tokens, hidden and vocab, and one more for a reference
/// layer. Of a sequence that does not fit in a chunk most logits are made twice, which the limit does not count.
template <class B, class T>
plan fused_linear_grpo_plan(const request& r) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2];
  const bool layer = r.variant == "reference";
  const double flops =
      (layer ? 4 : 3) * 2.0 * static_cast<double>(tokens) * static_cast<double>(hidden) * static_cast<double>(vocab);
  plan p;
  p.limits.push_back(product_peak<T>(flops));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform_matrix<T>(tokens, hidden, -1, 1, 1), w = uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2);
    const auto ref_w = layer ? uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 3) : matrix<T>();
    const matrix<T> dx(tokens, hidden), dw(vocab, hidden);
    const policy_case<A> c(tokens, vocab);
    const tigon::policy_options opt = policy_options_of(r);
    return {.run =
                [=, &ctx] {
                  tigon::reference_model<T> reference;
                  if (layer) reference.layer = {x.view(), ref_w.view()};
                  tigon::fused_linear_grpo_forward<B, T>({x.view(), w.view()}, c.given(!layer), {c.loss.span()},
                                                         {dx.view(), dw.view()}, opt, reference, {}, ctx);
                },
            .restore = {},
            .output_bytes = 0};  // memory of this op means what it needs beside its gradients
  };
  return p;
}

}  // namespace

op_entry fused_linear_grpo() {
  return {.name = "fused_linear_grpo",
          .dims = "tokens x hidden x vocab",
          .dtypes = all_dtypes(),
          .variants = {{"default", {2048, 2048, 32000}, {mode::full}},
                       {"sequence", {2048, 2048, 32000}, {mode::full}},
                       {"reference", {2048, 2048, 32000}, {mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return fused_linear_grpo_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
