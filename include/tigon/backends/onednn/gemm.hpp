// op::gemm of two bf16 matrices by oneDNN: tiles of c fixed by the shape alone, each one call on the thread of its
// task. Every other combination of types is the parent's, and so are all where oneDNN has no bf16 instruction to use.
#ifndef TIGON_BACKENDS_ONEDNN_GEMM_HPP
#define TIGON_BACKENDS_ONEDNN_GEMM_HPP

#include <tigon/backends/highway/gemm.hpp>
#include <tigon/backends/onednn/backend.hpp>
#include <tigon/backends/onednn/library.hpp>

#include <vector>

namespace tigon {

template <>
struct kernel<op::gemm, backends::onednn> : detail::gemm_kernel {
  using base = kernel<op::gemm, backends::highway>;
  template <element TA, element TB>
  static constexpr bool covers = std::same_as<TA, bfloat16> && std::same_as<TB, bfloat16>;
  template <element TA, element TB>
  static constexpr std::string_view layout =
      covers<TA, TB> ? std::string_view("rows of bf16") : base::template layout<TA, TB>;

  template <backend B, element TA, element TB>
  static std::size_t packed_bytes(std::size_t k, std::size_t n) {
    return ours<TA, TB>() ? workspace::product(k, n, sizeof(TB)) : base::template packed_bytes<B, TA, TB>(k, n);
  }

  /// Packed means without gaps, in storage order: oneDNN packs again for each product.
  template <backend B, element TA, element TB>
  static void pack(matrix_view<const TB> b, transpose t, std::byte* to, context& ctx) {
    if (!ours<TA, TB>()) return base::template pack<B, TA, TB>(b, t, to, ctx);
    ctx.executor().run(gemm_detail::ceil_div(b.rows, 64), [&](std::size_t task, std::size_t) {
      const std::size_t first = task * 64, end = std::min(b.rows, first + 64);
      for (std::size_t i = first; i < end; ++i) std::copy_n(b.row(i), b.cols, reinterpret_cast<TB*>(to) + i * b.cols);
    });
  }

  template <backend B, element TA, element TB, element TC>
  static std::size_t workspace_bytes(std::size_t m, std::size_t n, std::size_t k, std::size_t workers, bool packed_b) {
    if (!ours<TA, TB>()) return base::template workspace_bytes<B, TA, TB, TC>(m, n, k, workers, packed_b);
    const tile t(m, n, k);
    return workspace::bytes_for<float>(workspace::padded<float>(t.rows * t.cols), workers) +
           workspace::bytes_for<bfloat16>(2, k);
  }

  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    if constexpr (covers<TA, TB>)
      if (ours<TA, TB>()) {
        std::vector<bfloat16> of_a, of_b;
        a = with_rows(a, of_a);
        if (b.packed == nullptr) b.view = with_rows(b.view, of_b);
        return by_tiles<B>(a, b, bias, c, epilogue, opt, ctx);
      }
    base::template forward<B, TA, TB, TC>(a, b, bias, c, epilogue, opt, ctx);
  }

 private:
  template <element TA, element TB>
  static bool ours() {
    if constexpr (covers<TA, TB>)
      return one_dnn::products::here().usable();
    else
      return false;
  }

  /// Large enough that oneDNN packs little for what it multiplies; at least eight, while they are worth a task each.
  ///
  /// Measured on an AMD EPYC (family 26, model 2; AVX-512 with bf16), one thread, 2026-11-21, GFLOP/s with tiles of
  /// 128 x 512, 256 x 512, 512 x 512 and 1024 x 1024: 512 x 32000 x 2048 nt 379, 419, 436, 454; 512 x 2048 x 32000 nn
  /// 357, 411, 436, 425; 32000 x 2048 x 512 tn 393, 428, 422, 443.
  struct tile {
    std::size_t rows, cols;

    tile(std::size_t m, std::size_t n, std::size_t k)
        : rows(std::min<std::size_t>(m, 512)), cols(std::min<std::size_t>(n, 512)) {
      constexpr std::size_t worth = std::size_t{1} << 24;  // products of a task
      while (count(m, n) < 8 && rows * cols / 2 * k >= worth && std::max(rows, cols) > 64) {
        std::size_t& longer = rows > cols ? rows : cols;
        longer = gemm_detail::round_up(longer / 2, 16);
      }
    }
    std::size_t count(std::size_t m, std::size_t n) const {
      return rows == 0 || cols == 0 ? 0 : gemm_detail::ceil_div(m, rows) * gemm_detail::ceil_div(n, cols);
    }
  };

  /// oneDNN takes no stride of 0: rows that are all one are copied into memory of their own, as oneDNN packs into some.
  static matrix_view<const bfloat16> with_rows(matrix_view<const bfloat16> x, std::vector<bfloat16>& memory) {
    if (x.rows <= 1 || x.row_stride != 0 || x.cols == 0) return x;
    for (std::size_t i = 0; i < x.rows; ++i) memory.insert(memory.end(), x.data, x.data + x.cols);
    return {memory.data(), x.rows, x.cols};
  }

  /// Rows [row, row + rows) by columns [col, col + cols) of op(x).
  static one_dnn::operand part_of(matrix_view<const bfloat16> x, transpose t, std::size_t row, std::size_t rows,
                                  std::size_t col, std::size_t cols) {
    return {t == transpose::no ? x.row(row) + col : x.row(col) + row, rows, cols, x.row_stride, t};
  }

  template <backend B, element TC, class Epilogue>
  static void by_tiles(matrix_view<const bfloat16> a, gemm_operand<bfloat16> b, in_vector<TC> bias, matrix_view<TC> c,
                       const Epilogue& epilogue, gemm_options opt, context& ctx) {
    using V = simd::vec<typename B::engine, float>;
    const std::size_t m = c.rows, n = c.cols, k = gemm_detail::cols_of(a, opt.a);
    if (m == 0 || n == 0) return;
    const tile t(std::max(m, opt.cut_as.rows), n, std::max(k, opt.cut_as.depth));
    const std::size_t across = gemm_detail::ceil_div(n, t.cols);
    if (b.packed != nullptr) {
      const auto* rows = reinterpret_cast<const bfloat16*>(b.packed);
      b.view =
          opt.b == transpose::no ? matrix_view<const bfloat16>(rows, k, n) : matrix_view<const bfloat16>(rows, n, k);
    }
    const gemm_detail::scaling<float> scale{static_cast<float>(opt.alpha), static_cast<float>(opt.beta)};
    // Where nothing is left to do with the sums, c takes them itself.
    const bool direct_c =
        std::same_as<TC, float> && k != 0 && scale.alpha == 1 && (scale.beta == 0 || scale.beta == 1) && !bias;
    workspace::frame frame(ctx.workspace());
    // A row alone would have other bits than beside another: the last one of several tiles gets one of zeros.
    matrix_view<const bfloat16> pair;
    if (opt.cut_as.rows > 1 && opt.a == transpose::no && t.rows > 1 && m % t.rows == 1) {
      bfloat16* copy = frame.template take<bfloat16>(2 * k);
      std::copy_n(a.row(m - 1), k, copy);
      std::fill_n(copy + k, k, bfloat16(0.0f));
      pair = {copy, 2, k};
    }
    const bool direct = direct_c && pair.data == nullptr;
    const std::size_t step = direct ? 0 : workspace::padded<float>(t.rows * t.cols);
    float* memory = direct ? nullptr : frame.template take<float>(step * ctx.executor().workers());

    ctx.executor().run(t.count(m, n), [&](std::size_t task, std::size_t worker) {
      const one_dnn::on_this_thread alone;
      const std::size_t i = task / across * t.rows, j = task % across * t.cols;
      const std::size_t rows = std::min(t.rows, m - i), cols = std::min(t.cols, n - j);
      const auto left =
          rows == 1 && pair.data != nullptr ? part_of(pair, opt.a, 0, 2, 0, k) : part_of(a, opt.a, i, rows, 0, k);
      const auto right = part_of(b.view, opt.b, 0, k, j, cols);
      const auto& products = one_dnn::products::here();
      if (direct) {
        if constexpr (std::same_as<TC, float>) products.run(left, right, c.row(i) + j, c.row_stride, scale.beta == 1);
      } else {
        float* sums = memory + worker * step;
        if (k == 0)
          std::fill_n(sums, rows * cols, 0.0f);
        else
          products.run(left, right, sums, cols, false);
        for (std::size_t y = 0; y < rows; ++y)
          gemm_detail::finish<V>(sums + y * cols, cols, scale, bias ? bias.data + j : nullptr, c.row(i + y) + j);
      }
      epilogue(c.rows_from(i, rows).cols_from(j, cols), i, j, worker);
    });
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ONEDNN_GEMM_HPP
