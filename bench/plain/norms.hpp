// Norms and dyt in elementary steps: intermediate results in f32 (f64 of f64), as models in bf16 compute them.
#ifndef TIGON_BENCH_PLAIN_NORMS_HPP
#define TIGON_BENCH_PLAIN_NORMS_HPP

#include "plain/passes.hpp"

namespace tigon_bench::passes {

/// rstd = 1 / sqrt(mean of the squares + eps) of every row; t is spent.
template <class X, class A>
void reciprocal_rms(tigon::context& ctx, in<X> x, out<A> t, A* rstd, double eps) {
  const double n = static_cast<double>(x.cols);
  each_and_sum(ctx, t, rstd, square, x);
  numbers(rstd, x.rows, [=](A s) { return 1 / std::sqrt(s / n + eps); });
}

template <class T, class A>
void rms_norm_forward(tigon::context& ctx, in<T> x, tigon::vector_view<const T> w, out<T> y, A* rstd, double eps) {
  temporaries<A> own(ctx, 1, x.rows, x.cols);
  const out<A> t = own.matrix();
  reciprocal_rms(ctx, x, t, rstd, eps);
  each_with(ctx, t, rstd, scaled, x);
  each(ctx, y, product, in<A>(t), w);
}

/// dy of T, or a result of an earlier step.
template <class T, class D = T, class A>
void rms_norm_backward(tigon::context& ctx, std::type_identity_t<in<D>> dy, in<T> x, tigon::vector_view<const T> w,
                       const A* rstd, out<T> dx, tigon::vector_view<T> dw) {
  temporaries<A> own(ctx, 2, x.rows, x.cols);
  const out<A> t = own.matrix(), h = own.matrix();
  A* const c = own.numbers();
  each_with(ctx, t, rstd, scaled, x);
  each(ctx, t, product, dy, in<A>(t));
  sum_columns(ctx, in<A>(t), dw);
  each(ctx, h, product, dy, w);
  each_and_sum(ctx, t, c, product, in<A>(h), x);
  for (std::size_t i = 0; i < x.rows; ++i) c[i] *= rstd[i] * rstd[i] * rstd[i] / static_cast<A>(x.cols);
  each_with(ctx, h, rstd, scaled, in<A>(h));
  each_with(ctx, t, static_cast<const A*>(c), scaled, x);
  each(ctx, dx, difference, in<A>(h), in<A>(t));
}

/// s = x + r and its norm.
template <class T, class A>
void fused_add_rms_norm_forward(tigon::context& ctx, in<T> x, in<T> r, tigon::vector_view<const T> w, out<T> y,
                                out<T> s, A* rstd, double eps) {
  each(ctx, s, sum, x, r);
  passes::rms_norm_forward<T>(ctx, s, w, y, rstd, eps);
}

template <class T, class A>
void fused_add_rms_norm_backward(tigon::context& ctx, in<T> dy, in<T> ds, in<T> s, tigon::vector_view<const T> w,
                                 const A* rstd, out<T> dx, tigon::vector_view<T> dw) {
  passes::rms_norm_backward<T>(ctx, dy, s, w, rstd, dx, dw);
  each(ctx, dx, sum, in<T>(dx), ds);
}

/// A norm whose rows have each their own scale and shift.
template <class T, class A>
void modulated_rms_norm_forward(tigon::context& ctx, in<T> x, tigon::vector_view<const T> w, in<T> scale, in<T> shift,
                                out<T> y, A* rstd, double eps) {
  temporaries<A> own(ctx, 2, x.rows, x.cols);
  const out<A> t = own.matrix(), factor = own.matrix();
  reciprocal_rms(ctx, x, t, rstd, eps);
  each_with(ctx, t, rstd, scaled, x);
  each(ctx, t, product, in<A>(t), w);
  each(
      ctx, factor, [](auto v) { return v + decltype(v)(1); }, scale);
  each(ctx, t, product, in<A>(t), in<A>(factor));
  each(ctx, y, sum, in<A>(t), shift);
}

/// What modulated_rms_norm_backward writes.
template <class T>
struct modulated_gradients {
  out<T> dx;
  tigon::vector_view<T> dw;
  out<T> dscale, dshift;
};

/// u [rows, cols] holds the gradient of the norm.
template <class T, class A>
void modulated_rms_norm_backward(tigon::context& ctx, in<T> dy, in<T> x, tigon::vector_view<const T> w, in<T> scale,
                                 const A* rstd, out<A> u, modulated_gradients<T> to) {
  each(ctx, to.dshift, same, dy);
  each_with(ctx, u, rstd, scaled, x);
  each(ctx, u, product, in<A>(u), w);
  each(ctx, to.dscale, product, dy, in<A>(u));
  each(
      ctx, u, [](auto v) { return v + decltype(v)(1); }, scale);
  each(ctx, u, product, dy, in<A>(u));
  passes::rms_norm_backward<T, A>(ctx, u, x, w, rstd, to.dx, to.dw);
}

/// Subtracts the mean of every row and divides by the deviation: t. `squares` is spent.
template <class X, class A>
void centre_and_scale(tigon::context& ctx, in<X> x, out<A> t, out<A> squares, A* mean, A* rstd, double eps) {
  const double n = static_cast<double>(x.cols);
  sum_rows(ctx, x, mean);
  numbers(mean, x.rows, [=](A s) { return s / n; });
  each_with(ctx, t, static_cast<const A*>(mean), shifted, x);
  reciprocal_rms(ctx, in<A>(t), squares, rstd, eps);
  each_with(ctx, t, static_cast<const A*>(rstd), scaled, in<A>(t));
}

/// dx = rstd (h - mean of h - hat mean of h hat), without the mean of h where rows are not centred. h and t are spent,
/// s is room for a number a row.
template <class T, class A>
void norm_gradient(tigon::context& ctx, out<A> h, in<A> hat, out<A> t, const A* rstd, A* s, out<T> dx, bool centred) {
  const double n = static_cast<double>(h.cols);
  each_and_sum(ctx, t, s, product, in<A>(h), hat);
  numbers(s, h.rows, [=](A v) { return v / n; });
  each_with(ctx, t, static_cast<const A*>(s), scaled, hat);
  if (centred) {
    sum_rows(ctx, in<A>(h), s);
    numbers(s, h.rows, [=](A v) { return v / n; });
    each_with(ctx, h, static_cast<const A*>(s), shifted, in<A>(h));
  }
  each(ctx, h, difference, in<A>(h), in<A>(t));
  each_with(ctx, dx, rstd, scaled, in<A>(h));
}

template <class T, class A>
void layer_norm_forward(tigon::context& ctx, in<T> x, tigon::vector_view<const T> w, tigon::vector_view<const T> b,
                        out<T> y, A* mean, A* rstd, double eps) {
  temporaries<A> own(ctx, 2, x.rows, x.cols);
  const out<A> t = own.matrix(), squares = own.matrix();
  centre_and_scale(ctx, x, t, squares, mean, rstd, eps);
  each(ctx, t, product, in<A>(t), w);
  each(ctx, y, sum, in<A>(t), b);
}

template <class T, class A>
void layer_norm_backward(tigon::context& ctx, in<T> dy, in<T> x, tigon::vector_view<const T> w, const A* mean,
                         const A* rstd, out<T> dx, tigon::vector_view<T> dw, tigon::vector_view<T> db) {
  temporaries<A> own(ctx, 3, x.rows, x.cols);
  const out<A> hat = own.matrix(), h = own.matrix(), t = own.matrix();
  each_with(ctx, hat, mean, shifted, x);
  each_with(ctx, hat, rstd, scaled, in<A>(hat));
  each(ctx, t, product, dy, in<A>(hat));
  sum_columns(ctx, in<A>(t), dw);
  sum_columns(ctx, dy, db);
  each(ctx, h, product, dy, w);
  norm_gradient(ctx, h, in<A>(hat), t, rstd, own.numbers(), dx, true);
}

/// Rows are channels, a group is some of them in succession.
struct channel_groups {
  std::size_t channels, groups;

  template <class M>
  M of(M m) const {
    return {m.data, m.rows / channels * groups, channels / groups * m.cols};
  }
  /// A number of a row, from those of the channels.
  template <class T, class A>
  void spread(tigon::vector_view<const T> from, A* to, std::size_t rows) const {
    for (std::size_t i = 0; i < rows; ++i) to[i] = static_cast<A>(from.data[i % channels]);
  }
  template <class T, class A>
  void gather(const A* from, std::size_t rows, tigon::vector_view<T> to) const {
    for (std::size_t c = 0; c < channels; ++c) {
      double total = 0;
      for (std::size_t i = c; i < rows; i += channels) total += from[i];
      to.data[c] = static_cast<T>(static_cast<A>(total));
    }
  }
};

template <class T, class A>
void group_norm_forward(tigon::context& ctx, in<T> x, channel_groups g, tigon::vector_view<const T> w,
                        tigon::vector_view<const T> b, out<T> y, A* mean, A* rstd, double eps) {
  temporaries<A> own(ctx, 2, x.rows, x.cols);
  const out<A> t = own.matrix(), squares = own.matrix();
  A* const s = own.numbers();
  centre_and_scale(ctx, g.of(x), g.of(t), g.of(squares), mean, rstd, eps);
  g.spread(w, s, x.rows);
  each_with(ctx, t, static_cast<const A*>(s), scaled, in<A>(t));
  g.spread(b, s, x.rows);
  each_with(ctx, y, static_cast<const A*>(s), raised, in<A>(t));
}

template <class T, class A>
void group_norm_backward(tigon::context& ctx, in<T> dy, in<T> x, channel_groups g, tigon::vector_view<const T> w,
                         const A* mean, const A* rstd, out<T> dx, tigon::vector_view<T> dw, tigon::vector_view<T> db) {
  temporaries<A> own(ctx, 3, x.rows, x.cols);
  const out<A> hat = own.matrix(), h = own.matrix(), t = own.matrix();
  A* const s = own.numbers();
  each_with(ctx, g.of(hat), mean, shifted, g.of(x));
  each_with(ctx, g.of(hat), rstd, scaled, in<A>(g.of(hat)));
  each_and_sum(ctx, t, s, product, dy, in<A>(hat));
  g.gather(s, x.rows, dw);
  sum_rows(ctx, dy, s);
  g.gather(s, x.rows, db);
  g.spread(w, s, x.rows);
  each_with(ctx, h, static_cast<const A*>(s), scaled, dy);
  norm_gradient(ctx, g.of(h), in<A>(g.of(hat)), g.of(t), rstd, s, g.of(dx), true);
}

/// x, x^2 or x^3 in `power`, by the passes that they take.
template <class T, class A>
void raise(tigon::context& ctx, in<T> x, out<A> power, int p) {
  each(ctx, power, same, x);
  for (int k = 1; k < p; ++k) each(ctx, power, product, in<A>(power), x);
}

/// rstd has three numbers a row: those of the cube, then of the square, then of x.
template <class T, class A>
void poly_norm_forward(tigon::context& ctx, in<T> x, const T* w, T b, out<T> y, A* rstd, double eps) {
  temporaries<A> own(ctx, 3, x.rows, x.cols);
  const out<A> power = own.matrix(), t = own.matrix(), total = own.matrix();
  for (int p = 3; p >= 1; --p) {
    A* const r = rstd + static_cast<std::size_t>(3 - p) * x.rows;
    raise(ctx, x, power, p);
    reciprocal_rms(ctx, in<A>(power), t, r, eps);
    each_with(ctx, t, static_cast<const A*>(r), scaled, in<A>(power));
    each(ctx, t, times(static_cast<A>(w[3 - p])), in<A>(t));
    if (p == 3)
      each(ctx, total, same, in<A>(t));
    else
      each(ctx, total, sum, in<A>(total), in<A>(t));
  }
  each(
      ctx, y, [add = static_cast<A>(b)](auto v) { return v + add; }, in<A>(total));
}

template <class T, class A>
void poly_norm_backward(tigon::context& ctx, in<T> dy, in<T> x, const T* w, const A* rstd, out<T> dx, T* dw, T* db) {
  temporaries<A> own(ctx, 4, x.rows, x.cols);
  const out<A> hat = own.matrix(), h = own.matrix(), t = own.matrix(), total = own.matrix();
  A* const s = own.numbers();
  sum_rows(ctx, dy, s);
  *db = static_cast<T>(sum_of(s, x.rows));
  for (int p = 3; p >= 1; --p) {
    const A* const r = rstd + static_cast<std::size_t>(3 - p) * x.rows;
    raise(ctx, x, hat, p);
    each_with(ctx, hat, r, scaled, in<A>(hat));
    each_and_sum(ctx, t, s, product, dy, in<A>(hat));
    dw[3 - p] = static_cast<T>(sum_of(s, x.rows));
    each(ctx, h, times(static_cast<A>(w[3 - p])), dy);
    norm_gradient(ctx, h, in<A>(hat), t, r, s, h, false);
    if (p > 1) {  // through the power
      raise(ctx, x, hat, p - 1);
      each(ctx, hat, times(static_cast<A>(p)), in<A>(hat));
      each(ctx, h, product, in<A>(h), in<A>(hat));
    }
    if (p == 3)
      each(ctx, total, same, in<A>(h));
    else
      each(ctx, total, sum, in<A>(total), in<A>(h));
  }
  each(ctx, dx, same, in<A>(total));
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
