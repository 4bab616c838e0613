// Cross entropy and a divergence of the same logits: what their benchmarks share.
#ifndef TIGON_BENCH_OPS_CROSS_ENTROPY_DIVERGENCE_HPP
#define TIGON_BENCH_OPS_CROSS_ENTROPY_DIVERGENCE_HPP

#include <tigon/losses/cross_entropy_divergence.hpp>

#include "ops/table.hpp"
#include "plain/linear_losses.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>
#include <string>

namespace tigon_bench {

/// Both losses and the gradient in one call, two matrices read and one written, or the losses alone. call(logits,
/// target, teacher, loss, dlogits, ctx).
template <class B, class T, class Call>
plan cross_entropy_divergence_plan(const request& r, passes::distance by, double lowest, double highest, Call call) {
  const bool trained = has_backward(r.direction);
  const std::size_t rows = r.shape[0], vocab = r.shape[1], bytes = rows * vocab * sizeof(T);
  plan p;
  p.limits.push_back(limit_request::stream(2, trained ? 1 : 0, bytes));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto logits = uniform_matrix<T>(rows, vocab, -4, 4, 1),
               teacher = uniform_matrix<T>(rows, vocab, lowest, highest, 2);
    const auto target = uniform<std::int32_t>(rows, 0, static_cast<double>(vocab) - 1, 3);
    const auto dlogits = trained ? matrix<T>(rows, vocab) : matrix<T>();
    const buffer<tigon::accumulator_t<T>> loss(1);
    const auto steps = steps_for<B, passes::logit_steps<T>>(rows, vocab);
    return {.run =
                [=, &ctx] {
                  if constexpr (std::same_as<B, plain>)
                    passes::cross_entropy_and<T>(ctx, by, logits.view(), target.span(), teacher.view(), *steps,
                                                 loss.data(), dlogits.view());
                  else
                    call(logits, target, teacher, loss, dlogits, ctx);
                },
            .restore = {},
            .output_bytes = dlogits.bytes() + loss.bytes() + bytes_of(steps)};
  };
  return p;
}

template <class Plan>
op_entry cross_entropy_divergence_entry(const char* name, Plan make) {
  return with_plain({.name = name,
                     .dims = "tokens x vocab",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {1024, 32000}, {mode::no_grad_forward, mode::full}}},
                     .backends = {},
                     .make_plan = {}},
                    make);
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_CROSS_ENTROPY_DIVERGENCE_HPP
