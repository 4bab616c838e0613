#include <tigon/losses/selective_log_softmax.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {
namespace {

template <class B, class T>
plan selective_log_softmax_plan(const request& r) {
  const std::size_t tokens = r.shape[0], vocab = r.shape[1], bytes = tokens * vocab * sizeof(T);
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
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
    const buffer<tigon::lse_parts<A>> saved(tokens);
    const tigon::matrix_view<const std::int32_t> ids(target.data(), 1, tokens);
    const auto run_forward = [=, &ctx] {
      tigon::selective_log_softmax_forward<B>(logits.view(), ids, logp.view(), {}, tigon::absent, saved.span(), ctx);
    };
    if (!forward) run_forward();
    return {.run =
                [=, &ctx] {
                  (void)target;  // ids is a view of it
                  if (forward) run_forward();
                  if (backward)
                    tigon::selective_log_softmax_backward<B>(logits.view(), ids, saved.span(), dlogp.view(),
                                                             dlogits.view(), {}, tigon::absent, ctx);
                },
            .restore = {},
            .output_bytes = (forward ? logp.values.bytes() : 0) + dlogits.bytes()};
  };
  return p;
}

}  // namespace

op_entry selective_log_softmax() {
  return {.name = "selective_log_softmax",
          .dims = "tokens x vocab",
          .dtypes = all_dtypes(),
          .variants = {{"default", {1024, 32000}, {mode::forward, mode::backward, mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return selective_log_softmax_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
