// Sparsemax in elementary steps: rows are sorted, summed up, and cut at the threshold that follows.
#ifndef TIGON_BENCH_PLAIN_SPARSEMAX_HPP
#define TIGON_BENCH_PLAIN_SPARSEMAX_HPP

#include "plain/norms.hpp"

#include <algorithm>
#include <functional>

namespace tigon_bench::passes {

/// f(row) for every row, on all threads.
template <class F>
void for_each_row(tigon::context& ctx, std::size_t rows, F f) {
  ctx.executor().run(rows, [&](std::size_t i, std::size_t) { f(i); });
}

template <class T>
void sparsemax_forward(tigon::context& ctx, in<T> x, out<T> y) {
  using A = tigon::accumulator_t<T>;
  temporaries<A> own(ctx, 2, x.rows, x.cols);
  const out<A> z = own.matrix(), sums = own.matrix();
  A* const tau = own.numbers();
  each(ctx, z, same, x);
  for_each_row(ctx, x.rows, [=](std::size_t i) { std::sort(z.row(i), z.row(i) + z.cols, std::greater<>()); });
  for_each_row(ctx, x.rows, [=](std::size_t i) {
    A total = 0;
    for (std::size_t j = 0; j < z.cols; ++j) sums.row(i)[j] = total += z.row(i)[j];
  });
  for_each_row(ctx, x.rows, [=](std::size_t i) {
    std::size_t support = 0;
    for (std::size_t j = 0; j < z.cols; ++j) support += 1 + static_cast<A>(j + 1) * z.row(i)[j] > sums.row(i)[j];
    tau[i] = (sums.row(i)[std::max<std::size_t>(support, 1) - 1] - 1) / static_cast<A>(support);
  });
  each_with(ctx, z, static_cast<const A*>(tau), shifted, x);
  each(
      ctx, y, [](auto v) { return max(v, decltype(v)(0)); }, in<A>(z));
}

template <class T>
void sparsemax_backward(tigon::context& ctx, in<T> dy, in<T> y, out<T> dx) {
  using A = tigon::accumulator_t<T>;
  temporaries<A> own(ctx, 2, y.rows, y.cols);
  const out<A> in_support = own.matrix(), t = own.matrix();
  A *const count = own.numbers(), *const mean = own.numbers();
  each(
      ctx, in_support,
      [](auto v) {
        using V = decltype(v);
        return select(v > V(0), V(1), V(0));
      },
      y);
  sum_rows(ctx, in<A>(in_support), count);
  each_and_sum(ctx, t, mean, product, dy, in<A>(in_support));
  for (std::size_t i = 0; i < y.rows; ++i) mean[i] /= count[i];
  each_with(ctx, t, static_cast<const A*>(mean), shifted, dy);
  each(ctx, dx, product, in<A>(t), in<A>(in_support));
}

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_SPARSEMAX_HPP
