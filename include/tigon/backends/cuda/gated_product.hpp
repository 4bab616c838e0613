// The products of a gated MLP that a gate follows, with the gate in the same kernel, on the tensor cores of sm_90a.
#ifndef TIGON_BACKENDS_CUDA_GATED_PRODUCT_HPP
#define TIGON_BACKENDS_CUDA_GATED_PRODUCT_HPP

#include <tigon/backends/cuda/tensor_product.hpp>
// Behind it: it says how these are compiled.
#include <tigon/ops/mlp/sum_blocks.hpp>
#include <tigon/simd/packs.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

#if defined(__CUDACC__)
/// g = alpha x wg^T + bg,  u = x wu^T + bu,  a = gate(g, u). A tile has 128 columns of g, then those of u.
template <class T, class Gate>
struct gated_sums {
  using element = T;
  using V = simd::vec<simd::cuda, float>;
  static constexpr unsigned columns = tensor_tile::cols / 2;
  static constexpr bool across = false;

  matrix_view<const T> x, wg, wu;
  tigon::detail::mlp_values<T> to;  ///< g and u may have no memory
  const float *bg, *bu;             ///< may be null
  float alpha;
  Gate gate;
  unsigned rows = static_cast<unsigned>(x.rows), cols = static_cast<unsigned>(wg.rows),
           depth = static_cast<unsigned>(x.cols);
  CUtensorMap tiles_of_x = {}, tiles_of_wg = {}, tiles_of_wu = {};

  bool describe() {
    return cols % 8 == 0 && has_tiles(x) && has_tiles(wg) && has_tiles(wu) && has_tiles(to.a) && has_tiles(to.g) &&
           has_tiles(to.u) && describe_tiles(tiles_of_x, x, tensor_tile::rows) &&
           describe_tiles(tiles_of_wg, wg, columns) && describe_tiles(tiles_of_wu, wu, columns);
  }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  TIGON_DEVICE_INLINE void copy(unsigned a, unsigned b, unsigned k, unsigned row, unsigned col,
                                tile_barrier arrived) const {
    copy_tile(tiles_of_x, k * tile_depth, row, a, arrived);
    const unsigned rank = cluster::rank();
    copy_tile_to_blocks(rank == 0 ? tiles_of_wg : tiles_of_wu, k * tile_depth, col,
                        b + rank * (tensor_tile::b_bytes / 2), arrived, 3);
  }

  TIGON_DEVICE_INLINE void use(float (&d)[128], unsigned row, unsigned col) const {
    if (alpha != 1 || bg != nullptr || bu != nullptr) scale(d, col);
    const unsigned lane = threadIdx.x % 32, r = row + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (unsigned j = 0; j < 16; j += 4) {
      const unsigned eight = col + 8 * (j + lane % 4);  // what this thread stores
#pragma unroll
      for (unsigned below = 0; below < 2; ++below) {
        std::uint32_t a[4], g[4], u[4];
#pragma unroll
        for (unsigned k = 0; k < 4; ++k) {
          const unsigned at = 4 * (j + k) + 2 * below;
          const float *of_g = d + at, *of_u = d + 64 + at;
          a[k] = rounded_pair<T>(gate.map(V(of_g[0]), V(of_u[0])).r, gate.map(V(of_g[1]), V(of_u[1])).r);
          g[k] = rounded_pair<T>(of_g[0], of_g[1]), u[k] = rounded_pair<T>(of_u[0], of_u[1]);
        }
        gather_eights(a);
        store_eight(to.a, r + 8 * below, eight, a);
        if (to.g.data == nullptr) continue;
        gather_eights(g), gather_eights(u);
        store_eight(to.g, r + 8 * below, eight, g), store_eight(to.u, r + 8 * below, eight, u);
      }
    }
  }

 private:
  TIGON_DEVICE_INLINE void scale(float (&d)[128], unsigned col) const {
#pragma unroll
    for (unsigned j = 0; j < 16; ++j)
#pragma unroll
      for (unsigned one = 0; one < 2; ++one) {
        const unsigned c = col + 8 * j + threadIdx.x % 4 * 2 + one;
        const float of_g = bg != nullptr && c < cols ? bg[c] : 0.f, of_u = bu != nullptr && c < cols ? bu[c] : 0.f;
#pragma unroll
        for (unsigned below = 0; below < 2; ++below) {
          float &g = d[4 * j + 2 * below + one], &u = d[64 + 4 * j + 2 * below + one];
          g = fmaf(alpha, g, of_g), u += of_u;
        }
      }
  }
#endif
};

/// p = alpha dy wd; g and u become the gradients of gate(g, u) for p.
template <class T, class Gate>
struct gate_gradients {
  using element = T;
  using V = simd::vec<simd::cuda, float>;
  static constexpr unsigned columns = tensor_tile::cols;
  static constexpr bool across = true;

  matrix_view<const T> dy, wd;
  tigon::detail::mlp_values<T> of;
  float alpha;
  Gate gate;
  unsigned rows = static_cast<unsigned>(dy.rows), cols = static_cast<unsigned>(wd.cols),
           depth = static_cast<unsigned>(dy.cols);
  CUtensorMap tiles_of_dy = {}, tiles_of_wd = {};

  bool describe() {
    return cols % 8 == 0 && has_tiles(dy) && has_tiles(wd) && has_tiles(of.g) && has_tiles(of.u) &&
           describe_tiles(tiles_of_dy, dy, tensor_tile::rows) && describe_tiles(tiles_of_wd, wd, tile_depth);
  }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  /// And brings a part of the rows of g and u into L2.
  TIGON_DEVICE_INLINE void copy(unsigned a, unsigned b, unsigned k, unsigned row, unsigned col,
                                tile_barrier arrived) const {
    constexpr unsigned wide = tile_depth, bytes = tile_depth * wide * 2;  // of a tile of wd: 64 x 64
    copy_tile(tiles_of_dy, k * tile_depth, row, a, arrived);
    const unsigned first = cluster::rank() * (columns / wide / 2);
#pragma unroll
    for (unsigned n = first; n < first + columns / wide / 2; ++n)
      copy_tile_to_blocks(tiles_of_wd, col + n * wide, k * tile_depth, b + n * bytes, arrived, 3);
    const unsigned steps = (depth + tile_depth - 1) / tile_depth;
    for (unsigned r = row + k; r < min(row + tensor_tile::rows, rows); r += steps) {
      const unsigned own = min(columns, cols - col) * 2;
      prefetch_to_l2(of.g.data + std::size_t{r} * of.g.row_stride + col, own);
      prefetch_to_l2(of.u.data + std::size_t{r} * of.u.row_stride + col, own);
    }
  }

  TIGON_DEVICE_INLINE void use(float (&p)[128], unsigned row, unsigned col) const {
    constexpr unsigned ahead = 3, parts = 16;
    const unsigned lane = threadIdx.x % 32, r = row + threadIdx.x / 32 % 4 * 16 + lane / 4;
    // Part n: four groups of eight columns of row r, or of row r + 8. Parts are read before those in front of them are
    // stored.
    pairs g[ahead][4], u[ahead][4];
    const auto read = [&](unsigned n) {
      const unsigned i = r + n % 2 * 8, c = col + n / 2 * 32 + lane % 4 * 2;
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        if (i < rows && c + 8 * k < cols) {
          g[n % ahead][k].load(of.g.data + std::size_t{i} * of.g.row_stride + c + 8 * k);
          u[n % ahead][k].load(of.u.data + std::size_t{i} * of.u.row_stride + c + 8 * k);
        } else {
          g[n % ahead][k].w[0] = 0, u[n % ahead][k].w[0] = 0;
        }
    };
#pragma unroll
    for (unsigned n = 0; n < ahead; ++n) read(n);
#pragma unroll
    for (unsigned n = 0; n < parts; ++n) {
      std::uint32_t dg[4], du[4];
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        const float* const of_p = p + 4 * (n / 2 * 4 + k) + 2 * (n % 2);
        const auto at = [&](int one) {
          return gate.map(V(alpha * of_p[one]), V(g[n % ahead][k].template get<float>(one)),
                          V(u[n % ahead][k].template get<float>(one)));
        };
        const auto first = at(0), second = at(1);
        dg[k] = rounded_pair<T>(first.v[0].r, second.v[0].r), du[k] = rounded_pair<T>(first.v[1].r, second.v[1].r);
      }
      if (n + ahead < parts) read(n + ahead);
      gather_eights(dg), gather_eights(du);
      const unsigned i = r + n % 2 * 8, eight = col + n / 2 * 32 + lane % 4 * 8;
      store_eight(of.g, i, eight, dg), store_eight(of.u, i, eight, du);
    }
  }

 private:
  using pairs = elements<2, T>;
#endif
};
#endif

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_GATED_PRODUCT_HPP
