// The product of 8-bit numbers with weights of two bits, over lanes of four bytes.
//
//   quarter  q rows of packed weights: byte r of a column has the codes of rows r, q + r, 2 q + r and 3 q + r of w
//   word     four bytes that are multiplied in one lane: of a, columns r, q + r, 2 q + r and 3 q + r of a row; of w,
//            the codes of a byte
//   panel    tile-high rows of a, word after word: word (r, i) at r * rows + i
//   block    words of depth of one pass of the tile kernel: codes of a tile's columns stay in L1
//   tile     rows x vectors of sums in registers
//   chunk    rows of a that are packed at a time, for all tasks
//
// Codes are u = w + 1, in 0..3, so c = a u - (sum of a row of a). Sums are made modulo 2^32, and c is in the range of
// int32.
#ifndef TIGON_GEMM_INT2_HPP
#define TIGON_GEMM_INT2_HPP

#include <tigon/backend/host.hpp>
#include <tigon/core/division.hpp>
#include <tigon/core/views.hpp>
#include <tigon/gemm/panels.hpp>
#include <tigon/simd/quads.hpp>
#include <tigon/simd/registers.hpp>
#include <tigon/simd/vec.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tigon::int2 {
inline namespace TIGON_ABI {

using detail::ceil_div;
using detail::round_up;
using packed::unroll;

/// Weights are in -1..2, so sums of fewer terms than this stay in 32 bits.
inline constexpr std::size_t most_depth = std::size_t{1} << 23;

/// As many sums as the registers hold beside one word of a and the codes.
template <std::size_t N>
struct tile_shape {
#if defined(__aarch64__)
  static constexpr bool many = true;
#else
  static constexpr bool many = N == 16;
#endif
  static constexpr std::size_t rows = many ? 8 : 4;
  static constexpr std::size_t vectors = many || simd::quads<N>::has_dot ? 3 : 2;
  static constexpr std::size_t cols = vectors * N;
};

/// Extents of what is computed at a time. They depend on the shape alone.
template <std::size_t N>
struct plan {
  static constexpr std::size_t U = tile_shape<N>::rows, W = tile_shape<N>::cols;

  std::size_t m, n, quarter;
  std::size_t depth;       ///< words of a block: fewer where every row of weights is a stream from memory
  std::size_t chunk;       ///< rows of a chunk
  std::size_t rows, cols;  ///< of a task

  plan(std::size_t m_, std::size_t n_, std::size_t q) : m(m_), n(n_), quarter(q) {
    constexpr std::size_t chunk_words = std::size_t{1} << 20;
    const std::size_t all = std::max(round_up(m, U), U);
    const std::size_t fitting = std::max(chunk_words / std::max<std::size_t>(quarter, 1) / U * U, U);
    depth = m <= U ? 64 : 128;
    rows = std::min({all, fitting, std::size_t{128}});
    chunk = std::min(all, fitting / rows * rows);
    cols = std::clamp(round_up(ceil_div(n, 16), W), W, 16 * W);
  }
  std::size_t tasks(std::size_t count) const { return ceil_div(count, rows) * ceil_div(n, cols); }
  std::size_t workspace_bytes(std::size_t workers) const {
    return workspace::bytes_for<std::uint32_t>(chunk, quarter) + workspace::bytes_for<std::uint32_t>(chunk) +
           workspace::bytes_for<std::uint32_t>(workers, depth * W);
  }
};

/// Codes of weights, or bytes of them: row r of the block at data + r * stride.
template <class T>
struct block_of_weights {
  const T* data;
  std::size_t stride;
};

/// R rows by V vectors: c = (start or c) + a u over `length` words of depth. Few sums go in several chains, so that an
/// addition need not wait for the one before it.
template <std::size_t N, std::size_t R, std::size_t V, class T>
void tile(std::size_t length, const std::uint32_t* a, block_of_weights<T> w, const std::uint32_t* start,
          std::int32_t* c, std::size_t c_stride) {
  using Q = simd::quads<N>;
  using lanes = typename Q::lanes;
  constexpr std::size_t U = tile_shape<N>::rows, chains = R == 1 ? 4 : R == 2 ? 2 : 1;
  const auto each = [](auto f) TIGON_LAMBDA {
    unroll<R>([&](auto i) TIGON_LAMBDA { unroll<V>([&](auto j) TIGON_LAMBDA { f(i, j); }); });
  };
  lanes sums[chains][R][V];
  each([&](auto i, auto j) TIGON_LAMBDA {
    sums[0][i][j] = start != nullptr ? Q::broadcast(start[i]) : Q::load(c + i * c_stride + j * N);
    unroll<chains - 1>([&](auto k) TIGON_LAMBDA { sums[k + 1][i][j] = lanes{}; });
  });
  const auto step = [&](lanes(&to)[R][V], std::size_t r) TIGON_LAMBDA {
    lanes u[V];
    if constexpr (sizeof(T) == 1) __builtin_prefetch(w.data + r * w.stride + 128, 0, 2);  // the columns of later tiles
    unroll<V>([&](auto j) TIGON_LAMBDA {
      const T* p = w.data + r * w.stride + j * N;
      if constexpr (sizeof(T) == 1)
        u[j] = Q::codes(p);
      else
        u[j] = Q::load(p);
    });
    unroll<R>([&](auto i) TIGON_LAMBDA {
      simd::keep_order();
      const lanes x = Q::broadcast(a[r * U + i]);
      unroll<V>([&](auto j) TIGON_LAMBDA { to[i][j] = Q::dot(to[i][j], u[j], x); });
    });
  };
  std::size_t r = 0;
  for (; r + chains <= length; r += chains) unroll<chains>([&](auto k) TIGON_LAMBDA { step(sums[k], r + k); });
  for (; r < length; ++r) step(sums[0], r);
  each([&](auto i, auto j) TIGON_LAMBDA {
    unroll<chains - 1>([&](auto k) TIGON_LAMBDA { sums[0][i][j] += sums[k + 1][i][j]; });
    Q::store(sums[0][i][j], c + i * c_stride + j * N);
  });
}

template <std::size_t N, std::size_t R, class T>
TIGON_INLINE void tile_of(std::size_t vectors, std::size_t length, const std::uint32_t* a, block_of_weights<T> w,
                          const std::uint32_t* start, std::int32_t* c, std::size_t c_stride) {
  if (vectors == 1) return tile<N, R, 1>(length, a, w, start, c, c_stride);
  if (vectors == 2) return tile<N, R, 2>(length, a, w, start, c, c_stride);
  if constexpr (tile_shape<N>::vectors > 2) tile<N, R, 3>(length, a, w, start, c, c_stride);
}

template <std::size_t N>
class product {
  static constexpr std::size_t U = tile_shape<N>::rows, W = tile_shape<N>::cols;

 public:
  product(const plan<N>& p, matrix_view<const std::int8_t> a, matrix_view<const std::uint8_t> w,
          matrix_view<std::int32_t> c)
      : plan_(p), a_(a), w_(w), c_(c) {}

  template <class B>
  void run(context& ctx) {
    if (plan_.m == 0 || plan_.n == 0) return;
    workspace::frame frame(ctx.workspace());
    words_ = frame.template take<std::uint32_t>(plan_.chunk * plan_.quarter);
    start_ = frame.template take<std::uint32_t>(plan_.chunk);
    codes_ = frame.template take<std::uint32_t>(ctx.executor().workers() * plan_.depth * W);
    for (first_ = 0; first_ < plan_.m; first_ += plan_.chunk) {
      count_ = std::min(plan_.chunk, plan_.m - first_);
      if (plan_.quarter != 0)
        detail::for_host_tasks<B>(ctx, ceil_div(count_, U), [&](std::size_t task, std::size_t) { pack(task * U); });
      detail::for_host_tasks<B>(ctx, plan_.tasks(count_),
                                [&](std::size_t task, std::size_t worker) { compute(task, worker); });
    }
  }

 private:
  /// The panel of rows [row, row + U) of the chunk, and what their sums begin with. Missing rows are zeros.
  void pack(std::size_t row) {
    using Q = simd::quads<N>;
    const std::size_t q = plan_.quarter, rows = std::min(U, count_ - row);
    std::uint32_t* panel = words_ + row * q;
    if (rows < U) std::fill_n(panel, U * q, std::uint32_t{0});
    for (std::size_t i = 0; i < U; ++i) {
      start_[row + i] = 0;
      if (i >= rows) continue;
      const std::int8_t* x = a_.row(first_ + row + i);
      typename Q::lanes sums = {};
      for (std::size_t r = 0; r < q; r += 16) {
        alignas(64) std::uint32_t words[16] = {};
        const std::size_t some = std::min<std::size_t>(16, q - r);
        if (some == 16)
          simd::zip_bytes(x + r, x + q + r, x + 2 * q + r, x + 3 * q + r, words);
        else
          for (std::size_t k = 0; k < some; ++k)
            for (std::size_t s = 0; s < 4; ++s)
              words[k] |= std::uint32_t{static_cast<std::uint8_t>(x[s * q + r + k])} << 8 * s;
        for (std::size_t k = 0; k < 16; k += N) sums = Q::dot(sums, Q::broadcast(0x01010101), Q::load(words + k));
        for (std::size_t k = 0; k < some; ++k) panel[(r + k) * U + i] = words[k];
      }
      for (std::size_t k = 0; k < N; ++k) start_[row + i] -= sums[k];
    }
  }

  void compute(std::size_t task, std::size_t worker) const {
    const std::size_t across = ceil_div(plan_.n, plan_.cols);
    const std::size_t row = task / across * plan_.rows, rows = std::min(plan_.rows, count_ - row);
    const std::size_t col = task % across * plan_.cols, end = std::min(plan_.n, col + plan_.cols);
    if (plan_.quarter == 0)
      for (std::size_t i = 0; i < rows; ++i)
        std::fill(c_.row(first_ + row + i) + col, c_.row(first_ + row + i) + end, 0);
    std::uint32_t* codes = codes_ + worker * plan_.depth * W;
    for (std::size_t r = 0; r < plan_.quarter; r += plan_.depth) {
      const std::size_t length = std::min(plan_.depth, plan_.quarter - r);
      for (std::size_t j = col; j < end; j += W) {
        const std::size_t width = std::min(W, end - j), stride = round_up(width, N);
        const std::uint8_t* w = w_.row(r) + j;
        if (rows <= U && width == stride) {  // codes are used once
          panels(row, rows, j, width, r, length, block_of_weights<std::uint8_t>{w, w_.row_stride});
          continue;
        }
        unpack(w, length, width, codes);
        panels(row, rows, j, width, r, length, block_of_weights<std::uint32_t>{codes, stride});
      }
    }
  }

  /// The codes of `width` columns, whole vectors of them; those beyond are zeros.
  void unpack(const std::uint8_t* w, std::size_t length, std::size_t width, std::uint32_t* to) const {
    using Q = simd::quads<N>;
    for (std::size_t r = 0; r < length; ++r, w += w_.row_stride) {
      std::size_t j = 0;
      for (; j + N <= width; j += N, to += N) Q::store(Q::codes(w + j), to);
      if (j == width) continue;
      std::uint8_t rest[N] = {};
      std::memcpy(rest, w + j, width - j);
      Q::store(Q::codes(rest), to);
      to += N;
    }
  }

  /// Rows [row, row + rows) of the chunk by columns [col, col + width), words [r, r + length) of depth.
  template <class T>
  void panels(std::size_t row, std::size_t rows, std::size_t col, std::size_t width, std::size_t r, std::size_t length,
              block_of_weights<T> w) const {
    const std::size_t vectors = ceil_div(width, N);
    for (std::size_t i = 0; i < rows; i += U) {
      const std::size_t height = std::min(U, rows - i);
      const std::uint32_t *a = words_ + (row + i) * plan_.quarter + r * U, *start = r == 0 ? start_ + row + i : nullptr;
      const matrix_view<std::int32_t> c = c_.rows_from(first_ + row + i, height).cols_from(col, width);
      if (width == vectors * N && (height & (height - 1)) == 0) {
        any_tile(height, vectors, length, a, w, start, c.data, c.row_stride);
        continue;
      }
      alignas(64) std::int32_t buffer[U * W];
      if (start == nullptr)
        for (std::size_t y = 0; y < U; ++y)
          for (std::size_t x = 0; x < W; ++x) buffer[y * W + x] = y < height && x < width ? c.row(y)[x] : 0;
      any_tile(height, vectors, length, a, w, start, buffer, W);
      for (std::size_t y = 0; y < height; ++y) std::copy_n(buffer + y * W, width, c.row(y));
    }
  }

  /// The lowest tile that holds `rows` rows.
  template <class T>
  void any_tile(std::size_t rows, std::size_t vectors, std::size_t length, const std::uint32_t* a,
                block_of_weights<T> w, const std::uint32_t* start, std::int32_t* c, std::size_t c_stride) const {
    packed::with_tile_height<U>(
        rows, [&](auto height) TIGON_LAMBDA { tile_of<N, height>(vectors, length, a, w, start, c, c_stride); });
  }

  const plan<N>& plan_;
  matrix_view<const std::int8_t> a_;
  matrix_view<const std::uint8_t> w_;
  matrix_view<std::int32_t> c_;
  std::uint32_t *words_ = nullptr, *start_ = nullptr, *codes_ = nullptr;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace TIGON_ABI
}  // namespace tigon::int2

#endif  // TIGON_GEMM_INT2_HPP
