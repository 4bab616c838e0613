// Attention residuals and hyper-connections in elementary steps: every product with a number of the row is a pass, and
// so is every addition.
#ifndef TIGON_BENCH_PLAIN_STREAMS_HPP
#define TIGON_BENCH_PLAIN_STREAMS_HPP

#include <tigon/gemm/gemm.hpp>
#include <tigon/ops/depth/attn_res_options.hpp>

#include "plain/norms.hpp"
#include "support/matrix.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tigon_bench::passes {

/// total = or += s x, by way of t.
template <class T, class A, class D>
void add_scaled(tigon::context& ctx, bool first, in<T> x, const A* s, out<D> total, out<A> t) {
  each_with(ctx, t, s, scaled, x);
  if (first)
    each(ctx, total, same, in<A>(t));
  else
    each(ctx, total, sum, in<D>(total), in<A>(t));
}

/// Numbers [rows, columns], a column of them together, as a framework's tensors [rows, columns, 1] are read.
template <class A>
void column_of(in<A> m, std::size_t j, A* s) {
  for (std::size_t i = 0; i < m.rows; ++i) s[i] = m.row(i)[j];
}

/// alpha and rstd hold a row of `blocks` numbers a token.
template <class T, class A>
void attn_res_forward(tigon::context& ctx, tigon::blocks_view<T> v, tigon::vector_view<const T> w_query,
                      tigon::vector_view<const T> w_norm, out<T> y, A* alpha, A* rstd, double eps) {
  const std::size_t n = v.blocks, rows = v.rows;
  temporaries<A> own(ctx, 2, rows, v.cols);
  const out<A> t = own.matrix(), total = own.matrix();
  A* const s = own.numbers();
  for (std::size_t k = 0; k < n; ++k) {
    reciprocal_rms(ctx, in<T>(v[k]), t, s, eps);
    for (std::size_t i = 0; i < rows; ++i) rstd[i * n + k] = s[i];
    each_with(ctx, t, static_cast<const A*>(s), scaled, in<T>(v[k]));
    each(ctx, t, product, in<A>(t), w_norm);
    each_and_sum(ctx, t, s, product, in<A>(t), w_query);
    for (std::size_t i = 0; i < rows; ++i) alpha[i * n + k] = s[i];
  }
  for (std::size_t i = 0; i < rows; ++i) {
    A* const a = alpha + i * n;
    const A top = *std::max_element(a, a + n);
    A total_of_row = 0;
    for (std::size_t k = 0; k < n; ++k) total_of_row += a[k] = std::exp(a[k] - top);
    for (std::size_t k = 0; k < n; ++k) a[k] /= total_of_row;
  }
  for (std::size_t k = 0; k < n; ++k) {
    column_of<A>({alpha, rows, n}, k, s);
    add_scaled<T, A, A>(ctx, k == 0, v[k], s, total, t);
  }
  each(ctx, y, same, in<A>(total));
}

template <class T, class A>
void attn_res_backward(tigon::context& ctx, in<T> dy, tigon::blocks_view<T> v, tigon::vector_view<const T> w_query,
                       tigon::vector_view<const T> w_norm, const A* alpha, const A* rstd, tigon::blocks_view<T> dv,
                       tigon::vector_view<T> dw_query, tigon::vector_view<T> dw_norm) {
  const std::size_t n = v.blocks, rows = v.rows, cols = v.cols;
  temporaries<A> own(ctx, 4, rows, cols);
  const out<A> t = own.matrix(), hat = own.matrix(), h = own.matrix(), of_weights = own.matrix();
  A *const s = own.numbers(), *const r = own.numbers();
  std::vector<A> ds(rows * n);
  for (std::size_t k = 0; k < n; ++k) {
    each_and_sum(ctx, t, s, product, dy, in<T>(v[k]));
    for (std::size_t i = 0; i < rows; ++i) ds[i * n + k] = s[i];
  }
  for (std::size_t i = 0; i < rows; ++i) {
    A mean = 0;
    for (std::size_t k = 0; k < n; ++k) mean += alpha[i * n + k] * ds[i * n + k];
    for (std::size_t k = 0; k < n; ++k) ds[i * n + k] = alpha[i * n + k] * (ds[i * n + k] - mean);
  }
  for (std::size_t k = 0; k < n; ++k) {
    column_of<A>({rstd, rows, n}, k, r);
    each_with(ctx, hat, static_cast<const A*>(r), scaled, in<T>(v[k]));
    column_of<A>({ds.data(), rows, n}, k, s);
    add_scaled<A, A, A>(ctx, k == 0, hat, s, of_weights, t);
    // The score's gradient by the normalised row, then by the row.
    each(ctx, h, same, w_query);
    each(ctx, h, product, in<A>(h), w_norm);
    each_with(ctx, h, static_cast<const A*>(s), scaled, in<A>(h));
    norm_gradient(ctx, h, in<A>(hat), t, static_cast<const A*>(r), s, h, false);
    column_of<A>({alpha, rows, n}, k, s);
    each_with(ctx, t, static_cast<const A*>(s), scaled, dy);
    each(ctx, dv[k], sum, in<A>(h), in<A>(t));
  }
  each(ctx, t, product, in<A>(of_weights), w_norm);
  sum_columns(ctx, in<A>(t), dw_query);
  each(ctx, t, product, in<A>(of_weights), w_query);
  sum_columns(ctx, in<A>(t), dw_norm);
}

/// Stream h of tokens [tokens, n channels].
template <class M>
M stream(M x, std::size_t n, std::size_t h) {
  return x.cols_from(h * (x.cols / n), x.cols / n);
}

template <class T, class A>
void mhc_pre_forward(tigon::context& ctx, in<T> x, in<A> h_pre, out<T> y) {
  temporaries<A> own(ctx, 2, y.rows, y.cols);
  const out<A> t = own.matrix(), total = own.matrix();
  A* const s = own.numbers();
  for (std::size_t h = 0; h < h_pre.cols; ++h) {
    column_of(h_pre, h, s);
    add_scaled<T, A, A>(ctx, h == 0, stream(x, h_pre.cols, h), s, total, t);
  }
  each(ctx, y, same, in<A>(total));
}

template <class T, class A>
void mhc_pre_backward(tigon::context& ctx, in<T> dy, in<T> x, in<A> h_pre, out<T> dx, out<A> dh_pre) {
  const std::size_t n = h_pre.cols;
  temporaries<A> own(ctx, 1, dy.rows, dy.cols);
  const out<A> t = own.matrix();
  A* const s = own.numbers();
  for (std::size_t h = 0; h < n; ++h) {
    column_of(h_pre, h, s);
    each_with(ctx, stream(dx, n, h), static_cast<const A*>(s), scaled, dy);
    each_and_sum(ctx, t, s, product, dy, stream(x, n, h));
    for (std::size_t i = 0; i < dy.rows; ++i) dh_pre.row(i)[h] = s[i];
  }
}

template <class T, class A>
void mhc_post_res_forward(tigon::context& ctx, in<T> x, in<T> f, in<A> h_post, in<A> h_res, out<T> y) {
  const std::size_t n = h_post.cols;
  temporaries<A> own(ctx, 2, f.rows, f.cols);
  const out<A> t = own.matrix(), total = own.matrix();
  A* const s = own.numbers();
  for (std::size_t o = 0; o < n; ++o) {
    column_of(h_post, o, s);
    add_scaled<T, A, A>(ctx, true, f, s, total, t);
    for (std::size_t i = 0; i < n; ++i) {
      column_of(h_res, o * n + i, s);
      add_scaled<T, A, A>(ctx, false, stream(x, n, i), s, total, t);
    }
    each(ctx, stream(y, n, o), same, in<A>(total));
  }
}

/// What mhc_post_res_backward writes.
template <class T, class A>
struct post_res_gradients {
  out<T> dx, df;
  out<A> dh_post, dh_res;
};
template <class T, class A>
void mhc_post_res_backward(tigon::context& ctx, in<T> dy, in<T> x, in<T> f, in<A> h_post, in<A> h_res,
                           post_res_gradients<T, A> to) {
  const std::size_t n = h_post.cols;
  temporaries<A> own(ctx, 2, f.rows, f.cols);
  const out<A> t = own.matrix(), total = own.matrix();
  A* const s = own.numbers();
  const auto dot = [&](in<T> a, in<T> b, out<A> numbers, std::size_t j) {
    each_and_sum(ctx, t, s, product, a, b);
    for (std::size_t i = 0; i < f.rows; ++i) numbers.row(i)[j] = s[i];
  };
  for (std::size_t i = 0; i <= n; ++i) {  // the streams, then f
    for (std::size_t o = 0; o < n; ++o) {
      const in<T> d = stream(dy, n, o);
      column_of(i < n ? h_res : h_post, i < n ? o * n + i : o, s);
      add_scaled<T, A, A>(ctx, o == 0, d, s, total, t);
      if (i < n)
        dot(d, stream(x, n, i), to.dh_res, o * n + i);
      else
        dot(d, f, to.dh_post, o);
    }
    each(ctx, i < n ? stream(to.dx, n, i) : to.df, same, in<A>(total));
  }
}

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_STREAMS_HPP
