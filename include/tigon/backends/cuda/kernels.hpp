// The kernels that run row programs on a GPU.
#ifndef TIGON_BACKENDS_CUDA_KERNELS_HPP
#define TIGON_BACKENDS_CUDA_KERNELS_HPP

#include <tigon/backends/cuda/row.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// A row for each group: reduced, and mapped where the program has a map.
template <class Shape, int N, class Call>
__global__ void __launch_bounds__(Shape::most_threads)
    reduce_and_map(const Call call, std::size_t rows, unsigned cols) {
  using thread = row_thread<Shape, N, Call>;
  using group = typename thread::group;
  typename thread::columns kept[thread::vectors];
  const std::size_t at = blockIdx.x * std::size_t{group::count()} + group::index();
  const bool here = at < rows;
  const thread row{call, here ? at : rows - 1, here ? cols : 0, kept, here};
  if constexpr (!Call::maps)
    if (!call.kept.keeps(row.i)) return row.clear();
  row.load();
  if constexpr (!Call::maps && Call::direct != 0) {
    const rows::direct_and_reduce both(call.bound.p, call.bound.template reduction<Call::reduced>(row.i));
    const auto put = [&](std::size_t j, const auto& results) { put_all(call.y, row.i, j, results); };
    (void)call.bound.value_after(row, row.template joined<add, Call::direct>(both, put), row.reads());
  } else if constexpr (!Call::maps) {
    (void)call.bound.value_of(row, row.reads());
  } else {
    row.store(row.mapping());
  }
}

/// Columns that need nothing of one another. A block takes blockDim.x vectors of blockDim.y rows at a time.
template <int N, class Call>
__global__ void __launch_bounds__(256) map_columns(const Call call, std::size_t rows, std::size_t cols) {
  using V = typename Call::V;
  using map_type = map_of_row<V, std::remove_cvref_t<decltype(call.bound.p)>>;
  using result = result_of<V, map_type, std::tuple_size_v<typename Call::operands>>;
  const map_type map{call.bound.p, {}};
  const std::size_t first = (blockIdx.x * std::size_t{blockDim.x} + threadIdx.x) * N,
                    step = std::size_t{gridDim.x} * blockDim.x * N, row_step = std::size_t{gridDim.y} * blockDim.y;
  for (std::size_t i = blockIdx.y * std::size_t{blockDim.y} + threadIdx.y; i < rows; i += row_step) {
    const bool kept = call.kept.keeps(i);
    for (std::size_t j = first; j < cols; j += step) {
      result r[N];
      if (kept) {
        loaded_columns<N, typename Call::operands> c;
        c.load(call.x, i, j);
        c.template each<V>(call.x, i, j, [&](int u, auto... v) { r[u] = map(v...); });
      } else {
#pragma unroll
        for (int u = 0; u < N; ++u)
#pragma unroll
          for (std::size_t k = 0; k < rows::pack_size<result>; ++k) r[u].v[k] = V(typename V::value_type(0));
      }
      put_all(call.y, i, j, r);
    }
  }
}

/// The rows of a task, one after the other, and K sums over them of each column: K partial rows, `stride` elements apart. A
/// row is on its way while the one before it is reduced.
template <class Shape, int N, int K, class Call>
__global__ void __launch_bounds__(Shape::most_threads)
    add_rows(const Call call, std::size_t rows, std::size_t per_task, unsigned cols, typename Call::A* partials,
             std::size_t stride) {
  using thread = row_thread<Shape, N, Call>;
  using group = typename thread::group;
  using A = typename Call::A;
  A* const own = partials + blockIdx.x * K * stride;
  std::conditional_t<Shape::kept == 0, memory_sums<N, K, A>, thread_sums<Shape, N, K, A>> sums;
  if constexpr (Shape::kept == 0) sums.own = own, sums.stride = stride;

  const std::size_t begin = blockIdx.x * per_task, end = rows < begin + per_task ? rows : begin + per_task;
  typename thread::columns now[thread::vectors], next[thread::vectors];
  std::size_t i = begin + group::index();
  if (i < end) thread{call, i, cols, now}.load();
  sums.clear(thread{call, begin, cols, now});
  for (; i < end; i += group::count()) {
    if (i + group::count() < end) thread{call, i + group::count(), cols, next}.load();
    const thread row{call, i, cols, now};
    row.store_and_add(row.mapping(), sums, std::make_index_sequence<K>());
#pragma unroll
    for (int t = 0; t < Shape::kept; ++t) now[t] = next[t];
  }

  if constexpr (Shape::kept != 0 && group::is_block) {
    sums.each([&](int t, int k, int u, A sum) {
      if (thread::column(t) < cols) own[k * stride + thread::column(t) + static_cast<unsigned>(u)] = sum;
    });
  } else if constexpr (Shape::kept != 0) {  // the groups of a block, in their order
    __shared__ A of_group[Shape::rows][Shape::reach * N];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      __syncthreads();
      sums.each([&](int t, int which, int u, A sum) {
        if (which == k) of_group[group::index()][thread::column(t) + static_cast<unsigned>(u)] = sum;
      });
      __syncthreads();
      for (unsigned j = threadIdx.x; j < cols; j += blockDim.x) {
        A sum(0);
        for (unsigned g = 0; g < group::count(); ++g) sum += of_group[g][j];
        own[k * stride + j] = sum;
      }
    }
  }
}

/// out[j], or out[j] + it, from the partial rows of all tasks, added in f64: 16 threads a column, each over every 16th task.
template <class A, class T>
__global__ void __launch_bounds__(512)
    add_tasks(const A* partials, std::size_t tasks, std::size_t stride, unsigned cols, T* out, bool accumulate) {
  constexpr unsigned threads = 16;
  __shared__ double of_thread[threads][warp + 1];
  const unsigned j = blockIdx.x * warp + threadIdx.x;
  double sum = 0;
  if (j < cols)
    for (std::size_t task = threadIdx.y; task < tasks; task += threads)
      sum += static_cast<double>(partials[task * stride + j]);
  of_thread[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= cols) return;
  for (unsigned k = 1; k < threads; ++k) sum += of_thread[k][threadIdx.x];
  if (accumulate) sum += static_cast<double>(static_cast<A>(out[j]));
  out[j] = static_cast<T>(static_cast<A>(sum));
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_KERNELS_HPP
