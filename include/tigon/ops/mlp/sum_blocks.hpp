// How the gated MLP is cut into blocks of sums.
#ifndef TIGON_OPS_MLP_SUM_BLOCKS_HPP
#define TIGON_OPS_MLP_SUM_BLOCKS_HPP

#include <tigon/gemm/contract.hpp>

#include <algorithm>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Per token and intermediate column; g and u have no memory where nobody needs them.
template <class T>
struct mlp_values {
  matrix_view<T> a, g, u;

  static mlp_values of(matrix_view<T> saved) {
    const std::size_t n = saved.cols / 3;
    return {saved.cols_from(0, n), saved.cols_from(n, n), saved.cols_from(2 * n, n)};
  }
};

struct mlp_block {
  std::size_t row, col, rows, cols;

  template <class T>
  matrix_view<T> of(matrix_view<T> m) const {
    return m.rows_from(row, rows).cols_from(col, cols);
  }
  mlp_block at(std::size_t r, std::size_t c) const { return {row + r, col + c, rows, cols}; }
};

/// Parts of n, of one size, none above `most`.
constexpr std::size_t even_part(std::size_t n, std::size_t most) {
  const std::size_t parts = std::max<std::size_t>(gemm_detail::ceil_div(n, most), 1);
  const std::size_t even = gemm_detail::ceil_div(n, parts);
  return std::min(parts == 1 ? even : gemm_detail::round_up(even, 16), most);
}

/// The sums of rows x cols that exist at a time: a sixteenth of the budget, and as square as it can be, because a
/// product packs both of its operands once a block. Fixed by shape.
template <class B, class A>
constexpr mlp_block largest_block(std::size_t rows, std::size_t cols) {
  const std::size_t most = std::max<std::size_t>(B::chunk.logits_bytes / 16 / sizeof(A), 1);
  std::size_t side = 1;
  while (4 * side * side <= most) side *= 2;
  const std::size_t narrow = std::clamp<std::size_t>(std::min(rows, cols), 1, side), wide = most / narrow;
  return {0, 0, even_part(rows, rows <= cols ? narrow : wide), even_part(cols, rows <= cols ? wide : narrow)};
}

/// f(block) for all blocks of rows x cols.
template <class F>
void for_blocks(std::size_t rows, std::size_t cols, mlp_block most, F f) {
  for (std::size_t i = 0; i < rows; i += most.rows)
    for (std::size_t j = 0; j < cols; j += most.cols)
      f(mlp_block{i, j, std::min(most.rows, rows - i), std::min(most.cols, cols - j)});
}

/// Columns of op(w).
template <class W>
matrix_view<W> columns_of(matrix_view<W> w, transpose t, mlp_block at) {
  return t == transpose::no ? w.cols_from(at.col, at.cols) : w.rows_from(at.col, at.cols);
}

/// Tokens whose a exists at a time in inference.
template <class B, class T>
constexpr std::size_t inference_rows(std::size_t tokens, std::size_t intermediate) {
  const std::size_t bytes = std::max<std::size_t>(intermediate * sizeof(T), 1);
  return even_part(tokens, std::max<std::size_t>(B::chunk.logits_bytes / bytes, 1));
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_MLP_SUM_BLOCKS_HPP
