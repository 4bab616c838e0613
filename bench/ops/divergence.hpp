// The plan that the divergences of two distributions share.
#ifndef TIGON_BENCH_OPS_DIVERGENCE_HPP
#define TIGON_BENCH_OPS_DIVERGENCE_HPP

#include "ops/table.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {

/// Numbers of a row that look like those of a model over some 32000 words.
struct divergence_inputs {
  double student_low, student_high, teacher_low, teacher_high;
};

/// forward is the loss alone; full makes the gradient in the same pass; backward makes it from `backward_reads` arrays.
/// forward(student, teacher, loss, dstudent, ctx), backward(student, teacher, upstream, dstudent, ctx). The variant
/// in_place writes the gradient over the student.
template <class B, class T, class Forward, class Backward>
plan divergence_plan(const request& r, divergence_inputs in, int backward_reads, Forward forward, Backward backward) {
  const std::size_t rows = r.shape[0], vocab = r.shape[1], bytes = rows * vocab * sizeof(T);
  const mode direction = r.direction;
  const bool in_place = r.variant == "in_place";
  if (std::same_as<B, plain> && direction == mode::backward)
    throw unsupported("plain makes the gradient with the loss");
  plan p;
  if (direction == mode::backward)
    p.limits.push_back(limit_request::stream(backward_reads, 1, bytes));
  else
    p.limits.push_back(limit_request::stream(2, direction == mode::full ? 1 : 0, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto student = uniform_matrix<T>(rows, vocab, in.student_low, in.student_high, 1);
    const auto teacher = uniform_matrix<T>(rows, vocab, in.teacher_low, in.teacher_high, 2);
    const auto dstudent = in_place ? student : direction == mode::forward ? matrix<T>() : matrix<T>(rows, vocab);
    const auto one = uniform<A>(1, 0.5, 0.5, 3);
    const buffer<A> loss(1);
    runnable run;
    if (direction == mode::backward)
      run.run = [=, &ctx] {
        backward(student.view(), teacher.view(), std::span<const A>(one.span()), dstudent.view(), ctx);
      };
    else
      run.run = [=, &ctx] { forward(student.view(), teacher.view(), loss.span(), dstudent.view(), ctx); };
    if (in_place) run.restore = [=] { student.fill(in.student_low, in.student_high, 1); };
    run.output_bytes = loss.bytes() + (in_place ? 0 : dstudent.bytes());
    return run;
  };
  return p;
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_DIVERGENCE_HPP
