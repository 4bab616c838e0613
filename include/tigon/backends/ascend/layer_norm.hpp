// LayerNorm: up to eight whole rows in a tile, or three passes over the blocks of columns of one.
#ifndef TIGON_BACKENDS_ASCEND_LAYER_NORM_HPP
#define TIGON_BACKENDS_ASCEND_LAYER_NORM_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/layer_norm.hpp>

namespace tigon {

template <>
struct kernel<op::layer_norm, backends::ascend> : ub::kernel_on_tiles<op::layer_norm> {
  /// Whole rows while they fit, wide ones at the price of fewer live tiles; more programs where rows are few or many.
  template <class Plan>
  static constexpr ub::cut forward_cut(std::size_t rows, std::size_t cols) {
    using B = typename Plan::backend;
    ub::cut by{1, std::min(cols, Plan::block), 2 * vector_cores_of<B>};
    if (cols > Plan::block) return by;
    const tiling::answer whole =
        tiling::strict(Plan::budget({cols >= 2048 ? 4u : 6u}), {{Plan::most_rows, cols}}, {{0}});
    if (whole) by.rows = whole[0][0];
    by.programs = (rows >= 8192 ? 4 : rows <= 1024 || rows >= 4096 ? 2 : 1) * vector_cores_of<B>;
    return by;
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_LAYER_NORM_HPP
