// The tag, options and operands of attn_res.
#ifndef TIGON_OPS_DEPTH_ATTN_RES_OPTIONS_HPP
#define TIGON_OPS_DEPTH_ATTN_RES_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/rows/row.hpp>

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

/// The contract is in ops/attn_res.hpp.
struct attn_res_options {
  double eps = 1e-6;       ///< inside the square root
  bool round_key = false;  ///< v * rstd and its product with w_norm are rounded to the type of the weights
  gradient dparams = gradient::overwrite;
};

/// What attn_res_forward left: {alpha, rstd}, or {.alpha = alpha, .rstd = rstd}.
template <class Numbers>
struct attn_res_saved {
  Numbers alpha, rstd;
};

/// attn_res_gradients{dv, dw_query, dw_norm}, or with the names of the fields; the last two may be `absent`.
template <class T, class DQ, class DN>
struct attn_res_gradients {
  blocks_view<T> dv;
  DQ dw_query;
  DN dw_norm;
};
template <class T, class DQ, class DN>
attn_res_gradients(blocks_view<T>, DQ&&, DN&&) -> attn_res_gradients<T, DQ, DN>;

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_ATTN_RES_OPTIONS_HPP
