#include <tigon/losses/fused_linear_kl_div.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
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
  const double flops = 3 * 2.0 * static_cast<double>(tokens) * static_cast<double>(hidden) * static_cast<double>(vocab);
  plan p;
  p.limits.push_back(product_peak<T>(flops));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const bool log_target = r.variant == "log_target";
    const auto x = uniform_matrix<T>(tokens, hidden, -1, 1, 1), w = uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2);
    // Of about the size that they have; rows need not sum to 1.
    const auto teacher =
        log_target ? uniform_matrix<T>(tokens, vocab, -14, -8, 3) : uniform_matrix<T>(tokens, vocab, 0, 6e-5, 3);
    const matrix<T> dx(tokens, hidden), dw(vocab, hidden);
    const buffer<A> loss(1);
    return {.run =
                [=, &ctx] {
                  tigon::fused_linear_kl_div_forward<B, T>({x.view(), w.view()}, teacher.view(), tigon::absent,
                                                           loss.span(), {dx.view(), dw.view()},
                                                           {.log_target = log_target}, ctx);
                },
            .restore = {},
            .output_bytes = 0};  // memory of this op means what it needs beside its gradients
  };
  return p;
}

}  // namespace

op_entry fused_linear_kl_div() {
  return {
      .name = "fused_linear_kl_div",
      .dims = "tokens x hidden x vocab",
      .dtypes = all_dtypes(),
      .variants = {{"default", {2048, 1024, 32000}, {mode::full}}, {"log_target", {2048, 1024, 32000}, {mode::full}}},
      .backends = all_backends::names(),
      .make_plan = [](const request& r) {
        return with_types<plan>(r, [&]<class B, class T>() { return fused_linear_kl_div_plan<B, T>(r); });
      }};
}

}  // namespace tigon_bench
