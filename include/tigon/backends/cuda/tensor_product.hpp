// A product on the tensor cores of sm_90a whose sums stay in registers until the operator that needs them has used
// them: a tile of 128 rows and 256 columns at a time.
#ifndef TIGON_BACKENDS_CUDA_TENSOR_PRODUCT_HPP
#define TIGON_BACKENDS_CUDA_TENSOR_PRODUCT_HPP

#include <tigon/backends/cuda/limits.hpp>
#include <tigon/backends/cuda/tensor_cores.hpp>
// Behind them: they say how these are compiled.
#include <tigon/core/division.hpp>
#include <tigon/core/element.hpp>

#include <algorithm>
#include <cstdint>

namespace tigon::gpu {
inline namespace TIGON_ABI {

#if defined(__CUDACC__)
/// How a block computes.
struct tensor_tile {
  static constexpr unsigned rows = 128, cols = 256;  ///< of sums
  static constexpr unsigned groups = 2;  ///< of four warps, each with half of the rows; the warps of one more copy
  static constexpr unsigned blocks = 2;  ///< of a cluster, below each other: each copies half of b for both
  static constexpr unsigned stages = 4;  ///< tiles of operands that are on their way, or in use
  static constexpr unsigned threads = 128 * (groups + 1), rows_of_group = rows / groups;
  static constexpr unsigned a_bytes = rows * tile_depth * 2, b_bytes = cols * tile_depth * 2,
                            stage_bytes = a_bytes + b_bytes;
  static constexpr unsigned shared_bytes = stages * stage_bytes + 1024;  ///< tiles begin at multiples of 1024
  static constexpr unsigned tall = 8;  ///< tiles of a cluster below each other before the next columns
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// The threads whose numbers lie in one row are a quad: each has two columns of four groups of eight, and has all eight
/// columns of one group afterwards.
TIGON_DEVICE_INLINE void gather_eights(std::uint32_t (&p)[4]) {
  const auto swap_with = [&](unsigned by, std::uint32_t& low, std::uint32_t& high) {
    const bool upper = threadIdx.x & by;
    const std::uint32_t other = __shfl_xor_sync(~0u, upper ? low : high, by);
    (upper ? low : high) = other;
  };
  swap_with(1, p[0], p[1]), swap_with(1, p[2], p[3]);
  swap_with(2, p[0], p[2]), swap_with(2, p[1], p[3]);
}
/// Eight elements of a row, if it has them: extents of columns are multiples of 8.
template <class T>
TIGON_DEVICE_INLINE void store_eight(matrix_view<T> to, unsigned row, unsigned col, const std::uint32_t (&p)[4]) {
  if (row < to.rows && col < to.cols)
    *reinterpret_cast<uint4*>(to.data + std::size_t{row} * to.row_stride + col) = {p[0], p[1], p[2], p[3]};
}
template <class T>
TIGON_DEVICE_INLINE std::uint32_t rounded_pair(float first, float second) {
  elements<2, T> both;
  both.set_all({first, second});
  return both.w[0];
}
#endif

/// A warp copies tiles; two groups of four warps multiply them, and use their sums, while the next ones arrive. A block
/// goes from tile to tile. In code for other GPUs the kernel does nothing, and has no shared memory.
///
///   Work::element                   the type of a and b, of 16 bits
///   Work::columns                   columns of the result that the columns of a tile stand for
///   Work::across                    whether rows of b in memory are its depth (multiply_tiles)
///   work.rows, cols, depth          of the result and of the product
///   work.copy(a, b, k, row, col, arrived)   this block's share of step k of the tile at row and col
///   work.use(sums, row, col)        by the threads of a group: 64 rows from `row`, as multiply_tiles has them
template <class Work>
__global__ void __launch_bounds__(tensor_tile::threads, 1) tensor_product(const __grid_constant__ Work work) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using tile = tensor_tile;
  extern __shared__ uint4 tiles_of_products[];
  __shared__ std::uint64_t full_at[tile::stages], empty_at[tile::stages];
  const auto full = [&](unsigned stage) { return tile_barrier{shared_address(&full_at[stage])}; };
  const auto empty = [&](unsigned stage) { return tile_barrier{shared_address(&empty_at[stage])}; };
  if (threadIdx.x == 0) {
    for (unsigned stage = 0; stage < tile::stages; ++stage)
      full(stage).make(1), empty(stage).make(tile::groups * tile::blocks);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster::sync();

  constexpr unsigned rows_of_cluster = tile::blocks * tile::rows;
  const unsigned down = (work.rows + rows_of_cluster - 1) / rows_of_cluster,
                 across = (work.cols + Work::columns - 1) / Work::columns, tiles = down * across,
                 steps = (work.depth + tile_depth - 1) / tile_depth, clusters = gridDim.x / tile::blocks;
  const unsigned memory = (shared_address(tiles_of_products) + 1023) / 1024 * 1024;
  // A few tiles below each other, then the next columns: what is computed at a time shares operands in L2.
  const auto row_of = [=](unsigned t) {
    const unsigned first = t / (tile::tall * across) * tile::tall;
    return ((first + (t - first * across) % min(tile::tall, down - first)) * tile::blocks + cluster::rank()) *
           tile::rows;
  };
  const auto col_of = [=](unsigned t) {
    const unsigned first = t / (tile::tall * across) * tile::tall;
    return (t - first * across) / min(tile::tall, down - first) * Work::columns;
  };
  // Stages are used in turn; `used` is how many times before.
  unsigned used = 0;
  if (threadIdx.x / 128 == tile::groups) {
    give_back_registers<40>();
    if (threadIdx.x == tile::groups * 128)
      for (unsigned t = blockIdx.x / tile::blocks; t < tiles; t += clusters) {
        const unsigned row = row_of(t), col = col_of(t);
        for (unsigned k = 0; k < steps; ++k, ++used) {
          const unsigned stage = used % tile::stages, turn = used / tile::stages;
          if (turn != 0) empty(stage).wait((turn - 1) % 2);
          full(stage).arrive_and_expect(tile::stage_bytes);
          const unsigned a = memory + stage * tile::stage_bytes;
          work.copy(a, a + tile::a_bytes, k, row, col, full(stage));
        }
      }
    __syncwarp();
  } else {
    take_registers<232>();
    const unsigned group = threadIdx.x / 128;
    const auto release = [&](unsigned stage) {
      if (threadIdx.x % 128 < tile::blocks) empty(stage).arrive_in(threadIdx.x % 128);
    };
    for (unsigned t = blockIdx.x / tile::blocks; t < tiles; t += clusters) {
      float sums[128];
      for (unsigned k = 0; k < steps; ++k, ++used) {
        const unsigned stage = used % tile::stages, at = memory + stage * tile::stage_bytes;
        full(stage).wait(used / tile::stages % 2);
        const std::uint64_t a = tile_at(at + group * (tile::a_bytes / tile::groups)),
                            b = tile_at(at + tile::a_bytes, Work::across ? tile_depth * 128 : 16);
        begin_products();
#pragma unroll
        for (unsigned part = 0; part < tile_depth / 16; ++part)
          multiply_tiles<typename Work::element, Work::across>(sums, a + 2 * part, b + (Work::across ? 128 : 2) * part,
                                                               k != 0 || part != 0 ? 1u : 0u);
        end_products();
        wait_for_products<1>();
        if (k != 0) release((used - 1) % tile::stages);
      }
      wait_for_products<0>();
      release((used - 1) % tile::stages);
      work.use(sums, row_of(t) + group * tile::rows_of_group, col_of(t));
    }
  }
  cluster::sync();  // the other block copies to this one, and arrives here, until now
#endif
}

/// Whether the copy unit takes a matrix, and a thread stores eight of its elements at a time.
template <class T>
bool has_tiles(matrix_view<T> m) {
  return reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && m.row_stride % 8 == 0 && m.row_stride >= m.cols &&
         std::max(m.rows, m.cols) < std::size_t{1} << 30;
}

/// Clusters that the GPU has at a time; none where the kernel was compiled for another one. Asked once by each thread.
template <class Work>
unsigned clusters_of_tiles(const cudaLaunchConfig_t& config) {
  constexpr int devices = 64;
  thread_local int at_once[devices];  // and 1
  int device = 0;
  expect_success(cudaGetDevice(&device), "the device");
  int& clusters = at_once[device % devices];
  if (clusters == 0) {
    const auto kernel = tensor_product<Work>;
    cudaFuncAttributes compiled{};
    int found = 0;
    expect_success(cudaFuncGetAttributes(&compiled, kernel), "a kernel's attributes");
    if (compiled.sharedSizeBytes != 0) {
      expect_success(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(config.dynamicSmemBytes)),
                     "a kernel's shared memory");
      expect_success(cudaOccupancyMaxActiveClusters(&found, kernel, &config), "a kernel's clusters");
    }
    clusters = found + 1;
  }
  return static_cast<unsigned>(clusters - 1);
}

/// Queues a product, if this GPU has such kernels, tiles for half of it at least, and work.describe() finds operands as
/// they must be; otherwise false.
template <class Work>
bool queue_tensor_product(context& ctx, Work& work) {
  using tile = tensor_tile;
  if (limits().capability != 9 || work.depth == 0) return false;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(tile::blocks), config.blockDim = tile::threads;
  config.dynamicSmemBytes = tile::shared_bytes;
  cudaLaunchAttribute of_cluster = cluster_of(tile::blocks);
  config.attrs = &of_cluster, config.numAttrs = 1;
  const unsigned at_once = clusters_of_tiles<Work>(config);
  const std::size_t tiles = tigon::detail::ceil_div(std::size_t{work.rows}, std::size_t{tile::blocks * tile::rows}) *
                            tigon::detail::ceil_div(std::size_t{work.cols}, std::size_t{Work::columns});
  if (at_once == 0 || 2 * tiles < at_once || tiles >= std::size_t{1} << 31 || !work.describe()) return false;
  config.gridDim = dim3(static_cast<unsigned>(std::min<std::size_t>(tiles, at_once)) * tile::blocks);
  launch(ctx, tensor_product<Work>, config, work);
  return true;
}
#endif

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_TENSOR_PRODUCT_HPP
