// Losses of a student and a teacher: what their benchmarks share.
#ifndef TIGON_BENCH_OPS_DISTILLATION_HPP
#define TIGON_BENCH_OPS_DISTILLATION_HPP

#include <tigon/losses/parts/distillation_contract.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>
#include <string>

namespace tigon_bench {

/// Everything that a loss of two layers is called with.
template <class T>
struct distillation_case {
  matrix<T> x, w, teacher_x, teacher_w, dx, dw;
  buffer<std::int32_t> target;
  buffer<tigon::accumulator_t<T>> loss;

  tigon::linear_layer<T> student() const { return {x.view(), w.view()}; }
  tigon::linear_layer<T> teacher() const { return {teacher_x.view(), teacher_w.view()}; }
  tigon::linear_gradients<T> gradients() const { return {dx.view(), dw.view()}; }
};

/// All losses and the student's gradients in one call: the teacher's product of tokens, its own hidden size (here
/// twice the student's) and vocab, and three products of the student.
template <class B, class T, class Call>
plan distillation_plan(const request& r, Call call) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2], teacher_hidden = 2 * hidden;
  const double flops =
      2.0 * static_cast<double>(tokens) * static_cast<double>(3 * hidden + teacher_hidden) * static_cast<double>(vocab);
  plan p;
  p.limits.push_back(product_peak<T>(flops));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const distillation_case<T> c{uniform_matrix<T>(tokens, hidden, -1, 1, 1),
                                 uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2),
                                 uniform_matrix<T>(tokens, teacher_hidden, -1, 1, 3),
                                 uniform_matrix<T>(vocab, teacher_hidden, -0.05, 0.05, 4),
                                 matrix<T>(tokens, hidden),
                                 matrix<T>(vocab, hidden),
                                 uniform<std::int32_t>(tokens, 0, static_cast<double>(vocab) - 1, 5),
                                 buffer<tigon::accumulator_t<T>>(1)};
    return {.run = [=, &ctx] { call(c, ctx); }, .restore = {}, .output_bytes = 0};  // memory: beside the gradients
  };
  return p;
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_DISTILLATION_HPP
