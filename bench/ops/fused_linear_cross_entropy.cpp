#include <tigon/losses/fused_linear_cross_entropy.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {
namespace {

/// The loss and all gradients in one call: three products of tokens, hidden and vocab. Of a 16-bit layer the second and
/// third multiply gradients in f32, but the limit asks for the same three as an all-bf16 layer would run them.
template <class B, class T>
plan fused_linear_cross_entropy_plan(const request& r) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2];
  const double flops = 3 * 2.0 * static_cast<double>(tokens) * static_cast<double>(hidden) * static_cast<double>(vocab);
  plan p;
  p.limits.push_back(product_peak<T>(flops));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform_matrix<T>(tokens, hidden, -1, 1, 1), w = uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2);
    const auto target = uniform<std::int32_t>(tokens, 0, static_cast<double>(vocab) - 1, 3);
    const matrix<T> dx(tokens, hidden), dw(vocab, hidden);
    const buffer<A> loss(1);
    return {.run =
                [=, &ctx] {
                  tigon::fused_linear_cross_entropy_forward<B>(x.view(), w.view(), target.span(), loss.span(),
                                                               dx.view(), dw.view(), {}, tigon::absent, tigon::absent,
                                                               tigon::absent, {}, {}, ctx);
                },
            .restore = {},
            .output_bytes = 0};  // memory of this op means what it needs beside its gradients
  };
  return p;
}

}  // namespace

op_entry fused_linear_cross_entropy() {
  return {.name = "fused_linear_cross_entropy",
          .dims = "tokens x hidden x vocab",
          .dtypes = all_dtypes(),
          .variants = {{"default", {2048, 2048, 32000}, {mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return fused_linear_cross_entropy_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
