// Row lookup in elementary steps: a pass that copies rows, and one that adds them up one after the other.
#ifndef TIGON_BENCH_PLAIN_EMBEDDING_HPP
#define TIGON_BENCH_PLAIN_EMBEDDING_HPP

#include "plain/passes.hpp"

#include <cstdint>
#include <span>

namespace tigon_bench::passes {

/// to[i] = from[row(i)].
template <class T, class D, class At>
void take_rows(tigon::context& ctx, in<T> from, out<D> to, At row) {
  each(ctx, to, same, look_up(from, row));
}

/// to[row(i)] += from[i], i by i.
template <class D, class T, class At>
void add_rows(tigon::context& ctx, in<T> from, out<D> to, At row) {
  for (std::size_t i = 0; i < from.rows; ++i) {
    const out<D> at = to.rows_from(row(i), 1);
    each(ctx, at, sum, in<D>(at), from.rows_from(i, 1));
  }
}

template <class T>
void embedding_forward(tigon::context& ctx, in<T> weight, std::span<const std::int32_t> ids, out<T> y) {
  take_rows(ctx, weight, y, [id = ids.data()](std::size_t i) { return static_cast<std::size_t>(id[i]); });
}

/// Sums in f32 (f64 of f64), then their rounding.
template <class T>
void embedding_backward(tigon::context& ctx, in<T> dy, std::span<const std::int32_t> ids, out<T> dweight) {
  using A = tigon::accumulator_t<T>;
  temporaries<A> own(ctx, 1, dweight.rows, dweight.cols);
  const out<A> sums = own.matrix();
  each(ctx, sums, same, tigon::constant(A(0)));
  add_rows(ctx, dy, sums, [id = ids.data()](std::size_t i) { return static_cast<std::size_t>(id[i]); });
  each(ctx, dweight, same, in<A>(sums));
}

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_EMBEDDING_HPP
