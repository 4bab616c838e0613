// The kernels that run row programs on a GPU.
#ifndef TIGON_BACKENDS_CUDA_KERNELS_HPP
#define TIGON_BACKENDS_CUDA_KERNELS_HPP

#include <tigon/backends/cuda/row.hpp>
#include <tigon/backends/cuda/row_sums.hpp>
#include <tigon/backends/cuda/runtime.hpp>

#include <algorithm>
#include <iterator>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// Stores a row; and adds it to sums in memory.
struct store_row {
  template <class Row, class Map>
  TIGON_DEVICE_INLINE void operator()(const Row& row, const Map& map) const {
    row.store(map);
  }
};
template <int K, class A>
struct add_row {
  memory_sums<1, K, A> sums;
  template <class Row, class Map>
  TIGON_DEVICE_INLINE void operator()(const Row& row, const Map& map) {
    row.store_and_add(map, sums, std::make_index_sequence<K>());
  }
};

/// Blocks that a multiprocessor has at once at least, or 0 for what the compiler finds best: two of 1024 threads where
/// rows that every pass reads are reduced alone, in f32, since such kernels are bandwidth-bound.
template <class Shape, class Call>
inline constexpr unsigned least_blocks =
    Shape::kept == 0 && !Call::maps && Call::direct == 0 && sizeof(typename Call::A) == 4 ? 2048 / Shape::most_threads
                                                                                          : 0;

/// A row for each group: reduced, and mapped where the program has a map.
template <class Shape, int N, class Call>
__global__ void __launch_bounds__(Shape::most_threads, least_blocks<Shape, Call>)
    reduce_and_map(const __grid_constant__ Call call, std::size_t rows, unsigned cols) {
  using thread = row_thread<Shape, N, Call>;
  typename thread::columns kept[thread::vectors];
  const thread row = thread::of_launch(call, rows, cols, kept);
  if constexpr (!Call::maps)
    if (!call.kept.keeps(row.i)) return row.clear();
  row.load();
  if constexpr (!Call::maps && Call::direct != 0) {
    const rows::direct_and_reduce both(call.bound.p, call.bound.template reduction<Call::reduced>(row.i));
    const auto put = [&](std::size_t j, const auto& results) { put_all(call.y, row.i, j, results); };
    (void)call.bound.value_after(row, row.template joined<add, Call::direct>(both, put), row.reads());
  } else if constexpr (!Call::maps) {
    (void)row.value();
  } else {
    row.with_map(store_row(), [&](const auto&, const auto& program) {
      row_in_f64<Shape>(call, program, row.i, row.cols, row.here, store_row());
    });
  }
}

/// Threads of a block of map_columns. An H200 takes 0.1729, 0.1779 and 0.1853 ms for swiglu forward of 8192 x 14336
/// bf16 with 256, 512 and 1024 of them.
inline constexpr unsigned threads_of_map = 128;

/// Columns that need nothing of one another. A block takes blockDim.x vectors of blockDim.y rows at a time.
template <int N, class Call>
__global__ void __launch_bounds__(threads_of_map)
    map_columns(const __grid_constant__ Call call, std::size_t rows, std::size_t cols) {
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
        loaded_columns<keeps::rows, N, typename Call::operands> c;
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

/// Rows of a task that are computed in f64, by the whole block, behind the others.
template <class Shape, class Call, class Add>
TIGON_DEVICE_NOINLINE void add_rows_in_f64(const Call& call, std::size_t begin, std::size_t end, unsigned cols, Add add,
                                           const bool* in_f64) {
  using block = row_shape<0, 0, Shape::most_threads>;
  using thread = row_thread<block, 1, Call>;
  for (std::size_t i = begin; i < end; ++i) {
    if (!in_f64[i - begin]) continue;
    typename thread::columns none[1];
    thread{call, i, cols, none}.with_map(
        add, [&](const auto&, const auto& program) { row_in_f64<block>(call, program, i, cols, true, add); });
  }
}

/// The rows of a task, one after the other, and K sums over them of each column: K partial rows, `stride` elements
/// apart. A block has a row on its way while it reduces the one before; of groups of lanes there are enough. Row
/// blockIdx.y of the grid has the tasks of the blockIdx.y-th `rows` rows.
template <class Shape, int N, int K, class Call>
__global__ void __launch_bounds__(Shape::most_threads, Shape::threads_at_once / Shape::most_threads)
    add_rows(const __grid_constant__ Call call, std::size_t rows, std::size_t per_task, unsigned cols,
             typename Call::A* partials, std::size_t stride) {
  using thread = row_thread<Shape, N, Call, Shape::keeps_vectors ? keeps::vectors_too : keeps::rows>;
  using group = typename thread::group;
  using A = typename Call::A;
  A* const own = partials + (blockIdx.y * std::size_t{gridDim.x} + blockIdx.x) * K * stride;
  std::conditional_t<Shape::kept == 0, memory_sums<N, K, A>, thread_sums<Shape, N, K, A>> sums;
  if constexpr (Shape::kept == 0) sums.own = own, sums.stride = stride;

  const std::size_t begin = blockIdx.y * rows + blockIdx.x * per_task, behind = (blockIdx.y + std::size_t{1}) * rows,
                    end = behind < begin + per_task ? behind : begin + per_task;
  constexpr bool both = thread::reduces_once && Shape::template takes_two<Call::vector_bytes>;
  constexpr bool ahead = !both && Shape::template loads_ahead<K, Call::vector_bytes>;
  constexpr std::make_index_sequence<K> k;
  constexpr bool some_in_f64 = thread::some_in_f64();
  constexpr unsigned most_rows = some_in_f64 ? 64 * Shape::rows : 1;
  __shared__ bool in_f64[most_rows];  // rows that are added behind the others
  if constexpr (some_in_f64) {
    for (unsigned row = threadIdx.x; row < most_rows; row += blockDim.x) in_f64[row] = false;
    __syncthreads();
  }
  typename thread::columns now[thread::vectors], next[thread::vectors];
  std::size_t i = begin + group::index();
  if (ahead) thread{call, i, cols, now}.load();
  thread{call, begin, cols, now}.load_vectors();
  sums.clear(thread{call, begin, cols, now});
  const auto run = [&](const auto& of, const auto& map) { of.store_and_add(map, sums, k); };
  const auto mark = [&](const auto& of, const auto&) {
    if (of.first()) in_f64[of.i - begin] = true;
  };
  if constexpr (both) {
    thread{call, begin, cols, next}.load_vectors();
    for (; i < end; i += 2) {
      const bool is_row = i + 1 < end;
      const thread a{call, i, cols, now}, b{call, is_row ? i + 1 : i, is_row ? cols : 0, next, is_row};
      a.load(), b.load();
      if (const std::size_t behind_b = i + 2 + threadIdx.x; Shape::prefetches && threadIdx.x < 2 && behind_b < end)
        thread{call, behind_b, cols, now}.prefetch();
      thread::with_maps(a, b, run, mark);
    }
  } else {
    for (; i < end; i += group::count()) {
      if constexpr (!ahead)
        thread{call, i, cols, now}.load();
      else if (i + 1 < end)
        thread{call, i + 1, cols, next}.load();
      thread{call, i, cols, now}.with_map(run, mark);
      if constexpr (ahead)
#pragma unroll
        for (int t = 0; t < Shape::kept; ++t) now[t].take_rows(next[t]);
    }
  }

  if constexpr (Shape::kept != 0 && group::is_block) {
    sums.each([&](int t, int which, int u, A sum) {
      if (thread::column(t) < cols) own[which * stride + thread::column(t) + static_cast<unsigned>(u)] = sum;
    });
  } else if constexpr (Shape::kept != 0) {  // the groups of a block, in their order
    __shared__ A of_group[Shape::rows][Shape::reach * N];
#pragma unroll
    for (int sum_of = 0; sum_of < K; ++sum_of) {
      __syncthreads();
      sums.each([&](int t, int which, int u, A sum) {
        if (which == sum_of) of_group[group::index()][thread::column(t) + static_cast<unsigned>(u)] = sum;
      });
      __syncthreads();
      for (unsigned j = threadIdx.x; j < cols; j += blockDim.x) {
        A sum(0);
        for (unsigned g = 0; g < group::count(); ++g) sum += of_group[g][j];
        own[sum_of * stride + j] = sum;
      }
    }
  }
  if constexpr (some_in_f64) {
    __syncthreads();
    bool any = false;
    for (unsigned row = threadIdx.x; row < most_rows; row += blockDim.x) any = any || in_f64[row];
    if (__syncthreads_or(any) != 0)
      add_rows_in_f64<Shape>(call, begin, end, cols, add_row<K, A>{{own, stride}}, in_f64);
  }
}

/// Columns that a block of add_tasks has.
inline constexpr unsigned columns_of_block = 8;

/// K gradients of parameters of one type; null where nobody wants one. Row g of a gradient is `stride` elements behind
/// row g - 1.
template <class T, int K>
struct sums_of_tasks {
  T* out[K];
  std::size_t stride[K];
  bool accumulate[K];
};

/// out[j], or out[j] + it, from the partial rows of all tasks, added in f64. A block has 8 columns; each of its threads
/// two or four of them, over every 64th or 128th task. Row blockIdx.y of the grid has the next tasks, and a row of out;
/// blockIdx.z the next gradient, whose partial rows are `apart` elements on.
template <class A, class T, int K>
__global__ void __launch_bounds__(256)
    add_tasks(const A* partials, std::size_t tasks, std::size_t stride, std::size_t apart, unsigned cols,
              const __grid_constant__ sums_of_tasks<T, K> to) {
  if (to.out[blockIdx.z] == nullptr) return;
  partials += blockIdx.y * tasks * stride + blockIdx.z * apart;
  T* const out = to.out[blockIdx.z] + blockIdx.y * to.stride[blockIdx.z];
  constexpr int N = access_bytes / sizeof(A), lanes = columns_of_block / N, threads = 256 / lanes;
  __shared__ double of_thread[threads][columns_of_block];
  const unsigned lane = threadIdx.x % lanes, at = threadIdx.x / lanes, first = blockIdx.x * columns_of_block;
  double sum[N] = {};
#pragma unroll 4
  for (std::size_t task = at; task < tasks; task += threads) {
    elements<N, A> e;
    e.load(partials + task * stride + first + lane * N);  // rows are padded
#pragma unroll
    for (int u = 0; u < N; ++u) sum[u] += static_cast<double>(e.template get<A>(u));
  }
#pragma unroll
  for (int u = 0; u < N; ++u) of_thread[at][lane * N + u] = sum[u];
  for (unsigned half = threads / 2; half >= warp; half /= 2) {
    __syncthreads();
    if (at < half)
#pragma unroll
      for (int u = 0; u < N; ++u) of_thread[at][lane * N + u] += of_thread[at + half][lane * N + u];
  }
  __syncthreads();
  const unsigned j = first + threadIdx.x;
  if (threadIdx.x >= columns_of_block || j >= cols) return;
  double total = to.accumulate[blockIdx.z] ? static_cast<double>(static_cast<A>(out[j])) : 0;
  for (unsigned k = 0; k < warp; ++k) total += of_thread[k][threadIdx.x];
  out[j] = static_cast<T>(static_cast<A>(total));
}
/// Starts it for `groups` rows of each gradient.
template <class A, class T, int K>
void launch_add_tasks(context& ctx, const A* partials, std::size_t tasks, std::size_t stride, std::size_t apart,
                      rows::extents of, const sums_of_tasks<T, K>& to) {
  const auto wanted = [](const T* p) { return p != nullptr; };
  if (std::any_of(std::begin(to.out), std::end(to.out), wanted))
    launch(ctx, add_tasks<A, T, K>,
           dim3(blocks(tigon::detail::ceil_div(of.cols, columns_of_block)), fitting(of.rows, "groups of rows"), K), 256,
           partials, tasks, stride, apart, columns(of.cols), to);
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_KERNELS_HPP
