#include <tigon/losses/fused_linear_cross_entropy.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
#include "plain/linear_losses.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {
namespace {

/// The same backend by tiles of 512 rows and 8192 columns.
template <class B>
struct by_tiles : B {
  static constexpr tigon::chunk_tuning chunk = tigon::chunk_tuning::stream(512, 8192);
};

/// Rows of logits at a time, 0 for those of the backend.
template <class A>
std::size_t rows_of(const request& r) {
  using tigon::chunk_tuning;
  const auto by = [&](chunk_tuning policy) {
    return tigon::detail::chunk_rows(policy, sizeof(A), r.shape[0], r.shape[1], r.shape[2]);
  };
  if (r.variant == "liger") return by(chunk_tuning::liger());
  if (r.variant == "rows_256") return 256;
  if (r.variant == "budget_16M") return by(chunk_tuning::budget(std::size_t{16} << 20));
  return 0;
}

/// Targets of classes; in the variant half_ignored every other row has none, but for plain passes, which know no such
/// rows.
template <class B>
buffer<std::int32_t> targets_of(const request& r) {
  auto target = uniform<std::int32_t>(r.shape[0], 0, static_cast<double>(r.shape[2]) - 1, 3);
  if (!std::same_as<B, plain> && r.variant == "half_ignored" && !counting())
    for (std::size_t i = 0; i < r.shape[0]; i += 2) target.data()[i] = -100;
  return target;
}

/// The loss and all gradients in one call: three products of tokens, hidden and vocab; the loss alone: one. Of a 16-bit
/// layer the second and third multiply gradients in f32, but the limit asks for the same three as an all-bf16 layer
/// would run them.
template <class B, class T>
plan fused_linear_cross_entropy_plan(const request& r) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2];
  const bool trained = has_backward(r.direction);
  plan p;
  p.limits.push_back(product_peak<T>(linear_flops(trained ? 3 : 1, r)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform_matrix<T>(tokens, hidden, -1, 1, 1), w = uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2);
    const auto target = targets_of<B>(r);
    const matrix<T> dx(trained ? tokens : 0, hidden), dw(trained ? vocab : 0, hidden);
    const auto gradients = [=] {
      return trained ? tigon::linear_gradients<T>{dx.view(), dw.view()} : tigon::linear_gradients<T>{};
    };
    const buffer<A> loss(1);
    const std::size_t rows = rows_of<A>(r);
    const bool tiles = r.variant == "stream";
    if constexpr (std::same_as<B, plain>) {
      const matrix<T> logits(tokens, vocab), dlogits(trained ? tokens : 0, vocab);
      return {.run =
                  [=, &ctx] {
                    passes::linear_cross_entropy<T>(ctx, {x.view(), w.view(), {}, dx.view(), dw.view(), {}},
                                                    target.span(), loss.data(), logits, dlogits);
                  },
              .restore = {},
              .output_bytes = logits.bytes() + dlogits.bytes()};
    } else {
      const auto call = [=, &ctx]<class Backend>() {
        tigon::fused_linear_cross_entropy_forward<Backend, T>({x.view(), w.view()}, target.span(), {loss.span()},
                                                              gradients(), {}, tigon::absent, {}, ctx);
      };
      return {.run =
                  [=, &ctx] {
                    ctx.logit_rows(rows);
                    if (tiles)
                      call.template operator()<by_tiles<B>>();
                    else
                      call.template operator()<B>();
                    ctx.logit_rows(0);
                  },
              .restore = {},
              .output_bytes = 0};  // memory of this op means what it needs beside its gradients
    }
  };
  return p;
}

}  // namespace

op_entry fused_linear_cross_entropy() {
  return with_plain({.name = "fused_linear_cross_entropy",
                     .dims = "tokens x hidden x vocab",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 2048, 32000}, linear_loss_modes()},
                                  {"liger", {2048, 2048, 32000}, linear_loss_modes()},
                                  {"rows_256", {2048, 2048, 32000}, linear_loss_modes()},
                                  {"budget_16M", {2048, 2048, 32000}, linear_loss_modes()},
                                  {"stream", {2048, 2048, 32000}, linear_loss_modes()},
                                  {"half_ignored", {2048, 2048, 32000}, linear_loss_modes()}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return fused_linear_cross_entropy_plan<B, T>(r); });
}

}  // namespace tigon_bench
