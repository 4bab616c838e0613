// Norms and dyt in elementary steps: intermediate results in f32 (f64 of f64), as models in bf16 compute them.
#ifndef TIGON_BENCH_PLAIN_NORMS_HPP
#define TIGON_BENCH_PLAIN_NORMS_HPP

#include "plain/passes.hpp"

namespace tigon_bench::passes {

inline constexpr auto product = [](auto a, auto b) { return a * b; };
inline constexpr auto sum = [](auto a, auto b) { return a + b; };
inline constexpr auto difference = [](auto a, auto b) { return a - b; };
inline constexpr auto square = [](auto a) { return a * a; };
/// A number of the row, then an element.
inline constexpr auto scaled = [](auto s, auto v) { return v * s; };
inline constexpr auto shifted = [](auto s, auto v) { return v - s; };

template <class T, class A>
void rms_norm_forward(tigon::context& ctx, in<T> x, tigon::vector_view<const T> w, out<T> y, A* rstd, double eps) {
  temporaries<A> own(ctx, 1, x.rows, x.cols);
  const out<A> t = own.matrix();
  const double n = static_cast<double>(x.cols);
  each(ctx, t, square, x);
  sum_rows(ctx, in<A>(t), rstd);
  numbers(rstd, x.rows, [=](A s) { return 1 / std::sqrt(s / n + eps); });
  each_with(ctx, t, rstd, scaled, x);
  each(ctx, y, product, in<A>(t), w);
}

template <class T, class A>
void rms_norm_backward(tigon::context& ctx, in<T> dy, in<T> x, tigon::vector_view<const T> w, const A* rstd, out<T> dx,
                       tigon::vector_view<T> dw) {
  temporaries<A> own(ctx, 2, x.rows, x.cols);
  const out<A> t = own.matrix(), h = own.matrix();
  A* const c = own.numbers();
  each_with(ctx, t, rstd, scaled, x);
  each(ctx, t, product, dy, in<A>(t));
  sum_columns(ctx, in<A>(t), dw);
  each(ctx, h, product, dy, w);
  each(ctx, t, product, in<A>(h), x);
  sum_rows(ctx, in<A>(t), c);
  for (std::size_t i = 0; i < x.rows; ++i) c[i] *= rstd[i] * rstd[i] * rstd[i] / static_cast<A>(x.cols);
  each_with(ctx, h, rstd, scaled, in<A>(h));
  each_with(ctx, t, static_cast<const A*>(c), scaled, x);
  each(ctx, dx, difference, in<A>(h), in<A>(t));
}

template <class T, class A>
void layer_norm_forward(tigon::context& ctx, in<T> x, tigon::vector_view<const T> w, tigon::vector_view<const T> b,
                        out<T> y, A* mean, A* rstd, double eps) {
  temporaries<A> own(ctx, 2, x.rows, x.cols);
  const out<A> t = own.matrix(), squares = own.matrix();
  const double n = static_cast<double>(x.cols);
  sum_rows(ctx, x, mean);
  numbers(mean, x.rows, [=](A s) { return s / n; });
  each_with(ctx, t, static_cast<const A*>(mean), shifted, x);
  each(ctx, squares, square, in<A>(t));
  sum_rows(ctx, in<A>(squares), rstd);
  numbers(rstd, x.rows, [=](A s) { return 1 / std::sqrt(s / n + eps); });
  each_with(ctx, t, static_cast<const A*>(rstd), scaled, in<A>(t));
  each(ctx, t, product, in<A>(t), w);
  each(ctx, y, sum, in<A>(t), b);
}

template <class T, class A>
void layer_norm_backward(tigon::context& ctx, in<T> dy, in<T> x, tigon::vector_view<const T> w, const A* mean,
                         const A* rstd, out<T> dx, tigon::vector_view<T> dw, tigon::vector_view<T> db) {
  temporaries<A> own(ctx, 3, x.rows, x.cols);
  const out<A> hat = own.matrix(), h = own.matrix(), t = own.matrix();
  A *const c1 = own.numbers(), *const c2 = own.numbers();
  const double n = static_cast<double>(x.cols);
  each_with(ctx, hat, mean, shifted, x);
  each_with(ctx, hat, rstd, scaled, in<A>(hat));
  each(ctx, t, product, dy, in<A>(hat));
  sum_columns(ctx, in<A>(t), dw);
  sum_columns(ctx, dy, db);
  each(ctx, h, product, dy, w);
  sum_rows(ctx, in<A>(h), c2);
  each(ctx, t, product, in<A>(h), in<A>(hat));
  sum_rows(ctx, in<A>(t), c1);
  numbers(c1, x.rows, [=](A s) { return s / n; });
  numbers(c2, x.rows, [=](A s) { return s / n; });
  each_with(ctx, t, static_cast<const A*>(c1), scaled, in<A>(hat));
  each_with(ctx, h, static_cast<const A*>(c2), shifted, in<A>(h));
  each(ctx, h, difference, in<A>(h), in<A>(t));
  each_with(ctx, dx, rstd, scaled, in<A>(h));
}

template <class T>
void relu_squared_forward(tigon::context& ctx, in<T> x, out<T> y) {
  each(
      ctx, y, [](auto v) { return max(v, decltype(v)(0)); }, x);
  each(ctx, y, square, in<T>(y));
}

template <class T>
void relu_squared_backward(tigon::context& ctx, in<T> dy, in<T> x, out<T> dx) {
  each(
      ctx, dx, [](auto v) { return max(v, decltype(v)(0)); }, x);
  each(
      ctx, dx, [](auto v) { return v + v; }, in<T>(dx));
  each(ctx, dx, product, dy, in<T>(dx));
}

template <class T>
void dyt_forward(tigon::context& ctx, in<T> x, tigon::accumulator_t<T> alpha, tigon::vector_view<const T> gamma,
                 tigon::vector_view<const T> beta, out<T> y) {
  using A = tigon::accumulator_t<T>;
  temporaries<A> own(ctx, 1, x.rows, x.cols);
  const out<A> t = own.matrix();
  each(
      ctx, t, [=](auto v) { return v * alpha; }, x);
  each(
      ctx, t, [](auto v) { return tanh(v); }, in<A>(t));
  each(ctx, t, product, in<A>(t), gamma);
  each(ctx, y, sum, in<A>(t), beta);
}

template <class T>
void dyt_backward(tigon::context& ctx, in<T> dy, in<T> x, tigon::accumulator_t<T> alpha,
                  tigon::vector_view<const T> gamma, out<T> dx, T* dalpha, tigon::vector_view<T> dgamma,
                  tigon::vector_view<T> dbeta) {
  using A = tigon::accumulator_t<T>;
  temporaries<A> own(ctx, 2, x.rows, x.cols);
  const out<A> t = own.matrix(), h = own.matrix();
  A* const s = own.numbers();
  each(
      ctx, t, [=](auto v) { return v * alpha; }, x);
  each(
      ctx, t, [](auto v) { return tanh(v); }, in<A>(t));
  each(ctx, h, product, dy, in<A>(t));
  sum_columns(ctx, in<A>(h), dgamma);
  sum_columns(ctx, dy, dbeta);
  each(ctx, h, product, dy, gamma);
  each(
      ctx, t, [](auto v) { return decltype(v)(1) - v * v; }, in<A>(t));
  each(ctx, t, product, in<A>(h), in<A>(t));
  each(ctx, h, product, in<A>(t), x);
  sum_rows(ctx, in<A>(h), s);
  *dalpha = static_cast<T>(sum_of(s, x.rows));
  each(
      ctx, dx, [=](auto v) { return v * alpha; }, in<A>(t));
}

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_NORMS_HPP
