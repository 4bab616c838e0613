#include <tigon/losses/vocab_parallel_cross_entropy.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {
namespace {

/// One rank with the whole vocabulary: what every rank does with its part, and nothing that is sent.
template <class B, class T>
plan vocab_parallel_cross_entropy_plan(const request& r) {
  const std::size_t rows = r.shape[0], vocab = r.shape[1], bytes = rows * vocab * sizeof(T);
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(1, 0, bytes));
  if (backward) p.limits.push_back(limit_request::stream(1, 1, bytes));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto logits = uniform_matrix<T>(rows, vocab, -4, 4, 1);
    const auto target = uniform<std::int32_t>(rows, 0, static_cast<double>(vocab) - 1, 2);
    const auto upstream = uniform<A>(1, 1, 1, 3);
    const auto dlogits = backward ? matrix<T>(rows, vocab) : matrix<T>();
    const buffer<A> loss(rows), top(rows), rest(rows);
    const tigon::vocab_shard all{0, vocab};
    const tigon::vocab_parallel_cross_entropy_options opt{.label_smoothing = r.variant == "smoothed" ? 0.1 : 0};
    const auto run_forward = [=, &ctx] {
      tigon::vocab_parallel_cross_entropy_forward<B>(tigon::comm::serial{}, logits.view(), all, target.span(),
                                                     {loss.span(), top.span(), rest.span()}, opt, ctx);
    };
    runnable run;
    if (!forward) run_forward();  // what backward reads
    run.run = [=, &ctx] {
      if (forward) run_forward();
      if (backward)
        tigon::vocab_parallel_cross_entropy_backward<B>(logits.view(), all, target.span(), upstream.span(),
                                                        {top.span(), rest.span()}, dlogits.view(), opt, ctx);
    };
    run.output_bytes = loss.bytes() + top.bytes() + rest.bytes() + dlogits.bytes();
    return run;
  };
  return p;
}

}  // namespace

op_entry vocab_parallel_cross_entropy() {
  return {.name = "vocab_parallel_cross_entropy",
          .dims = "tokens x vocab",
          .dtypes = all_dtypes(),
          .variants = {{"default", {1024, 32000}, {mode::forward, mode::backward, mode::full}},
                       {"smoothed", {1024, 32000}, {mode::forward}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return vocab_parallel_cross_entropy_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
