// Gates in elementary steps: an activation is one step, results are of the element type.
#ifndef TIGON_BENCH_PLAIN_GATES_HPP
#define TIGON_BENCH_PLAIN_GATES_HPP

#include <tigon/ops/geglu.hpp>
#include <tigon/ops/swiglu.hpp>

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

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_GATES_HPP
