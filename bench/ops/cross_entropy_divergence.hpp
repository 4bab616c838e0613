// Cross entropy and a divergence of the same logits: what their benchmarks share.
#ifndef TIGON_BENCH_OPS_CROSS_ENTROPY_DIVERGENCE_HPP
#define TIGON_BENCH_OPS_CROSS_ENTROPY_DIVERGENCE_HPP

#include <tigon/losses/cross_entropy_divergence.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>
#include <string>

namespace tigon_bench {

/// Both losses and the gradient in one call: two matrices read and one written. call(logits, target, teacher, loss,
/// dlogits, ctx).
template <class B, class T, class Call>
plan cross_entropy_divergence_plan(const request& r, double lowest, double highest, Call call) {
  const std::size_t rows = r.shape[0], vocab = r.shape[1], bytes = rows * vocab * sizeof(T);
  plan p;
  p.limits.push_back(limit_request::stream(2, 1, bytes));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto logits = uniform_matrix<T>(rows, vocab, -4, 4, 1),
               teacher = uniform_matrix<T>(rows, vocab, lowest, highest, 2);
    const auto target = uniform<std::int32_t>(rows, 0, static_cast<double>(vocab) - 1, 3);
    const matrix<T> dlogits(rows, vocab);
    const buffer<tigon::accumulator_t<T>> loss(1);
    return {.run = [=, &ctx] { call(logits, target, teacher, loss, dlogits, ctx); },
            .restore = {},
            .output_bytes = dlogits.bytes() + loss.bytes()};
  };
  return p;
}

template <class Plan>
op_entry cross_entropy_divergence_entry(const char* name, Plan make) {
  return {.name = name,
          .dims = "tokens x vocab",
          .dtypes = all_dtypes(),
          .variants = {{"default", {1024, 32000}, {mode::full}}},
          .backends = all_backends::names(),
          .make_plan = make};
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_CROSS_ENTROPY_DIVERGENCE_HPP
