// Softmax and losses in elementary steps: intermediate results in f32 (f64 of f64), as models in bf16 compute them.
#ifndef TIGON_BENCH_PLAIN_LOSSES_HPP
#define TIGON_BENCH_PLAIN_LOSSES_HPP

#include <cstdint>
#include <span>

#include "plain/norms.hpp"

namespace tigon_bench::passes {

template <class T>
void softmax_forward(tigon::context& ctx, in<T> x, out<T> y) {
  using A = tigon::accumulator_t<T>;
  temporaries<A> own(ctx, 1, x.rows, x.cols);
  const out<A> t = own.matrix();
  A* const s = own.numbers();
  max_rows(ctx, x, s);
  each_with(ctx, t, static_cast<const A*>(s), shifted, x);
  each(ctx, t, exponential, in<A>(t));
  sum_rows(ctx, in<A>(t), s);
  numbers(s, x.rows, [](A v) { return 1 / v; });
  each_with(ctx, y, static_cast<const A*>(s), scaled, in<A>(t));
}

template <class T>
void softmax_backward(tigon::context& ctx, in<T> dy, in<T> y, out<T> dx) {
  using A = tigon::accumulator_t<T>;
  temporaries<A> own(ctx, 1, y.rows, y.cols);
  const out<A> t = own.matrix();
  A* const s = own.numbers();
  each(ctx, t, product, dy, y);
  sum_rows(ctx, in<A>(t), s);
  each_with(ctx, t, static_cast<const A*>(s), shifted, dy);
  each(ctx, dx, product, in<A>(t), y);
}

/// y = log softmax of x; t is spent.
template <class T, class A>
void log_softmax(tigon::context& ctx, in<T> x, out<A> y, out<A> t, A* s) {
  max_rows(ctx, x, s);
  each_with(ctx, y, static_cast<const A*>(s), shifted, x);
  each(ctx, t, exponential, in<A>(y));
  sum_rows(ctx, in<A>(t), s);
  numbers(s, x.rows, [](A v) { return std::log(v); });
  each_with(ctx, y, static_cast<const A*>(s), shifted, in<A>(y));
}

/// dx of dy and y = log softmax of x; t is spent.
template <class T, class A>
void log_softmax_backward(tigon::context& ctx, in<A> dy, in<A> y, out<T> dx, out<A> t, A* s) {
  each(ctx, t, exponential, y);
  sum_rows(ctx, dy, s);
  each_with(ctx, t, static_cast<const A*>(s), scaled, in<A>(t));
  each(ctx, dx, difference, dy, in<A>(t));
}

/// The mean over the rows, and its gradient unless dlogits is empty.
template <class T, class A>
void cross_entropy(tigon::context& ctx, in<T> logits, std::span<const std::int32_t> target, A* loss, out<T> dlogits) {
  temporaries<A> own(ctx, 2, logits.rows, logits.cols);
  const out<A> logs = own.matrix(), t = own.matrix();
  A* const s = own.numbers();
  log_softmax(ctx, logits, logs, t, s);
  const auto at = [&](std::size_t i) { return static_cast<std::size_t>(target[i]); };
  for (std::size_t i = 0; i < logits.rows; ++i) s[i] = -logs.row(i)[at(i)];
  const A n = static_cast<A>(logits.rows);
  *loss = sum_of(s, logits.rows) / n;
  if (dlogits.data == nullptr) return;
  each(ctx, t, exponential, in<A>(logs));
  for (std::size_t i = 0; i < logits.rows; ++i) t.row(i)[at(i)] -= 1;
  each(
      ctx, dlogits, [=](auto v) { return v * (A(1) / n); }, in<A>(t));
}

/// Kullback-Leibler divergence of given probabilities and log-probabilities, summed over a row, mean over the rows.
template <class T, class A>
void kl_div(tigon::context& ctx, in<T> logs, in<T> target, A* loss, out<T> dlogs) {
  temporaries<A> own(ctx, 1, logs.rows, logs.cols);
  const out<A> t = own.matrix();
  A* const s = own.numbers();
  const A n = static_cast<A>(logs.rows);
  each(
      ctx, t, [](auto v) { return log(v); }, target);
  each(ctx, t, difference, in<A>(t), logs);
  each(ctx, t, product, target, in<A>(t));
  sum_rows(ctx, in<A>(t), s);
  *loss = sum_of(s, logs.rows) / n;
  if (dlogs.data != nullptr)
    each(
        ctx, dlogs, [=](auto v) { return v * (A(-1) / n); }, target);
}

/// Jensen-Shannon divergence of two rows of log-probabilities, beta = 1/2, mean over the rows.
template <class T, class A>
void jsd(tigon::context& ctx, in<T> student, in<T> teacher, A* loss, out<T> dstudent) {
  temporaries<A> own(ctx, 4, student.rows, student.cols);
  const out<A> q = own.matrix(), p = own.matrix(), m = own.matrix(), t = own.matrix();
  A *const s = own.numbers(), *const of_q = own.numbers();
  const A n = static_cast<A>(student.rows);
  each(ctx, q, exponential, student);
  each(ctx, p, exponential, teacher);
  each(ctx, m, sum, in<A>(q), in<A>(p));
  each(
      ctx, m, [](auto v) { return v * A(0.5); }, in<A>(m));
  each(
      ctx, m, [](auto v) { return log(v); }, in<A>(m));
  each(ctx, t, difference, teacher, in<A>(m));
  each(ctx, t, product, in<A>(p), in<A>(t));
  sum_rows(ctx, in<A>(t), s);
  each(ctx, t, difference, student, in<A>(m));
  each(ctx, t, product, in<A>(q), in<A>(t));
  sum_rows(ctx, in<A>(t), of_q);
  *loss = (sum_of(s, student.rows) + sum_of(of_q, student.rows)) / (2 * n);
  if (dstudent.data != nullptr)
    each(
        ctx, dstudent, [=](auto v) { return v * (A(0.5) / n); }, in<A>(t));
}

/// Total variation distance of two rows of probabilities, mean over the rows.
template <class T, class A>
void tvd(tigon::context& ctx, in<T> student, in<T> teacher, A* loss, out<T> dstudent) {
  temporaries<A> own(ctx, 2, student.rows, student.cols);
  const out<A> d = own.matrix(), t = own.matrix();
  A* const s = own.numbers();
  const A n = static_cast<A>(student.rows);
  each(ctx, d, difference, student, teacher);
  each(
      ctx, t, [](auto v) { return abs(v); }, in<A>(d));
  sum_rows(ctx, in<A>(t), s);
  *loss = sum_of(s, student.rows) / (2 * n);
  if (dstudent.data == nullptr) return;
  each(
      ctx, t,
      [](auto v) {
        using V = decltype(v);
        return select(v > V(0), V(1), select(v < V(0), V(-1), V(0)));
      },
      in<A>(d));
  each(
      ctx, dstudent, [=](auto v) { return v * (A(0.5) / n); }, in<A>(t));
}

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_LOSSES_HPP
