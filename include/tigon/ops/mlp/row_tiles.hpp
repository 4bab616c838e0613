// Tiles of rows, one after the other, and gradients of parameters that are summed over them.
#ifndef TIGON_OPS_MLP_ROW_TILES_HPP
#define TIGON_OPS_MLP_ROW_TILES_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/core/division.hpp>
#include <tigon/gemm/chunk_sums.hpp>

#include <algorithm>
#include <cstddef>

namespace tigon {

/// Rows [begin, begin + rows).
struct tile {
  std::size_t begin, rows;

  /// Of a matrix with all rows.
  template <class T>
  constexpr TIGON_INLINE matrix_view<T> of(matrix_view<T> m) const {
    return m.data == nullptr ? m : m.rows_from(begin, rows);
  }
};

/// Where a tile's share of N gradients goes: written to of[k], or added to it with gradient::accumulate. A gradient
/// that is not wanted has no memory here.
template <class A, std::size_t N>
struct tile_sums {
  matrix_view<A> of[N];
  gradient mode;
};

namespace detail {
inline namespace TIGON_ABI {

/// Rows of a tile, 1 or more.
constexpr std::size_t tile_rows(std::size_t rows, std::size_t tiles) {
  return std::max<std::size_t>(ceil_div(rows, std::max<std::size_t>(tiles, 1)), 1);
}

/// Calls f for every tile, in order; for an empty one where there are no rows.
template <class F>
void for_tiles(std::size_t rows, std::size_t of_tile, F f) {
  std::size_t begin = 0;
  do f(tile{begin, std::min(of_tile, rows - begin)});
  while ((begin += of_tile) < rows);
}

/// N gradients of type G that are summed over so many tiles in A: in their own memory where they have that type,
/// otherwise in the workspace, and rounded once.
template <class B, class G, class A>
struct tiled_gradients {
  static constexpr bool wide = std::same_as<G, A>;
  using sums = chunk_sums<row_backend<B>, A>;

  /// Bytes that the sums of a gradient of so many elements take.
  static constexpr std::size_t bytes(std::size_t elements, std::size_t tiles) {
    return sums::bytes(elements, tiles, wide);
  }

  /// Calls f(tile, tile_sums) for every tile.
  template <std::size_t N, class F>
  static void run(std::size_t rows, std::size_t of_tile, const matrix_view<G> (&to)[N], gradient mode, context& ctx,
                  F f) {
    workspace::frame frame(ctx.workspace());
    const bool add = mode == gradient::accumulate;
    const std::size_t tiles = std::max<std::size_t>(ceil_div(rows, of_tile), 1);
    sums all[N];
    for (std::size_t k = 0; k < N; ++k) {
      if (to[k].data == nullptr) continue;
      all[k] = sums(frame, to[k].rows * to[k].cols, tiles, wide);
      if constexpr (wide)
        all[k].begin(to[k].rows, to[k].cols, to[k], add);
      else
        all[k].begin(to[k].rows, to[k].cols, {}, add);
    }
    for_tiles(rows, of_tile, [&](tile t) {
      tile_sums<A, N> share{{}, gradient::overwrite};
      for (std::size_t k = 0; k < N; ++k) {
        if (!all[k]) continue;
        const auto place = all[k].next(ctx);
        share.of[k] = place.sum;
        if (place.more) share.mode = gradient::accumulate;  // of all alike
      }
      f(t, share);
    });
    for (std::size_t k = 0; k < N; ++k)
      if (all[k]) all[k].finish(to[k], add, ctx);
  }
};

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#endif  // TIGON_OPS_MLP_ROW_TILES_HPP
