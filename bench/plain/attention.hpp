// Attention in elementary steps: scores of every query and key exist as a whole, and masks are passes over them.
#ifndef TIGON_BENCH_PLAIN_ATTENTION_HPP
#define TIGON_BENCH_PLAIN_ATTENTION_HPP

#include <tigon/gemm/gemm.hpp>

#include "plain/losses.hpp"
#include "plain/sparsemax.hpp"
#include "support/matrix.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tigon_bench::passes {

/// Keys that a query sees, where they are one range of columns or every `step`-th of one.
struct seen_keys {
  std::size_t first, end, step;
};

/// Causal: those up to the query.
struct causal_keys {
  seen_keys operator()(std::size_t i, std::size_t) const { return {0, i + 1, 1}; }
};
/// A window around the query, clipped at the ends.
struct near_keys {
  std::size_t kernel_size, dilation;

  seen_keys operator()(std::size_t i, std::size_t n) const {
    const std::size_t half = kernel_size / 2, before = std::min(half, i / dilation),
                      after = std::min(half, (n - 1 - i) / dilation);
    return {i - before * dilation, i + after * dilation + 1, dilation};
  }
};

/// y = x where the key is seen, `hidden` elsewhere. Row r is query r % n. With steps of more than 1 y has to be x.
template <class T, class Keys>
void mask(tigon::context& ctx, in<T> x, out<T> y, T hidden, Keys keys) {
  const std::size_t n = x.cols;
  tigon::simd::for_rows<lanes, tigon::accumulator_t<T>>(ctx, x.rows, n, [=] TIGON_FN(auto row) {
    const seen_keys k = keys(row.i % n, n);
    T* const to = y.row(row.i);
    if (k.step == 1) {
      row.part(k.first, k.end - k.first).map(tigon::reads(x), tigon::writes(y), same);
    } else {
      for (std::size_t j = k.first; j < k.end; ++j)
        if ((j - k.first) % k.step != 0) to[j] = hidden;
    }
    for (std::size_t j = 0; j < k.first; ++j) to[j] = hidden;
    for (std::size_t j = k.end; j < n; ++j) to[j] = hidden;
  });
}

/// Softmax attention of query head h over key/value head h / (heads / kv_heads), with all scores in memory.
template <class T, class Keys>
class attention_steps {
 public:
  using heads = tigon::heads_view<T>;

  attention_steps(std::size_t batch, std::size_t seq_len, std::size_t head_count, std::size_t head_dim, Keys keys,
                  bool with_backward)
      : p_(batch * head_count * seq_len, seq_len), scale_(1 / std::sqrt(static_cast<double>(head_dim))), keys_(keys) {
    if (with_backward) ds_ = matrix<T>(p_.rows, seq_len);
  }
  std::size_t bytes() const { return p_.bytes() + ds_.bytes(); }

  void forward(tigon::context& ctx, heads q, heads k, heads v, heads o) const {
    using tigon::transpose;
    for_heads(q, k, [&](std::size_t b, std::size_t h, std::size_t of, std::size_t at) {
      tigon::gemm<lanes>(q.head(b, h), k.head(b, of), scores(p_, at), {.alpha = scale_, .b = transpose::yes}, ctx);
    });
    const T hidden = static_cast<T>(-std::numeric_limits<float>::infinity());
    mask<T>(ctx, p_.view(), p_.view(), hidden, keys_);
    passes::softmax_forward<T>(ctx, p_.view(), p_.view());
    for_heads(q, k, [&](std::size_t b, std::size_t h, std::size_t of, std::size_t at) {
      tigon::gemm<lanes>(scores(p_, at), v.head(b, of), o.head(b, h), {}, ctx);
    });
  }
  /// After forward.
  struct gradients {
    heads dq, dk, dv;
  };
  void backward(tigon::context& ctx, heads d_o, heads q, heads k, heads v, gradients to) const {
    using tigon::transpose;
    const std::size_t group = q.heads / k.heads;
    for_heads(q, k, [&](std::size_t b, std::size_t h, std::size_t of, std::size_t at) {
      const double beta = h % group == 0 ? 0 : 1;
      tigon::gemm<lanes>(scores(p_, at), d_o.head(b, h), to.dv.head(b, of), {.beta = beta, .a = transpose::yes}, ctx);
      tigon::gemm<lanes>(d_o.head(b, h), v.head(b, of), scores(ds_, at), {.b = transpose::yes}, ctx);
    });
    passes::softmax_backward<T>(ctx, ds_.view(), p_.view(), ds_.view());
    for_heads(q, k, [&](std::size_t b, std::size_t h, std::size_t of, std::size_t at) {
      const double beta = h % group == 0 ? 0 : 1;
      tigon::gemm<lanes>(scores(ds_, at), k.head(b, of), to.dq.head(b, h), {.alpha = scale_}, ctx);
      tigon::gemm<lanes>(scores(ds_, at), q.head(b, h), to.dk.head(b, of),
                         {.alpha = scale_, .beta = beta, .a = transpose::yes}, ctx);
    });
  }

 private:
  static out<T> scores(const matrix<T>& of, std::size_t at) { return of.view().rows_from(at * of.cols, of.cols); }
  template <class F>
  static void for_heads(heads q, heads k, F f) {
    for (std::size_t b = 0; b < q.batch; ++b)
      for (std::size_t h = 0; h < q.heads; ++h) f(b, h, h / (q.heads / k.heads), b * q.heads + h);
  }

  matrix<T> p_, ds_;
  double scale_;
  Keys keys_;
};

/// Multi-token attention with stride and dilation 1 and one group: mask, softmax or sparsemax, a convolution of planes
/// that were padded, mask; and back.
template <class T>
class mixing_steps {
 public:
  using A = tigon::accumulator_t<T>;
  using planes = tigon::heads_view<T>;
  struct sizes {
    std::size_t batch, len, inputs, outputs, taps;
    bool sparse;
  };

  mixing_steps(sizes of, bool with_backward)
      : s_(of),
        z_(s_.batch * s_.inputs * s_.len, s_.len),
        p_(z_.rows, s_.len),
        padded_(z_.rows, wide()),
        mixed_(s_.batch * s_.outputs * s_.len, s_.len) {
    if (!with_backward) return;
    padded_e_ = matrix<T>(mixed_.rows, wide());
    sums_ = matrix<A>(mixed_.rows, s_.inputs * s_.taps * s_.taps);
  }
  std::size_t bytes() const {
    return z_.bytes() + p_.bytes() + padded_.bytes() + mixed_.bytes() + padded_e_.bytes() + sums_.bytes();
  }

  void forward(tigon::context& ctx, in<T> scores, in<T> w, const T* b, out<T> y) const {
    const T hidden = static_cast<T>(static_cast<A>(-1e4));
    mask<T>(ctx, scores, z_.view(), hidden, causal_keys());
    if (s_.sparse)
      passes::sparsemax_forward<T>(ctx, z_.view(), p_.view());
    else
      passes::softmax_forward<T>(ctx, z_.view(), p_.view());
    pad(ctx, p_.view(), padded_.view());
    const convolution of{s_.len, s_.taps, s_.inputs, s_.outputs, w, 1};
    of.run(ctx, padded_.view(), mixed_.view(), b);
    mask<T>(ctx, mixed_.view(), y, T(), causal_keys());
  }
  /// After forward.
  void backward(tigon::context& ctx, in<T> dy, in<T> w, out<T> dscores, T* dw, T* db) const {
    mask<T>(ctx, dy, mixed_.view(), T(), causal_keys());
    pad(ctx, mixed_.view(), padded_e_.view());
    parameter_gradients(ctx, dw, db);
    const convolution of{s_.len, s_.taps, s_.outputs, s_.inputs, w, -1};
    of.run(ctx, padded_e_.view(), z_.view(), static_cast<const T*>(nullptr));
    if (s_.sparse)
      passes::sparsemax_backward<T>(ctx, z_.view(), p_.view(), z_.view());
    else
      passes::softmax_backward<T>(ctx, z_.view(), p_.view(), z_.view());
    mask<T>(ctx, z_.view(), dscores, T(), causal_keys());
  }

 private:
  /// A sum over taps and planes, a row of the result at a time; the weight of output o and input c at (u, v) is in row
  /// (o inputs + c) taps + u. sign -1: the transpose, outputs and inputs exchanged and taps from the far end.
  struct convolution {
    std::size_t len, taps, from_planes, to_planes;
    in<T> w;
    int sign;

    A weight(std::size_t to, std::size_t from, std::size_t u, std::size_t v) const {
      return sign > 0 ? static_cast<A>(w.row((to * from_planes + from) * taps + u)[v])
                      : static_cast<A>(w.row((from * to_planes + to) * taps + taps - 1 - u)[taps - 1 - v]);
    }
    void run(tigon::context& ctx, in<T> padded, out<T> y, const T* bias) const {
      const convolution c = *this;
      tigon::simd::for_rows<lanes, A>(ctx, y.rows, y.cols, {.scratch = 1}, [=] TIGON_FN(auto row) {
        const std::size_t i = row.i % c.len, plane = row.i / c.len, to = plane % c.to_planes, b = plane / c.to_planes;
        const tigon::vector_view<A> total = row.scratch(0);
        row.map(tigon::reads(tigon::constant(bias == nullptr ? A(0) : static_cast<A>(bias[to]))), tigon::writes(total),
                same);
        for (std::size_t from = 0; from < c.from_planes; ++from)
          for (std::size_t u = 0; u < c.taps; ++u) {
            const std::size_t at = i + u - c.taps / 2;  // wraps where there is none
            if (at >= c.len) continue;
            const T* const source = padded.row((b * c.from_planes + from) * c.len + at);
            for (std::size_t v = 0; v < c.taps; ++v)
              row.map(tigon::reads(tigon::vector_view<const A>(total), tigon::vector_view<const T>{source + v, c.len}),
                      tigon::writes(total),
                      [factor = c.weight(to, from, u, v)](auto before, auto p) { return before + p * factor; });
          }
        row.map(tigon::reads(tigon::vector_view<const A>(total)), tigon::writes(y), same);
      });
    }
  };

  std::size_t wide() const { return s_.len + s_.taps - 1; }
  void pad(tigon::context& ctx, in<T> x, out<T> y) const {
    each(ctx, y, same, tigon::constant(A(0)));
    each(ctx, y.cols_from(s_.taps / 2, s_.len), same, x);
  }
  /// Sums of each row by output, input and tap, then over rows.
  void parameter_gradients(tigon::context& ctx, T* dw, T* db) const {
    const sizes s = s_;
    const in<T> e = mixed_.view(), padded = padded_.view();
    const out<A> sums = sums_.view();
    tigon::simd::for_rows<lanes, A>(ctx, e.rows, e.cols, [=] TIGON_FN(auto row) {
      const std::size_t i = row.i % s.len, b = row.i / s.len / s.outputs;
      A* to = sums.row(row.i);
      for (std::size_t c = 0; c < s.inputs; ++c)
        for (std::size_t u = 0; u < s.taps; ++u) {
          const std::size_t at = i + u - s.taps / 2;
          for (std::size_t v = 0; v < s.taps; ++v, ++to)
            *to = at >= s.len
                      ? A(0)
                      : static_cast<A>(row.sum(
                            tigon::reads(
                                e, tigon::vector_view<const T>{padded.row((b * s.inputs + c) * s.len + at) + v, s.len}),
                            product));
        }
    });
    const std::size_t weights = s.inputs * s.taps * s.taps;
    temporaries<A> own(ctx, 0, e.rows, 1);
    A* const of_bias = own.numbers();
    sum_rows(ctx, e, of_bias);
    for (std::size_t o = 0; o < s.outputs; ++o) {
      const auto total = [&](auto at_row) {
        double all = 0;
        for (std::size_t b = 0; b < s.batch; ++b)
          for (std::size_t i = 0; i < s.len; ++i) all += at_row((b * s.outputs + o) * s.len + i);
        return static_cast<T>(static_cast<A>(all));
      };
      db[o] = total([&](std::size_t r) { return of_bias[r]; });
      for (std::size_t k = 0; k < weights; ++k)
        dw[o * weights + k] = total([&](std::size_t r) { return sums.row(r)[k]; });
    }
  }

  sizes s_;
  matrix<T> z_, p_, padded_, mixed_, padded_e_;
  matrix<A> sums_;
};

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_ATTENTION_HPP
