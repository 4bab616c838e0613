// The contract of attn_res and its checks.
#ifndef TIGON_OPS_ATTN_RES_CONTRACT_HPP
#define TIGON_OPS_ATTN_RES_CONTRACT_HPP

#include <tigon/backend/operator.hpp>

#include <string>

namespace tigon {

namespace op {
struct attn_res {
  static constexpr std::string_view name = "attn_res";
};
}  // namespace op

/// Matrices of one shape and row stride: each at a pointer of its own, or all at one distance in one buffer.
template <class T>
struct blocks_view {
  T* const* list = nullptr;  ///< a pointer a block; null where they are stacked
  T* data = nullptr;         ///< the first block, where they are stacked
  std::size_t blocks = 0, rows = 0, cols = 0, row_stride = 0, block_stride = 0;

  /// `list` is read by every call and is not copied.
  static constexpr TIGON_INLINE blocks_view of_pointers(std::type_identity_t<std::span<T* const>> list,
                                                        std::size_t rows, std::size_t cols, std::size_t row_stride) {
    return {list.data(), nullptr, list.size(), rows, cols, row_stride, 0};
  }
  /// [blocks, rows, cols] without gaps.
  static constexpr TIGON_INLINE blocks_view stacked(T* data, std::size_t blocks, std::size_t rows, std::size_t cols) {
    return {nullptr, data, blocks, rows, cols, cols, rows * cols};
  }

  constexpr TIGON_INLINE operator blocks_view<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {list, data, blocks, rows, cols, row_stride, block_stride};
  }

  constexpr TIGON_INLINE matrix_view<T> operator[](std::size_t n) const {
    return {list != nullptr ? list[n] : data + n * block_stride, rows, cols, row_stride};
  }
};

template <class T>
using in_blocks = std::type_identity_t<blocks_view<const T>>;

/// Every token's weighted mean of N blocks; the weights come from a learned query and the normalised blocks.
///
///   rstd[i,n]  = 1 / sqrt(mean_j v[n,i,j]^2 + eps)
///   score[i,n] = sum_j w_query[j] * w_norm[j] * v[n,i,j] * rstd[i,n],   alpha[i,:] = softmax of score[i,:]
///   y[i,j]     = sum_n alpha[i,n] * v[n,i,j]
///   da[i,n]    = sum_j dy[i,j] v[n,i,j],   ds = alpha * (da - sum_n alpha da),   u = w_query * w_norm
///   dv[n]      = alpha * dy + ds * rstd * (u - rstd * score / cols * v)
///   dw_query   = p * w_norm,   dw_norm = p * w_query,   p[j] = sum_i,n ds * rstd * v[n,i,j]
///
/// Formula    docs/formulas/attn_res.md; Kimi Team, "Attention Residuals", 2026.
/// Shapes     v, dv N blocks [rows, cols]; y, dy [rows, cols]; w_query, w_norm, dw_query, dw_norm [cols]; alpha and
///            rstd [rows * N], a row of N numbers a token. N and cols at least 1, rows may be 0.
/// Types      v, y, dy, dv one of f32, bf16, f16, f64; w_query and w_norm of one type, any of them (f64 only with
///            f64).
/// Precision  f32 (f64 for f64), f64 for scores and what they are made of; y, dv, dw_query and dw_norm are rounded
///            once. round_key also rounds what the query meets; backward takes that rounding for the identity.
/// Writes     y, alpha, rstd, dv; dw_query and dw_norm are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: each block of dv may be the same block of v. forward: none. Otherwise any layout in which no
///            element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative or NaN), workspace; before the first write.
/// Range      forward: blocks of any size that their type holds, where rstd is a number of its own; backward: where
///            sums of dy v are finite. NaN or an infinity makes its token of y and dv NaN, and dw_query and dw_norm.
/// Max error  f32 4e-6, bf16 4e-3 of |reference| + its root mean square; gradients 2e-5, 8e-3
///            (tests/ops/attn_res_test.cpp).
struct attn_res_options {
  double eps = 1e-6;       ///< inside the square root
  bool round_key = false;  ///< v * rstd and its product with w_norm are rounded to the type of the weights
  gradient dparams = gradient::overwrite;
};

namespace detail {
inline namespace TIGON_ABI {
/// N matrices of that shape.
template <class T>
void expect_blocks(const expects& expect, std::string_view name, blocks_view<T> v, std::size_t blocks, std::size_t rows,
                   std::size_t cols) {
  expect.size(std::string("blocks of ") + std::string(name), v.blocks, blocks);
  for (std::size_t n = 0; n < v.blocks; ++n) expect.matrix(name, v[n], rows, cols);
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_ATTN_RES_CONTRACT_HPP
