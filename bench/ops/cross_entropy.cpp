#include <tigon/losses/cross_entropy.hpp>

#include "ops/table.hpp"
#include "plain/losses.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {
namespace {

/// forward is the loss alone; full makes the gradient in the same pass.
template <class B, class T>
plan cross_entropy_plan(const request& r) {
  const std::size_t rows = r.shape[0], vocab = r.shape[1], bytes = rows * vocab * sizeof(T);
  const bool in_place = r.variant == "in_place", gradient = r.direction == mode::full;
  plan p;
  p.limits.push_back(limit_request::stream(1, gradient ? 1 : 0, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto logits = uniform_matrix<T>(rows, vocab, -4, 4, 1);
    const auto target = uniform<std::int32_t>(rows, 0, static_cast<double>(vocab) - 1, 2);
    const auto dlogits = !gradient ? matrix<T>() : in_place ? logits : matrix<T>(rows, vocab);
    const buffer<A> loss(1);
    runnable run;
    run.run = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        passes::cross_entropy<T>(ctx, logits.view(), target.span(), loss.data(), dlogits.view());
      else
        tigon::cross_entropy_forward<B>(logits.view(), target.span(), loss.span(), dlogits.view(), {}, tigon::absent,
                                        {}, ctx);
    };
    if (in_place) run.restore = [=] { logits.fill(-4, 4, 1); };
    run.output_bytes = loss.bytes() + (in_place ? 0 : dlogits.bytes());
    return run;
  };
  return p;
}

}  // namespace

op_entry cross_entropy() {
  return with_plain(
      {.name = "cross_entropy",
       .dims = "tokens x vocab",
       .dtypes = all_dtypes(),
       .variants = {{"default", {1024, 32000}, {mode::forward, mode::full}}, {"in_place", {1024, 32000}, {mode::full}}},
       .backends = {},
       .make_plan = {}},
      []<class B, class T>(const request& r) { return cross_entropy_plan<B, T>(r); });
}

}  // namespace tigon_bench
