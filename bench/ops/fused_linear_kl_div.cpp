#include <tigon/losses/fused_linear_kl_div.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
#include "plain/linear_losses.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {
namespace {

/// The loss and all gradients in one call: three products of tokens, hidden and vocab, and the teacher, which is read
/// once.
template <class B, class T>
plan fused_linear_kl_div_plan(const request& r) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2];
  const bool trained = has_backward(r.direction);
  plan p;
  p.limits.push_back(product_peak<T>(linear_flops(trained ? 3 : 1, r)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const bool log_target = r.variant == "log_target";
    const auto x = uniform_matrix<T>(tokens, hidden, -1, 1, 1), w = uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2);
    // Of about the size that they have; rows need not sum to 1.
    const auto teacher =
        log_target ? uniform_matrix<T>(tokens, vocab, -14, -8, 3) : uniform_matrix<T>(tokens, vocab, 0, 6e-5, 3);
    const matrix<T> dx(trained ? tokens : 0, hidden), dw(trained ? vocab : 0, hidden);
    const auto gradients = [=] {
      return trained ? tigon::linear_gradients<T>{dx.view(), dw.view()} : tigon::linear_gradients<T>{};
    };
    const auto steps = steps_for<B, passes::logit_steps<T>>(tokens, vocab);
    const buffer<A> loss(1);
    return {.run =
                [=, &ctx] {
                  if constexpr (std::same_as<B, plain>)
                    passes::linear_kl_div<T, A>(ctx, {x.view(), w.view(), {}, dx.view(), dw.view(), {}}, teacher.view(),
                                                *steps, loss.data());
                  else
                    tigon::fused_linear_kl_div_forward<B, T>({x.view(), w.view()}, teacher.view(), tigon::absent,
                                                             loss.span(), gradients(), {.log_target = log_target}, ctx);
                },
            .restore = {},
            .output_bytes = bytes_of(steps)};  // memory of this op means what it needs beside its gradients
  };
  return p;
}

}  // namespace

op_entry fused_linear_kl_div() {
  return with_plain({.name = "fused_linear_kl_div",
                     .dims = "tokens x hidden x vocab",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 1024, 32000}, linear_loss_modes()},
                                  {"log_target", {2048, 1024, 32000}, linear_loss_modes()}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return fused_linear_kl_div_plan<B, T>(r); });
}

}  // namespace tigon_bench
