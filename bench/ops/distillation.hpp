// Losses of a student and a teacher: what their benchmarks share.
#ifndef TIGON_BENCH_OPS_DISTILLATION_HPP
#define TIGON_BENCH_OPS_DISTILLATION_HPP

#include <tigon/losses/divergence/fused_linear_distillation_options.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
#include "plain/linear_losses.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>
#include <memory>
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
  tigon::linear_gradients<T> gradients() const {
    if (dx.rows == 0) return {};
    return {dx.view(), dw.view()};
  }

  std::shared_ptr<passes::logit_steps<T>> steps;
  matrix<T> teacher_logits, of_labels;
  /// The same in elementary steps, by a soft loss of logits.
  template <class Soft>
  void in_steps(tigon::context& ctx, passes::soft_weights weights, Soft soft) const {
    const passes::linear<T> of_student{x.view(), w.view(), {}, dx.view(), dw.view(), {}},
        of_teacher{teacher_x.view(), teacher_w.view(), {}, {}, {}, {}};
    passes::linear_distillation<T, tigon::accumulator_t<T>>(ctx, {of_student, of_teacher}, target.span(), *steps,
                                                            {teacher_logits.view(), of_labels.view()}, weights,
                                                            loss.data(), soft);
  }
};

/// All losses and the student's gradients in one call, or the losses alone: the teacher's product of tokens, its own
/// hidden size (here twice the student's) and vocab, and three products of the student, or one.
template <class B, class T, class Call>
plan distillation_plan(const request& r, Call call) {
  const std::size_t tokens = r.shape[0], hidden = r.shape[1], vocab = r.shape[2], teacher_hidden = 2 * hidden;
  const bool trained = has_backward(r.direction);
  plan p;
  p.limits.push_back(product_peak<T>(linear_flops(trained ? 5 : 3, r)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const distillation_case<T> c{uniform_matrix<T>(tokens, hidden, -1, 1, 1),
                                 uniform_matrix<T>(vocab, hidden, -0.05, 0.05, 2),
                                 uniform_matrix<T>(tokens, teacher_hidden, -1, 1, 3),
                                 uniform_matrix<T>(vocab, teacher_hidden, -0.05, 0.05, 4),
                                 matrix<T>(trained ? tokens : 0, hidden),
                                 matrix<T>(trained ? vocab : 0, hidden),
                                 uniform<std::int32_t>(tokens, 0, static_cast<double>(vocab) - 1, 5),
                                 buffer<tigon::accumulator_t<T>>(1),
                                 steps_for<B, passes::logit_steps<T>>(tokens, vocab),
                                 matrix<T>(std::same_as<B, plain> ? tokens : 0, vocab),
                                 matrix<T>(std::same_as<B, plain> && trained ? tokens : 0, vocab)};
    // Memory: beside the gradients.
    return {.run = [=, &ctx] { call(c, ctx); },
            .restore = {},
            .output_bytes = bytes_of(c.steps) + c.teacher_logits.bytes() + c.of_labels.bytes()};
  };
  return p;
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_DISTILLATION_HPP
