// Gates and rotation in elementary steps: an activation is one step, results are of the element type.
#ifndef TIGON_BENCH_PLAIN_GATES_HPP
#define TIGON_BENCH_PLAIN_GATES_HPP

#include <tigon/ops/geglu.hpp>
#include <tigon/ops/swiglu.hpp>

#include <limits>

#include "plain/norms.hpp"

namespace tigon_bench::passes {

/// As exact as results of type T show.
template <class T>
inline constexpr std::size_t bits = tigon::detail::result_bits<lanes, T>;

/// c = f(a) b and its gradients; f(v) is an activation, slope(v) its derivative.
template <class T, class F>
void gate_forward(tigon::context& ctx, in<T> a, in<T> b, out<T> c, F f) {
  each(ctx, c, f, a);
  each(ctx, c, product, in<T>(c), b);
}

template <class T, class F, class Slope>
void gate_backward(tigon::context& ctx, in<T> dc, in<T> a, in<T> b, out<T> da, out<T> db, F f, Slope slope) {
  each(ctx, db, f, a);
  each(ctx, db, product, dc, in<T>(db));
  each(ctx, da, product, dc, b);
  each(
      ctx, da, [slope](auto d, auto v) { return d * slope(v); }, in<T>(da), a);
}

/// q cos + rotate_half(q) sin of the heads of tokens [tokens, heads head_dim]; cos, sin [seq_len, head_dim / 2]; sign -1
/// rotates back. `turned` and `t` are as large as x.
template <class T, class A>
void rotate(tigon::context& ctx, T* x, T* y, T* turned, T* t, std::size_t tokens, std::size_t heads,
            std::size_t head_dim, in<A> cos, in<A> sin, A sign) {
  const std::size_t half = head_dim / 2, stride = heads * head_dim;
  // The rows of one half of a head in every token of one sequence.
  const auto for_halves = [&](auto step) {
    for (std::size_t first = 0; first < tokens; first += cos.rows)
      for (std::size_t h = 0; h < heads; ++h)
        for (const std::size_t part : {std::size_t{0}, half}) step(first * stride + h * head_dim, part);
  };
  const auto of = [&](T* m, std::size_t at) { return out<T>{m + at, cos.rows, half, stride}; };
  for_halves([&](std::size_t at, std::size_t part) {
    const A s = part == 0 ? -sign : sign;
    each(
        ctx, of(turned, at + part), [s](auto v) { return v * s; }, in<T>(of(x, at + half - part)));
  });
  for_halves(
      [&](std::size_t at, std::size_t part) { each(ctx, of(t, at + part), product, in<T>(of(x, at + part)), cos); });
  for_halves([&](std::size_t at, std::size_t part) {
    each(ctx, of(turned, at + part), product, in<T>(of(turned, at + part)), sin);
  });
  for_halves([&](std::size_t at, std::size_t part) {
    each(ctx, of(y, at + part), sum, in<T>(of(t, at + part)), in<T>(of(turned, at + part)));
  });
}

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_GATES_HPP
