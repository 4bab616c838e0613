// Coefficients of hyper-connections in elementary steps: every step of the Sinkhorn iteration is a pass over the
// numbers of all tokens, and is kept for the way back.
#ifndef TIGON_BENCH_PLAIN_MHC_COEFFS_HPP
#define TIGON_BENCH_PLAIN_MHC_COEFFS_HPP

#include <tigon/gemm/gemm.hpp>

#include "plain/norms.hpp"
#include "support/matrix.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tigon_bench::passes {

/// With the default options of the operator: pre_eps 0, post_mult 2, tmax 20, both other eps 1e-6.
template <class T>
class mhc_coeffs_steps {
 public:
  using A = tigon::accumulator_t<T>;

  /// cols: those of x for a backward, or 0.
  mhc_coeffs_steps(std::size_t tokens, std::size_t streams, std::size_t cols)
      : tokens_(tokens),
        n_(streams),
        rstd_(tokens),
        mix_(tokens, columns()),
        act_(tokens, columns()),
        g_(tokens, columns()),
        by_product_(cols == 0 ? 0 : tokens, cols),
        by_norm_(by_product_.rows, cols),
        q_(tokens) {
    for (int k = 0; k <= steps; ++k) history_.push_back(matrix<A>(tokens, n_ * n_));
  }
  std::size_t bytes() const {
    return rstd_.bytes() + mix_.bytes() + act_.bytes() + g_.bytes() + (steps + 1) * history_[0].bytes() +
           by_product_.bytes() + by_norm_.bytes();
  }

  void forward(tigon::context& ctx, in<T> x, in<T> phi, const A* b, const A* alpha, out<A> h_pre, out<A> h_post,
               out<A> h_res) const {
    {
      temporaries<A> own(ctx, 1, x.rows, x.cols);
      reciprocal_rms(ctx, x, own.matrix(), rstd_.data(), 1e-6);
    }
    tigon::gemm<lanes>(x, phi, mix_.view(), {}, ctx);
    each_with(ctx, mix_.view(), static_cast<const A*>(rstd_.data()), scaled, in<A>(mix_.view()));
    all([&](std::size_t t, std::size_t j) { act(t)[j] = mix(t)[j] * alpha[part(j)] + b[j]; });
    const auto sigmoid = [](A v) { return 1 / (1 + std::exp(-v)); };
    for (std::size_t t = 0; t < tokens_; ++t)
      for (std::size_t j = 0; j < n_; ++j)
        h_pre.row(t)[j] = sigmoid(act(t)[j]), h_post.row(t)[j] = 2 * sigmoid(act(t)[n_ + j]);
    for (std::size_t t = 0; t < tokens_; ++t)
      for (std::size_t o = 0; o < n_; ++o) {
        A* const z = act(t) + 2 * n_ + o * n_;
        const A top = *std::max_element(z, z + n_);
        A total = 0;
        for (std::size_t i = 0; i < n_; ++i) total += z[i] = std::exp(z[i] - top);
        for (std::size_t i = 0; i < n_; ++i) history_[0].view().row(t)[o * n_ + i] = (z[i] /= total) + eps;
      }
    for (int k = 0; k < steps; ++k)
      for (std::size_t t = 0; t < tokens_; ++t)
        lines(k, t, [&](auto at, A total) {
          for (std::size_t q = 0; q < n_; ++q) next(k, t)[at(q)] = numbers_of(k, t)[at(q)] / total;
        });
    for (std::size_t t = 0; t < tokens_; ++t) std::copy_n(numbers_of(steps, t), n_ * n_, h_res.row(t));
  }

  /// After forward: g is spent on the way.
  struct gradients {
    out<T> dx, dphi;
    A *db, *dalpha;
  };
  struct upstream {
    in<A> pre, post, res;
  };
  void backward(tigon::context& ctx, in<T> x, in<T> phi, const A* alpha, upstream dh, in<A> h_pre, in<A> h_post,
                gradients to) const {
    for (std::size_t t = 0; t < tokens_; ++t) std::copy_n(dh.res.row(t), n_ * n_, g(t) + 2 * n_);
    for (int k = steps; k-- > 0;)
      for (std::size_t t = 0; t < tokens_; ++t)
        lines(k, t, [&](auto at, A total) {
          A* const d = g(t) + 2 * n_;
          A dot = 0;
          for (std::size_t q = 0; q < n_; ++q) dot += d[at(q)] * next(k, t)[at(q)];
          for (std::size_t q = 0; q < n_; ++q) d[at(q)] = (d[at(q)] - dot) / total;
        });
    for (std::size_t t = 0; t < tokens_; ++t) {
      for (std::size_t j = 0; j < n_; ++j) {
        const A pre = h_pre.row(t)[j], post = h_post.row(t)[j] / 2;
        g(t)[j] = dh.pre.row(t)[j] * pre * (1 - pre), g(t)[n_ + j] = dh.post.row(t)[j] * 2 * post * (1 - post);
      }
      for (std::size_t o = 0; o < n_; ++o) {
        const A* const p = act(t) + 2 * n_ + o * n_;
        A* const d = g(t) + 2 * n_ + o * n_;
        A dot = 0;
        for (std::size_t i = 0; i < n_; ++i) dot += p[i] * d[i];
        for (std::size_t i = 0; i < n_; ++i) d[i] = p[i] * (d[i] - dot);
      }
    }
    parameter_sums(to);
    for (std::size_t t = 0; t < tokens_; ++t) {
      A dot = 0;
      for (std::size_t j = 0; j < columns(); ++j) g(t)[j] *= alpha[part(j)], dot += g(t)[j] * mix(t)[j];
      q_[t] = -dot * rstd_[t] * rstd_[t] / static_cast<A>(x.cols);
    }
    each_with(ctx, g_.view(), static_cast<const A*>(rstd_.data()), scaled, in<A>(g_.view()));
    tigon::gemm<lanes>(g_.view(), phi, by_product_.view(), {.b = tigon::transpose::yes}, ctx);
    tigon::gemm<lanes>(x, g_.view(), to.dphi, {.a = tigon::transpose::yes}, ctx);
    each_with(ctx, by_norm_.view(), static_cast<const A*>(q_.data()), scaled, x);
    each(ctx, to.dx, sum, in<A>(by_product_.view()), in<A>(by_norm_.view()));
  }

 private:
  static constexpr int steps = 39;  ///< 20 of columns, and one of rows between any two
  static constexpr A eps = A(1e-6);

  std::size_t columns() const { return n_ * n_ + 2 * n_; }
  std::size_t part(std::size_t j) const { return std::min<std::size_t>(j / n_, 2); }
  A* mix(std::size_t t) const { return mix_.view().row(t); }
  A* act(std::size_t t) const { return act_.view().row(t); }
  A* g(std::size_t t) const { return g_.view().row(t); }
  A* numbers_of(int k, std::size_t t) const { return history_[static_cast<std::size_t>(k)].view().row(t); }
  A* next(int k, std::size_t t) const { return numbers_of(k + 1, t); }
  template <class F>
  void all(F f) const {
    for (std::size_t t = 0; t < tokens_; ++t)
      for (std::size_t j = 0; j < columns(); ++j) f(t, j);
  }
  /// f(index of a line's q-th number, sum of the line before step k); even steps take columns, odd ones rows.
  template <class F>
  void lines(int k, std::size_t t, F f) const {
    const std::size_t along = k % 2 == 0 ? n_ : 1, across = k % 2 == 0 ? 1 : n_;
    for (std::size_t line = 0; line < n_; ++line) {
      const auto at = [=](std::size_t q) { return line * across + q * along; };
      A total = eps;
      for (std::size_t q = 0; q < n_; ++q) total += numbers_of(k, t)[at(q)];
      f(at, total);
    }
  }
  void parameter_sums(gradients to) const {
    std::fill_n(to.dalpha, 3, A(0));
    std::vector<double> of_alpha(3, 0.0);
    for (std::size_t j = 0; j < columns(); ++j) {
      double of_bias = 0;
      for (std::size_t t = 0; t < tokens_; ++t) of_bias += g(t)[j], of_alpha[part(j)] += double{g(t)[j]} * mix(t)[j];
      to.db[j] = static_cast<A>(of_bias);
    }
    for (std::size_t k = 0; k < 3; ++k) to.dalpha[k] = static_cast<A>(of_alpha[k]);
  }

  std::size_t tokens_, n_;
  buffer<A> rstd_;
  matrix<A> mix_, act_, g_, by_product_, by_norm_;
  buffer<A> q_;
  std::vector<matrix<A>> history_;
};

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_MHC_COEFFS_HPP
