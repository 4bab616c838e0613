#include <tigon/losses/fused_linear_jsd.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>
#include <type_traits>

namespace tigon_bench {
namespace {

/// The divergence and the student's gradients in one call: the teacher's product of tokens, its own hidden size (here
/// twice the student's) and vocab, and three products of the student.
template <class B, class T>
plan fused_linear_jsd_plan(const request& r) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2], teacher_hidden = 2 * hidden;
  const double flops =
      2.0 * static_cast<double>(tokens) * static_cast<double>(3 * hidden + teacher_hidden) * static_cast<double>(vocab);
  const limit_bound bound = std::is_same_v<T, double>            ? limit_bound::fma_f64
                            : std::is_same_v<T, tigon::bfloat16> ? limit_bound::bf16_dot
                                                                 : limit_bound::fma_f32;
  plan p;
  p.limits.push_back(limit_request::peak(bound, flops));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto x = uniform_matrix<T>(tokens, hidden, -1, 1, 1), w = uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2);
    const auto teacher_x = uniform_matrix<T>(tokens, teacher_hidden, -1, 1, 3),
               teacher_w = uniform_matrix<T>(vocab, teacher_hidden, -0.05, 0.05, 4);
    const matrix<T> dx(tokens, hidden), dw(vocab, hidden);
    const buffer<A> loss(1);
    return {.run =
                [=, &ctx] {
                  tigon::fused_linear_jsd_forward<B>(x.view(), w.view(), {teacher_x.view(), teacher_w.view()},
                                                     tigon::absent, loss.span(), dx.view(), dw.view(), {},
                                                     tigon::absent, tigon::absent, 1, ctx);
                },
            .restore = {},
            .output_bytes = 0};  // memory of this op means what it needs beside its gradients
  };
  return p;
}

}  // namespace

op_entry fused_linear_jsd() {
  return {.name = "fused_linear_jsd",
          .dims = "tokens x hidden x vocab",
          .dtypes = all_dtypes(),
          .variants = {{"default", {2048, 1024, 32000}, {mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return fused_linear_jsd_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
