#include <tigon/losses/fused_linear_scaled_cross_entropy.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
#include "plain/linear_losses.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {
namespace {

/// nll and entropy of every token and all gradients, with upstream gradients that are known beforehand: three products
/// of tokens, hidden and vocab.
template <class B, class T>
plan fused_linear_scaled_cross_entropy_plan(const request& r) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2];
  const bool trained = has_backward(r.direction);
  plan p;
  p.limits.push_back(product_peak<T>(linear_flops(trained ? 3 : 1, r)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform_matrix<T>(tokens, hidden, -1, 1, 1), w = uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2);
    const auto target = uniform<std::int32_t>(tokens, 0, static_cast<double>(vocab) - 1, 3);
    const auto of_nll = uniform<A>(tokens, 0.25, 1.25, 4), of_entropy = uniform<A>(tokens, -0.02, -0.01, 5);
    const matrix<T> dx(trained ? tokens : 0, hidden), dw(trained ? vocab : 0, hidden);
    const auto gradients = [=] {
      return trained ? tigon::linear_gradients<T>{dx.view(), dw.view()} : tigon::linear_gradients<T>{};
    };
    const auto steps = steps_for<B, passes::logit_steps<T>>(tokens, vocab);
    const buffer<A> nll(tokens), entropy(tokens);
    return {.run =
                [=, &ctx] {
                  if constexpr (std::same_as<B, plain>)
                    passes::linear_scaled_cross_entropy<T, A>(
                        ctx, {x.view(), w.view(), {}, dx.view(), dw.view(), {}}, target.span(), *steps,
                        {nll.data(), entropy.data(), of_nll.data(), of_entropy.data()});
                  else if (trained)
                    tigon::fused_linear_scaled_cross_entropy_forward<B, T>({x.view(), w.view()}, target.span(),
                                                                           {nll.span(), entropy.span()}, gradients(),
                                                                           {}, {of_nll.span(), of_entropy.span()}, ctx);
                  else
                    tigon::fused_linear_scaled_cross_entropy_forward<B, T>(
                        {x.view(), w.view()}, target.span(), {nll.span(), entropy.span()}, {}, {}, {}, ctx);
                },
            .restore = {},
            .output_bytes = bytes_of(steps)};  // memory of this op means what it needs beside its gradients
  };
  return p;
}

}  // namespace

op_entry fused_linear_scaled_cross_entropy() {
  return linear_loss_entry(
      "fused_linear_scaled_cross_entropy", {2048, 2048, 32000},
      []<class B, class T>(const request& r) { return fused_linear_scaled_cross_entropy_plan<B, T>(r); });
}

}  // namespace tigon_bench
