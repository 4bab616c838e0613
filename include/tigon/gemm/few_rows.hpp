// Products of a few rows with a large matrix of f32, whose memory takes longer to read than its numbers to multiply: in
// f64.
#ifndef TIGON_GEMM_FEW_ROWS_HPP
#define TIGON_GEMM_FEW_ROWS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/core/division.hpp>
#include <tigon/simd/packs.hpp>
#include <tigon/simd/vec.hpp>

#include <algorithm>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// x, d: rows of f64; w [vocab, hidden], of which a row is read once. The order of all sums depends on shapes alone,
/// and the bits of a row of z and dx on nothing of other rows.
///
///   z = x w^T + bias,   dx = d w,   dw = d^T x,   db[j] = sum_i d[i,j]
///
/// Parts of w are prefetched while those before them are multiplied: 8 rows, w of 32000 x 2048, one thread of Zen 4
/// with AVX-512 (2026-11-29): z in 31 ms, not 44, dx in 38 ms, not 43.
template <class B>
class few_rows_products {
  using V = simd::vec<typename B::engine, double>;
  // Tiles: rows of x by rows of w (sums are in registers), rows of d by two vectors, rows of dw by two vectors.
  static constexpr std::size_t U = 4, C = V::size >= 8 ? 4 : 2;
  static constexpr std::size_t block_depth = 2048;                        // of x: stays in L2
  static constexpr std::size_t task_vocab = 64;                           // rows of w in a task of z
  static constexpr std::size_t block_vocab = 16;                          // rows of w between two loads of sums of dx
  static constexpr std::size_t task_columns = 1024;                       // columns of w in a task of gradients
  static constexpr std::size_t block_columns = 256;                       // of them in L1
  static constexpr std::size_t least_segment = 1024, most_segments = 16;  // of vocab, whose shares of dx are added up

 public:
  /// Rows, and columns, of memory that a few rows take: whole tiles.
  static constexpr std::size_t padded_rows(std::size_t n) { return n == 1 ? 1 : round_up(n, U); }
  static constexpr std::size_t padded_cols(std::size_t hidden) { return round_up(hidden, 2 * V::size); }
  static constexpr std::size_t segments(std::size_t vocab) {
    return std::clamp<std::size_t>(ceil_div(vocab, least_segment), 1, most_segments);
  }

  /// n rows of x, which row(i) is the i-th of, in whole tiles.
  template <class Row>
  static matrix_view<const double> widen(double* to, std::size_t n, std::size_t cols, const Row& row) {
    const std::size_t width = padded_cols(cols), rows = padded_rows(n);
    for (std::size_t i = 0; i < rows; ++i) {
      double* out = to + i * width;
      const std::size_t some = i < n ? cols : 0;
      if (some != 0) std::copy_n(row(i), cols, out);
      std::fill(out + some, out + width, 0.0);
    }
    return {to, n, cols, width};
  }

  template <element W>
  static void logits(matrix_view<const double> x, matrix_view<const W> w, const W* bias, matrix_view<double> z,
                     context& ctx) {
    detail::for_host_tasks<B>(ctx, ceil_div(w.rows, task_vocab), [&](std::size_t task, std::size_t) {
      const std::size_t begin = task * task_vocab, end = std::min(w.rows, begin + task_vocab);
      for (std::size_t i = 0; i < z.rows; ++i)
        for (std::size_t j = begin; j < end; ++j) z.row(i)[j] = bias == nullptr ? 0.0 : static_cast<double>(bias[j]);
      for (std::size_t k = 0; k < w.cols; k += block_depth) {
        const std::size_t depth = std::min(block_depth, w.cols - k);
        for (std::size_t j = begin; j < end; j += C) {
          const W *rows[C], *next[C];
          for (std::size_t c = 0; c < C; ++c) {
            rows[c] = w.row(std::min(j + c, end - 1)) + k;
            next[c] = w.row(std::min(j + C + c, w.rows - 1)) + k;
          }
          for (std::size_t i = 0; i < z.rows; i += U) {
            const std::size_t some = std::min(U, z.rows - i);
            const matrix_view<double> to = z.rows_from(i, some).cols_from(j, std::min(C, end - j));
            const double* from = x.data + i * x.row_stride + k;
            if (padded_rows(z.rows) == 1)
              add_dots<1>(from, x.row_stride, rows, next, depth, to);
            else
              add_dots<U>(from, x.row_stride, rows, next, depth, to);
          }
        }
      }
    });
  }

  /// Where gradients go; one without memory is not made. dw and db are added to if `add`.
  template <element X, element G>
  struct gradients {
    X* const* dx;  ///< rows
    matrix_view<G> dw;
    G* db;
    bool add;
  };

  /// Gradients of n rows from those of their logits, d[0], ..., d[n - 1]. `shares`: memory of shares_of() numbers,
  /// where dx is wanted.
  template <element W, element X, element G>
  static void backward(const double* const* d, std::size_t n, matrix_view<const double> x, matrix_view<const W> w,
                       const gradients<X, G>& out, double* shares, context& ctx) {
    const std::size_t rows = padded_rows(n), parts = segments(w.rows),
                      across = std::max<std::size_t>(ceil_div(w.cols, task_columns), 1), width = padded_cols(w.cols);
    const std::size_t length = round_up(ceil_div(w.rows, parts), block_vocab);
    detail::for_host_tasks<B>(ctx, parts * across, [&](std::size_t task, std::size_t) {
      const std::size_t segment = task / across, begin = std::min(w.rows, segment * length),
                        end = std::min(w.rows, begin + length);
      const std::size_t first = task % across * task_columns, cols = std::min(task_columns, w.cols - first);
      double* share = out.dx == nullptr ? nullptr : shares + segment * rows * width + first;
      if (share != nullptr)
        for (std::size_t i = 0; i < rows; ++i) std::fill_n(share + i * width, padded_cols(cols), 0.0);
      for (std::size_t j = begin; j < end; j += block_vocab) {
        const std::size_t some = std::min(block_vocab, end - j);
        for (std::size_t k = 0; k < cols; k += block_columns) {
          const std::size_t here = std::min(block_columns, cols - k);
          const matrix_view<const W> part = w.rows_from(j, some).cols_from(first + k, here);
          if (share != nullptr) {
            // The part after this one: in these rows of w, or at the beginning of the next.
            const bool same = k + block_columns < cols;
            const W* next = same ? part.data + block_columns : w.row(std::min(j + block_vocab, w.rows - some)) + first;
            add_share(d, n, j, part, next, share + k, width);
          }
          if (out.dw.data != nullptr)
            parameters(d, n, j, x.data + first + k, x.row_stride, out.dw.rows_from(j, some).cols_from(first + k, here),
                       out.add);
        }
      }
      if (out.db != nullptr && first == 0)
        for (std::size_t j = begin; j < end; ++j) {
          double sum = out.add ? static_cast<double>(out.db[j]) : 0.0;
          for (std::size_t i = 0; i < n; ++i) sum += d[i][j];
          out.db[j] = static_cast<G>(sum);
        }
    });
    if (out.dx == nullptr) return;
    detail::for_host_tasks<B>(ctx, across, [&](std::size_t task, std::size_t) {
      const std::size_t first = task * task_columns, end = std::min(w.cols, first + task_columns);
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = first; j < end; j += V::size) {
          const double* from = shares + i * width + j;
          V sum = simd::load<V>(from);
          for (std::size_t s = 1; s < parts; ++s) sum += simd::load<V>(from + s * rows * width);
          put(sum, out.dx[i] + j, end - j);
        }
    });
  }
  static constexpr std::size_t shares_of(std::size_t n, std::size_t hidden, std::size_t vocab) {
    return workspace::product(segments(vocab), padded_rows(n), padded_cols(hidden));
  }

 private:
  template <element T>
  static TIGON_INLINE V get(const T* from, std::size_t some) {
    return some >= V::size ? simd::load<V>(from) : simd::load_n<V>(from, some);
  }
  template <element T>
  static TIGON_INLINE void put(V v, T* to, std::size_t some) {
    if (some >= V::size)
      simd::store(v, to);
    else
      simd::store_n(v, to, some);
  }
  /// f(j, some) for every two vectors: so many columns from j on.
  template <class F>
  static TIGON_INLINE void for_pairs(std::size_t cols, F f) {
    constexpr std::size_t two = 2 * V::size;
    std::size_t j = 0;
    for (; j + two <= cols; j += two) f(j, std::integral_constant<std::size_t, two>());
    if (j < cols) f(j, cols - j);
  }

  template <std::size_t R, element W>
  static void add_dots(const double* x, std::size_t stride, const W* const (&w)[C], const W* const (&next)[C],
                       std::size_t depth, matrix_view<double> z) {
    V sum[R][C];
    simd::unrolled<R>([&](auto i) TIGON_LAMBDA { simd::unrolled<C>([&](auto c) TIGON_LAMBDA { sum[i][c] = V(0); }); });
    const auto step = [&](std::size_t k, auto some) TIGON_LAMBDA {
      V b[C];
      simd::unrolled<C>([&](auto c) TIGON_LAMBDA {
        __builtin_prefetch(next[c] + k, 0, 3);
        b[c] = get(w[c] + k, some);
      });
      simd::unrolled<R>([&](auto i) TIGON_LAMBDA {
        const V a = simd::load<V>(x + i * stride + k);
        simd::unrolled<C>([&](auto c) TIGON_LAMBDA { sum[i][c] = fma(a, b[c], sum[i][c]); });
      });
    };
    std::size_t k = 0;
    for (; k + V::size <= depth; k += V::size) step(k, std::integral_constant<std::size_t, V::size>());
    if (k < depth) step(k, depth - k);
    simd::unrolled<R>([&](auto i) TIGON_LAMBDA {
      simd::unrolled<C>([&](auto c) TIGON_LAMBDA {
        if (i < z.rows && c < z.cols) z.row(i)[c] += sum_lanes(sum[i][c]);
      });
    });
  }

  template <element W>
  static void add_share(const double* const* d, std::size_t n, std::size_t first, matrix_view<const W> w, const W* next,
                        double* share, std::size_t stride) {
    if (n == 1) return add_share_of<1>(d, 1, first, w, next, share, stride);
    for (std::size_t i = 0; i < n; i += U)
      add_share_of<U>(d + i, std::min(U, n - i), first, w, next, share + i * stride, stride);
  }
  template <std::size_t R, element W>
  static void add_share_of(const double* const* d, std::size_t n, std::size_t first, matrix_view<const W> w,
                           const W* next, double* share, std::size_t stride) {
    const double* of[R];
    for (std::size_t i = 0; i < R; ++i) of[i] = d[std::min(i, n - 1)] + first;
    for_pairs(w.cols, [&](std::size_t j, auto some) TIGON_LAMBDA {
      V sum[R][2];
      double* to = share + j;
      simd::unrolled<R>([&](auto i) TIGON_LAMBDA {
        simd::unrolled<2>([&](auto h) TIGON_LAMBDA { sum[i][h] = simd::load<V>(to + i * stride + h * V::size); });
      });
      const bool both = some > V::size;
      for (std::size_t v = 0; v < w.rows; ++v) {
        const W* from = w.row(v) + j;
        __builtin_prefetch(next + v * w.row_stride + j, 0, 3);
        const V low = get(from, some), high = both ? get(from + V::size, some - V::size) : V(0);
        simd::unrolled<R>([&](auto i) TIGON_LAMBDA {
          const V by(of[i][v]);
          sum[i][0] = fma(by, low, sum[i][0]), sum[i][1] = fma(by, high, sum[i][1]);
        });
      }
      simd::unrolled<R>([&](auto i) TIGON_LAMBDA {
        simd::unrolled<2>([&](auto h) TIGON_LAMBDA { simd::store(sum[i][h], to + i * stride + h * V::size); });
      });
    });
  }

  template <element G>
  static void parameters(const double* const* d, std::size_t n, std::size_t first, const double* x, std::size_t stride,
                         matrix_view<G> dw, bool add) {
    constexpr std::size_t R = 4;
    std::size_t v = 0;
    for (; v + R <= dw.rows; v += R) parameters_of<R>(d, n, first + v, x, stride, dw.rows_from(v, R), add);
    for (; v < dw.rows; ++v) parameters_of<1>(d, n, first + v, x, stride, dw.rows_from(v, 1), add);
  }
  template <std::size_t R, element G>
  static void parameters_of(const double* const* d, std::size_t n, std::size_t first, const double* x,
                            std::size_t stride, matrix_view<G> dw, bool add) {
    for_pairs(dw.cols, [&](std::size_t j, auto some) TIGON_LAMBDA {
      const bool both = some > V::size;
      V sum[R][2];
      simd::unrolled<R>([&](auto v) TIGON_LAMBDA {
        const G* from = dw.row(v) + j;
        sum[v][0] = add ? get(from, some) : V(0);
        sum[v][1] = add && both ? get(from + V::size, some - V::size) : V(0);
      });
      for (std::size_t i = 0; i < n; ++i) {
        const double *of = d[i] + first, *from = x + i * stride + j;
        const V low = simd::load<V>(from), high = simd::load<V>(from + V::size);
        simd::unrolled<R>([&](auto v) TIGON_LAMBDA {
          const V by(of[v]);
          sum[v][0] = fma(by, low, sum[v][0]), sum[v][1] = fma(by, high, sum[v][1]);
        });
      }
      simd::unrolled<R>([&](auto v) TIGON_LAMBDA {
        G* to = dw.row(v) + j;
        put(sum[v][0], to, some);
        if (both) put(sum[v][1], to + V::size, some - V::size);
      });
    });
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_GEMM_FEW_ROWS_HPP
