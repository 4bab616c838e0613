// Rows of logits on a GPU: hundreds of thousands of columns, of which a row is reduced, and mapped to its gradient.
//
//   part     the columns of a row that one block has: all of them, or those of one block of a cluster
//   staged   a part in shared memory, read from the device's memory once: the next row comes while this one is mapped
//
// Otherwise every pass reads the row, from L2 all but once.
#ifndef TIGON_BACKENDS_CUDA_LOGITS_HPP
#define TIGON_BACKENDS_CUDA_LOGITS_HPP

#include <tigon/backends/cuda/limits.hpp>
#include <tigon/backends/cuda/staged.hpp>
// Behind them: they say how these are compiled.
#include <tigon/core/division.hpp>
#include <tigon/core/views.hpp>

#include <algorithm>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// N numbers from N elements, for each of which f(u, number) is called.
template <class A, int N, class T, class F>
TIGON_DEVICE_INLINE void numbers_of(const elements<N, T>& e, F f) {
#pragma unroll
  for (int u = 0; u < N; ++u) f(u, e.template get<A>(u));
}

/// A row that every pass reads. A block has all of it.
template <int N, class T>
struct row_in_memory {
  static constexpr int at_once = 4;
  const T* row;
  unsigned cols;

  static TIGON_DEVICE_INLINE bool first() { return threadIdx.x == 0; }
  /// Whether this thread has the column.
  static TIGON_DEVICE_INLINE bool has(unsigned column) { return column / N % blockDim.x == threadIdx.x; }
  /// Before a map that nothing is reduced before.
  template <class D>
  TIGON_DEVICE_INLINE void arrive() const {}
  template <class Monoid, int K, class A>
  TIGON_DEVICE_INLINE void reduce(A (&v)[K]) const {
    group<0>::reduce<Monoid>(v);
  }
  template <class D>
  TIGON_DEVICE_INLINE void clear(D* to) const {
    clear_columns<N>(to, 0, cols);
  }
  /// f(column, N elements)
  template <class F>
  TIGON_DEVICE_INLINE void each(F f) const {
    const unsigned step = blockDim.x * N;
    unsigned j = threadIdx.x * N;
    for (; j + (at_once - 1) * step < cols; j += at_once * step) {
      elements<N, T> e[at_once];
#pragma unroll
      for (int u = 0; u < at_once; ++u) e[u].load(row + j + static_cast<unsigned>(u) * step);
#pragma unroll
      for (int u = 0; u < at_once; ++u) f(j + static_cast<unsigned>(u) * step, e[u]);
    }
    for (; j < cols; j += step) {
      elements<N, T> e;
      e.load(row + j);
      f(j, e);
    }
  }
  /// to[column] = f(column, N elements), N numbers at a time. Elements may be narrower than those of the row, and lie
  /// where it begins: so all threads read before any writes.
  template <class D, class F>
  TIGON_DEVICE_INLINE void map(D* to, F f) {
    const unsigned step = blockDim.x * N;
    for (unsigned begin = 0; begin < cols; begin += step) {
      const unsigned j = begin + threadIdx.x * N;
      elements<N, T> e;
      if (j < cols) e.load(row + j);
      if constexpr (sizeof(D) < sizeof(T)) __syncthreads();
      if (j < cols) f(j, e).store(to + j);
    }
  }
};

/// How a loss goes through a row: several times; once, to reduce it; or to map it by what is known before.
enum class row_passes { several, reduces, maps };

/// Columns of a row that a block maps. Narrower elements do not lie where the row does.
template <int N, class T>
struct tile_of_row {
  static constexpr int at_once = 4;
  static constexpr unsigned threads = 256, columns = threads * at_once * N;
  const T* row;
  unsigned begin, cols;

  TIGON_DEVICE_INLINE bool has(unsigned column) const {
    return column - begin < columns && (column - begin) / N % threads == threadIdx.x;
  }
  template <class D>
  TIGON_DEVICE_INLINE void arrive() const {}
  template <class D>
  TIGON_DEVICE_INLINE void clear(D* to) const {
    clear_columns<N>(to, begin, begin + columns < cols ? begin + columns : cols);
  }
  template <class D, class F>
  TIGON_DEVICE_INLINE void map(D* to, F f) {
    elements<N, T> e[at_once];
    const auto column = [&](int u) { return begin + (static_cast<unsigned>(u) * threads + threadIdx.x) * N; };
#pragma unroll
    for (int u = 0; u < at_once; ++u)
      if (column(u) < cols) e[u].load(row + column(u));
#pragma unroll
    for (int u = 0; u < at_once; ++u)
      if (column(u) < cols) f(column(u), e[u]).store(to + column(u));
  }
};
/// Rows by tiles, so many a row.
template <int N, class Loss>
__global__ void __launch_bounds__(tile_of_row<N, typename Loss::element>::threads)
    tiles_of_logits(const __grid_constant__ Loss loss, unsigned tiles) {
  using tile = tile_of_row<N, typename Loss::element>;
  const std::size_t i = blockIdx.x / tiles;
  tile part{loss.row_of(i), blockIdx.x % tiles * tile::columns, loss.cols};
  loss.row(part, i, loss.label_of(loss.target_of(i), i), loss.shared());
}

/// Rows by blocks that read them pass by pass. Loss: row(part, i) does everything with row i.
template <int N, class Loss>
__global__ void __launch_bounds__(1024) rows_of_logits(const __grid_constant__ Loss loss) {
  const std::size_t i = blockIdx.x;
  row_in_memory<N, typename Loss::element> part{loss.row_of(i), loss.cols};
  loss.row(part, i, loss.label_of(loss.target_of(i), i), loss.shared());
}

#if defined(__CUDACC__)
/// Threads of a block with a staged part, and blocks that a multiprocessor has at a time. An H200 takes 1.309 ms for
/// cross entropy of 8192 x 128256 bf16 and its gradient so, with 512 threads of two blocks 1.324, with 1024 of one
/// 1.436.
inline constexpr unsigned staged_threads = 384, staged_blocks = 3;
/// Bytes of a part, so that as many fit into a multiprocessor of 227 KiB.
inline constexpr std::size_t staged_bytes = std::size_t{73} << 10;

/// Rows by clusters, one after the other, each `per_block` columns of it a block.
template <int N, class Loss>
__global__ void __launch_bounds__(staged_threads, staged_blocks)
    staged_rows_of_logits(const __grid_constant__ Loss loss, std::size_t rows, unsigned per_block) {
  using T = typename Loss::element;
  extern __shared__ uint4 staged_rows[];
  __shared__ cluster::mailbox box;
  cluster blocks(box);
  const auto inside = [&](unsigned column) { return column < loss.cols ? column : loss.cols; };
  const unsigned begin = cluster::rank() * per_block;
  staged_part<N, T> part(shared_address(staged_rows), blocks, inside(begin), inside(begin + per_block));
  const std::size_t step = gridDim.x / cluster::size();
  std::size_t i = blockIdx.x / cluster::size();
  // Labels are read two rows ahead, and their logits one.
  const auto inside_rows = [&](std::size_t of) { return of < rows ? of : rows - 1; };
  const auto shared = loss.shared();
  auto label = loss.label_of(loss.target_of(inside_rows(i)), inside_rows(i));
  auto target = loss.target_of(inside_rows(i + step));
  if (i < rows && label.counts) part.next = loss.row_of(i);
  part.bring_next();
  for (; i < rows; i += step) {
    const std::size_t after = i + step;
    const auto next = loss.label_of(target, inside_rows(after));
    target = loss.target_of(inside_rows(after + step));
    part.next = after < rows && next.counts ? loss.row_of(after) : nullptr;
    loss.row(part, i, label, shared);
    part.bring_next();
    label = next;
  }
  cluster::sync();  // others may send to this block until here
}

/// Most bytes of a part on this GPU.
inline std::size_t bytes_of_part() {
  constexpr std::size_t others = 2048;
  return std::min(static_cast<std::size_t>(limits().shared_bytes) - others, staged_bytes);
}
/// Blocks of a cluster for rows of so many bytes; 0: they are not staged.
inline unsigned blocks_of_row(std::size_t bytes) {
  const std::size_t most = limits().capability >= 9 ? 8 : 1, wanted = tigon::detail::ceil_div(bytes, bytes_of_part());
  return bytes < (std::size_t{8} << 10) || wanted > most ? 0 : static_cast<unsigned>(wanted);
}

/// Clusters of so many blocks that the GPU has at a time: with more, the last ones would come late. Asked once by each
/// thread for a kernel that takes N columns at a time, and may have so many bytes of shared memory.
template <int N, class Kernel>
std::size_t clusters_at_once(Kernel kernel, cudaLaunchConfig_t config, unsigned blocks, std::size_t shared_bytes) {
  constexpr int devices = 64;
  thread_local int at_once[devices][cluster::most_blocks + 1];
  int device = 0;
  expect_success(cudaGetDevice(&device), "the device");
  int& clusters = at_once[device % devices][blocks];
  if (clusters == 0) {
    if (shared_bytes != 0)
      expect_success(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
          "a kernel's shared memory");
    if (blocks > 1) {
      expect_success(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "a kernel's clusters");
    } else {
      expect_success(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                         &clusters, kernel, static_cast<int>(config.blockDim.x), config.dynamicSmemBytes),
                     "a kernel's blocks");
      clusters *= limits().multiprocessors;
    }
  }
  return static_cast<std::size_t>(clusters);
}

template <int N, class Loss>
void launch_staged(context& ctx, const Loss& loss, std::size_t rows, unsigned blocks) {
  using T = typename Loss::element;
  const auto kernel = staged_rows_of_logits<N, Loss>;
  const auto per_block = static_cast<unsigned>(tigon::detail::ceil_div(loss.cols, blocks * N) * N);
  const std::size_t bytes = per_block * sizeof(T);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks), config.blockDim = staged_threads;
  config.dynamicSmemBytes = bytes;
  cudaLaunchAttribute of_cluster = cluster_of(blocks);
  if (blocks > 1) config.attrs = &of_cluster, config.numAttrs = 1;
  const std::size_t clusters = clusters_at_once<N>(kernel, config, blocks, bytes_of_part());
  config.gridDim = dim3(static_cast<unsigned>(std::min(rows, clusters)) * blocks);
  launch(ctx, kernel, config, loss, rows, per_block);
}
#endif

/// Runs loss.row for all rows.
template <class Loss>
void each_row_of_logits(context& ctx, const Loss& loss, std::size_t rows) {
  using T = typename Loss::element;
  constexpr int N = static_cast<int>(access_bytes / sizeof(T));
  if (rows == 0) return;
  const bool wide = loss.cols % N == 0 && loss.template begins_accesses<N>();
  if constexpr (Loss::passes == row_passes::maps) {
    const auto run_tiles = [&](auto n) {
      using tile = tile_of_row<n.value, T>;
      const std::size_t tiles = tigon::detail::ceil_div(std::size_t{loss.cols}, std::size_t{tile::columns});
      launch(ctx, tiles_of_logits<n.value, Loss>, dim3(blocks(workspace::product(rows, tiles))), dim3(tile::threads),
             loss, static_cast<unsigned>(tiles));
    };
    wide ? run_tiles(std::integral_constant<int, N>()) : run_tiles(std::integral_constant<int, 1>());
    return;
  } else {
#if defined(__CUDACC__)
    if constexpr (Loss::passes == row_passes::several)
      if (const unsigned blocks = blocks_of_row(loss.cols * sizeof(T)); wide && blocks != 0)
        return launch_staged<N>(ctx, loss, rows, blocks);
#endif
    const auto run = [&](auto n) {
      const std::size_t vectors = tigon::detail::ceil_div(std::size_t{loss.cols}, std::size_t{n});
      // Of rows that are read once a multiprocessor has two or more, so that one begins while another ends.
      constexpr std::size_t most = Loss::passes == row_passes::reduces ? 512 : 1024;
      const std::size_t threads = std::clamp<std::size_t>(tigon::detail::round_up(vectors / 2, warp), warp, most);
      launch(ctx, rows_of_logits<n.value, Loss>, dim3(static_cast<unsigned>(rows)),
             dim3(static_cast<unsigned>(threads)), loss);
    };
    wide ? run(std::integral_constant<int, N>()) : run(std::integral_constant<int, 1>());
  }
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_LOGITS_HPP
