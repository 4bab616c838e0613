// The product of 8-bit numbers with weights of two bits (gemm/int2.hpp) by tile registers (simd/tile_registers.hpp).
//
// Quarter and word are those of gemm/int2.hpp; here the words of w hold weights, not codes, so that sums need no
// correction.
//
//   step     16 words of depth: a tile of a is 16 rows of them, one after the other; of w, 16 words of 16 columns
//   panel    32 rows of a, all steps of its depth; 32 columns of w, the steps of a block
//   block    steps of depth of one pass: a panel of w stays in L1
//   chunk    rows of a that are packed at a time, for all tasks
#ifndef TIGON_GEMM_INT2_TILES_HPP
#define TIGON_GEMM_INT2_TILES_HPP

#include <tigon/gemm/int2.hpp>
#include <tigon/simd/tile_registers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tigon::int2 {
inline namespace TIGON_ABI {

/// Extents of what is computed at a time. They depend on the shape alone.
struct tile_plan {
  static constexpr std::size_t panel = 32, step_words = 16;
  static constexpr std::size_t step = panel * step_words;  ///< words of a step of a panel
  static constexpr std::size_t block = 16;                 ///< steps: 32 KiB of weights

  std::size_t m, n, quarter;
  std::size_t steps;       ///< of the depth
  std::size_t chunk;       ///< rows of a chunk
  std::size_t rows, cols;  ///< of a task

  tile_plan(std::size_t m_, std::size_t n_, std::size_t q) : m(m_), n(n_), quarter(q), steps(ceil_div(q, step_words)) {
    constexpr std::size_t chunk_words = std::size_t{1} << 20;
    const std::size_t all = std::max(round_up(m, panel), panel), deep = std::max<std::size_t>(steps, 1) * step_words;
    const std::size_t fitting = std::max(chunk_words / deep / panel * panel, panel);
    rows = std::min({all, fitting, std::size_t{256}});
    chunk = std::min(all, fitting / rows * rows);
    cols = std::clamp(round_up(ceil_div(n, 16), panel), panel, 16 * panel);
  }
  std::size_t tasks(std::size_t count) const { return ceil_div(count, rows) * ceil_div(n, cols); }
  std::size_t weight_words() const { return std::min(steps, std::size_t{block}) * step; }
  std::size_t workspace_bytes(std::size_t workers) const {
    return workspace::bytes_for<std::uint32_t>(chunk, steps * step_words) +
           workspace::bytes_for<std::uint32_t>(workers, weight_words());
  }
};

/// Registers is simd::tile_registers, or what computes the same.
template <class Registers>
class tile_product {
  using Q = simd::quads<16>;
  static constexpr std::size_t panel = tile_plan::panel, step_words = tile_plan::step_words, step = tile_plan::step;

 public:
  tile_product(const tile_plan& p, matrix_view<const std::int8_t> a, matrix_view<const std::uint8_t> w,
               matrix_view<std::int32_t> c)
      : plan_(p), a_(a), w_(w), c_(c) {}

  void run(context& ctx) {
    if (plan_.m == 0 || plan_.n == 0) return;
    workspace::frame frame(ctx.workspace());
    words_ = frame.template take<std::uint32_t>(plan_.chunk * plan_.steps * step_words);
    weights_ = frame.template take<std::uint32_t>(ctx.executor().workers() * plan_.weight_words());
    for (first_ = 0; first_ < plan_.m; first_ += plan_.chunk) {
      count_ = std::min(plan_.chunk, plan_.m - first_);
      ctx.executor().run(ceil_div(count_, panel), [&](std::size_t task, std::size_t) { pack(task * panel); });
      ctx.executor().run(plan_.tasks(count_), [&](std::size_t task, std::size_t worker) { compute(task, worker); });
    }
  }

 private:
  /// The panel of rows [row, row + 32) of the chunk. Missing rows and words are zeros.
  void pack(std::size_t row) {
    const std::size_t q = plan_.quarter;
    std::uint32_t* to = words_ + row * plan_.steps * step_words;
    for (std::size_t i = 0; i < panel; ++i) {
      for (std::size_t s = 0; s < plan_.steps; ++s) {
        std::uint32_t* words = to + s * step + i * step_words;
        if (row + i >= count_) {
          std::memset(words, 0, step_words * sizeof *words);
          continue;
        }
        const std::size_t r = s * step_words, some = std::min(step_words, q - r);
        const std::int8_t* x = a_.row(first_ + row + i) + r;
        if (some == step_words) {
          simd::zip_bytes(x, x + q, x + 2 * q, x + 3 * q, words);
          continue;
        }
        for (std::size_t k = 0; k < step_words; ++k) {
          words[k] = 0;
          for (std::size_t part = 0; part < 4 && k < some; ++part)
            words[k] |= std::uint32_t{static_cast<std::uint8_t>(x[part * q + k])} << 8 * part;
        }
      }
    }
  }

  void compute(std::size_t task, std::size_t worker) const {
    const std::size_t across = ceil_div(plan_.n, plan_.cols);
    const std::size_t row = task / across * plan_.rows, rows = std::min(plan_.rows, count_ - row);
    const std::size_t col = task % across * plan_.cols, end = std::min(plan_.n, col + plan_.cols);
    if (plan_.steps == 0)
      for (std::size_t i = 0; i < rows; ++i)
        std::fill(c_.row(first_ + row + i) + col, c_.row(first_ + row + i) + end, 0);
    [[maybe_unused]] const typename Registers::configured registers;
    std::uint32_t* weights = weights_ + worker * plan_.weight_words();
    for (std::size_t s = 0; s < plan_.steps; s += tile_plan::block) {
      const std::size_t length = std::min(plan_.steps - s, std::size_t{tile_plan::block});
      for (std::size_t j = col; j < end; j += panel) {
        unpack(s, length, j, std::min(panel, end - j), weights);
        Registers::begin();
        for (std::size_t i = 0; i < rows; i += panel)
          multiply_any(
              words_ + ((row + i) * plan_.steps + s * panel) * step_words, weights, length, s == 0,
              c_.rows_from(first_ + row + i, std::min(panel, rows - i)).cols_from(j, std::min(panel, end - j)));
      }
    }
  }

  /// The weights of columns [col, col + width) and `length` steps from s on. Missing columns and rows become zeros.
  void unpack(std::size_t s, std::size_t length, std::size_t col, std::size_t width, std::uint32_t* to) const {
    for (std::size_t k = 0; k < length * step_words; ++k) {
      const std::size_t r = s * step_words + k;
      std::uint32_t* words = to + k / step_words * step + k % step_words * 16;
      for (std::size_t h = 0; h < 2; ++h) {
        const std::size_t have = r < plan_.quarter && h * 16 < width ? std::min<std::size_t>(16, width - h * 16) : 0;
        std::uint32_t* tile_row = words + h * step / 2;
        if (have == 16) {
          const std::uint8_t* p = w_.row(r) + col + h * 16;
          if (h == 0) __builtin_prefetch(p + 128, 0, 2);  // the columns of later panels
          Q::store(weights_of(p), tile_row);
        } else {
          std::uint8_t ones[16];  // weights of 0
          std::memset(ones, 0x55, sizeof ones);
          if (have != 0) std::memcpy(ones, w_.row(r) + col + h * 16, have);
          Q::store(weights_of(ones), tile_row);
        }
      }
    }
  }
  /// Codes are weights + 1, byte by byte.
  static TIGON_INLINE typename Q::lanes weights_of(const std::uint8_t* p) {
    return (typename Q::lanes)((typename Q::bytes)Q::codes(p) - 1);
  }

  /// c = (c or 0) + a w, for at most 32 x 32 sums.
  static void multiply_any(const std::uint32_t* a, const std::uint32_t* w, std::size_t length, bool starts,
                           matrix_view<std::int32_t> c) {
    if (c.rows == panel && c.cols == panel) return multiply<2, 2>(a, w, length, starts, c.data, c.row_stride);
    alignas(64) std::int32_t buffer[panel * panel];
    if (!starts)
      for (std::size_t y = 0; y < panel; ++y)
        for (std::size_t x = 0; x < panel; ++x) buffer[y * panel + x] = y < c.rows && x < c.cols ? c.row(y)[x] : 0;
    if (c.rows > 16)
      c.cols > 16 ? multiply<2, 2>(a, w, length, starts, buffer, panel)
                  : multiply<2, 1>(a, w, length, starts, buffer, panel);
    else
      c.cols > 16 ? multiply<1, 2>(a, w, length, starts, buffer, panel)
                  : multiply<1, 1>(a, w, length, starts, buffer, panel);
    for (std::size_t y = 0; y < c.rows; ++y) std::copy_n(buffer + y * panel, c.cols, c.row(y));
  }

  template <std::size_t R, std::size_t N>
  static void multiply(const std::uint32_t* a, const std::uint32_t* w, std::size_t length, bool starts, std::int32_t* c,
                       std::size_t c_stride) {
    const auto each = [](auto f) TIGON_LAMBDA {
      unroll<R>([&](auto i) TIGON_LAMBDA { unroll<N>([&](auto j) TIGON_LAMBDA { f(i, j); }); });
    };
    const std::size_t stride = c_stride * sizeof *c;
    if (starts)
      each([&](auto i, auto j) TIGON_LAMBDA { Registers::template zero<i, j>(); });
    else
      each([&](auto i, auto j)
               TIGON_LAMBDA { Registers::template load<i, j>(c + i * 16 * c_stride + j * 16, stride); });
    for (std::size_t p = 0; p < length; ++p, a += step, w += step) {
      unroll<16 * R>([&](auto i) TIGON_LAMBDA { __builtin_prefetch(a + 4 * step + i * 16, 0, 3); });
      Registers::template load_b<0>(w);
      Registers::template load_a<0>(a);
      if constexpr (N == 2) Registers::template load_b<1>(w + step / 2);
      Registers::template multiply_int8<0, 0>();
      if constexpr (R == 2) Registers::template load_a<1>(a + step / 2);
      if constexpr (N == 2) Registers::template multiply_int8<0, 1>();
      if constexpr (R == 2) Registers::template multiply_int8<1, 0>();
      if constexpr (R == 2 && N == 2) Registers::template multiply_int8<1, 1>();
    }
    each([&](auto i, auto j) TIGON_LAMBDA { Registers::template store<i, j>(c + i * 16 * c_stride + j * 16, stride); });
  }

  const tile_plan& plan_;
  matrix_view<const std::int8_t> a_;
  matrix_view<const std::uint8_t> w_;
  matrix_view<std::int32_t> c_;
  std::uint32_t *words_ = nullptr, *weights_ = nullptr;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace TIGON_ABI

/// What a kernel of op::matmul_int8_int2 by Registers has of its own.
template <class Registers>
struct matmul_by_tiles {
  static std::size_t workspace_bytes(std::size_t m, std::size_t n, std::size_t packed_rows, std::size_t workers) {
    return tile_plan(m, n, packed_rows).workspace_bytes(workers);
  }
  static void forward(matrix_view<const std::int8_t> a, matrix_view<const std::uint8_t> packed,
                      matrix_view<std::int32_t> c, context& ctx) {
    simd::expect_tile_registers("matmul_int8_int2", Registers::missing());
    const tile_plan plan(c.rows, c.cols, packed.rows);
    tile_product<Registers>(plan, a, packed, c).run(ctx);
  }
};

}  // namespace tigon::int2

#endif  // TIGON_GEMM_INT2_TILES_HPP
