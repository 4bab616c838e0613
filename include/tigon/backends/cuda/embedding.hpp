// Rows by index on a GPU, and their sums: the positions of every token are listed in ascending order, so that a row of
// the gradient is summed by one block, in the order of the tokens, as on a CPU.
#ifndef TIGON_BACKENDS_CUDA_EMBEDDING_HPP
#define TIGON_BACKENDS_CUDA_EMBEDDING_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/ops/embedding/embedding_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// The tokens of a call, and where an id that names none of them is reported.
template <class I>
struct ids_of_call {
  const I* ids;
  std::size_t count, vocab;
  index_report* report;
  const char* op;

  TIGON_DEVICE_INLINE bool exists(std::size_t i) const {
    return ids[i] >= 0 && static_cast<std::size_t>(ids[i]) < vocab;
  }
  /// The first that is out of range, by all threads of one block of a kernel.
  TIGON_DEVICE_INLINE void check() const {
    const std::size_t i = first_where(count, [&](std::size_t k) { return !exists(k); });
    if (threadIdx.x == 0 && i < count)
      report->make({op, "ids", i, static_cast<std::int64_t>(ids[i]), vocab, 0, false, 0});
  }
};

/// Row ids[i] of weight, `across` threads a row; zeros for the padding index. An id that names no row is not followed:
/// its row is NaN. The first block looks for such ids.
template <int N, class T, class I>
__global__ void __launch_bounds__(256) gather_rows(matrix_view<const T> weight, ids_of_call<I> tokens, matrix_view<T> y,
                                                   std::ptrdiff_t padding, unsigned across) {
  if (blockIdx.x == 0) return tokens.check();
  const std::size_t i = (blockIdx.x - std::size_t{1}) * (256 / across) + threadIdx.x / across;
  if (i >= y.rows) return;
  const auto token = static_cast<std::ptrdiff_t>(tokens.ids[i]);
  const bool exists = tokens.exists(i);
  const T* const from = weight.data + (exists ? static_cast<std::size_t>(token) * weight.row_stride : 0);
  T* const to = y.data + i * y.row_stride;
  const std::size_t step = across * std::size_t{N};
  for (std::size_t j = threadIdx.x % across * std::size_t{N}; j < y.cols; j += 2 * step) {
    elements<N, T> one, two;
    const bool both = j + step < y.cols;
    if (exists && token != padding) {
      one.load(from + j);
      if (both) two.load(from + j + step);
    } else {
      const T value(exists ? 0.f : std::numeric_limits<float>::quiet_NaN());
      one.fill(value), two.fill(value);
    }
    one.store(to + j);
    if (both) two.store(to + j + step);
  }
}

/// The positions of token v are order[first[v - 1]], ..., order[first[v] - 1], where first[-1] is 0.
struct token_lists {
  unsigned *first, *listed, *order, *sums;  ///< listed: the same lists in any order
  std::size_t vocab;

  TIGON_DEVICE_INLINE unsigned begin(std::size_t v) const { return v == 0 ? 0 : first[v - 1]; }
  TIGON_DEVICE_INLINE unsigned end(std::size_t v) const { return first[v]; }
};
/// Numbers that a block of the scan has.
inline constexpr unsigned scan_threads = 256, scan_numbers = 4 * scan_threads;

// Templates, because nvcc does not take inline kernels.
template <class Lists>
__global__ void __launch_bounds__(scan_threads) clear_counts(Lists lists) {
  const std::size_t v = blockIdx.x * std::size_t{scan_threads} + threadIdx.x;
  if (v <= lists.vocab) lists.first[v] = 0;
}
/// first[v + 1] counts token v. The first block looks for ids out of range.
template <class I>
__global__ void __launch_bounds__(scan_threads) count_tokens(ids_of_call<I> tokens, token_lists lists) {
  if (blockIdx.x == 0) return tokens.check();
  const std::size_t i = (blockIdx.x - std::size_t{1}) * scan_threads + threadIdx.x;
  if (i < tokens.count && tokens.exists(i)) atomicAdd(lists.first + static_cast<std::size_t>(tokens.ids[i]) + 1, 1u);
}
/// The sums of the blocks of the scan; then the scan, after which first[v] is where the list of v begins.
template <class Lists>
__global__ void __launch_bounds__(scan_threads) sum_counts(Lists lists) {
  double sum[1] = {0};
#pragma unroll
  for (unsigned k = 0; k < scan_numbers; k += scan_threads) {
    const std::size_t v = blockIdx.x * std::size_t{scan_numbers} + k + threadIdx.x;
    if (v <= lists.vocab) sum[0] += lists.first[v];
  }
  group<0>::reduce<add>(sum);
  if (threadIdx.x == 0) lists.sums[blockIdx.x] = static_cast<unsigned>(sum[0]);
}
template <class Lists>
__global__ void __launch_bounds__(scan_threads) scan_counts(Lists lists) {
  __shared__ unsigned of_thread[scan_threads];
  double before[1] = {0};
  for (unsigned k = threadIdx.x; k < blockIdx.x; k += scan_threads) before[0] += lists.sums[k];
  group<0>::reduce<add>(before);
  const std::size_t begin = blockIdx.x * std::size_t{scan_numbers} + 4 * threadIdx.x;
  unsigned own[4], sum = 0;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) own[k] = sum += begin + k <= lists.vocab ? lists.first[begin + k] : 0;
  of_thread[threadIdx.x] = sum;
  for (unsigned by = 1; by < scan_threads; by *= 2) {
    __syncthreads();
    const unsigned more = threadIdx.x >= by ? of_thread[threadIdx.x - by] : 0;
    __syncthreads();
    of_thread[threadIdx.x] += more;
  }
  const unsigned base = static_cast<unsigned>(before[0]) + of_thread[threadIdx.x] - sum;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k)
    if (begin + k <= lists.vocab) lists.first[begin + k] = base + own[k];
}
/// In any order; first[v] becomes the end of the list of v.
template <class I>
__global__ void __launch_bounds__(scan_threads) list_positions(ids_of_call<I> tokens, token_lists lists) {
  const std::size_t i = blockIdx.x * std::size_t{scan_threads} + threadIdx.x;
  if (i < tokens.count && tokens.exists(i))
    lists.listed[atomicAdd(lists.first + static_cast<std::size_t>(tokens.ids[i]), 1u)] = static_cast<unsigned>(i);
}

/// order = the lists of `listed`, each in ascending order: a position comes behind those of its token that are smaller,
/// which its thread counts.
template <class I>
__global__ void __launch_bounds__(scan_threads)
    order_positions(ids_of_call<I> tokens, token_lists lists, std::size_t padding) {
  const std::size_t k = blockIdx.x * std::size_t{scan_threads} + threadIdx.x;
  if (k >= lists.first[lists.vocab]) return;
  const unsigned position = lists.listed[k];
  const auto v = static_cast<std::size_t>(tokens.ids[position]);
  if (v == padding) return;
  const unsigned begin = lists.begin(v), end = lists.end(v);
  unsigned smaller = 0;
#pragma unroll 8
  for (unsigned other = begin; other < end; ++other) smaller += lists.listed[other] < position;
  lists.order[begin + smaller] = position;
}

/// Threads that have a part of a token's columns, one access each; the threads of a block; tokens that they go through.
inline constexpr unsigned token_threads = 64, threads_of_sums = 256, tokens_in_turn = 4;

/// dweight[v] = the sum of the rows of dy whose token is v, or added to it. The first `frequent_blocks` blocks sum
/// tokens of more than simd::plain_rows positions, which take long; the others, `ordinary_blocks`, sum the rest
/// meanwhile. A block here is several of the grid, one for some columns each, which lie one behind the other.
template <int N, class T>
struct token_sums {
  using A = accumulator_t<T>;
  static constexpr unsigned parts = threads_of_sums / token_threads, together = static_cast<unsigned>(simd::plain_rows);

  matrix_view<const T> dy;
  token_lists lists;
  matrix_view<T> dweight;
  std::size_t padding;
  bool accumulate;
  unsigned frequent_blocks, ordinary_blocks;

  /// Tokens of up to simd::plain_rows positions, by the threads of a part, for N columns from j on.
  TIGON_DEVICE_INLINE void sum_ordinary(unsigned block, std::size_t j) const {
    if (j >= dweight.cols) return;
    const std::size_t turns = ordinary_blocks * std::size_t{parts};
    const std::size_t first = block * std::size_t{parts} + threadIdx.x / token_threads;
    unsigned begin[tokens_in_turn], count[tokens_in_turn];
#pragma unroll
    for (unsigned t = 0; t < tokens_in_turn; ++t) {
      const std::size_t v = first + t * turns;
      begin[t] = v >= dweight.rows ? 0 : lists.begin(v);
      count[t] = v >= dweight.rows || v == padding ? 0 : lists.end(v) - begin[t];
    }
#pragma unroll
    for (unsigned t = 0; t < tokens_in_turn; ++t) {
      const std::size_t v = first + t * turns;
      if (v >= dweight.rows || (count[t] == 0 && accumulate) || count[t] > simd::plain_rows) continue;
      A sum[N];
      begin_sums(sum, row_of(v, j), true);
      add_rows(begin[t], begin[t] + count[t], j, sum);
      store(sum, row_of(v, j));
    }
  }

  /// Frequent tokens, each by a block: its parts add up simd::plain_rows positions each at a time, and the first adds
  /// their sums to a compensated one, in ascending order.
  TIGON_DEVICE_INLINE void sum_frequent(unsigned block, std::size_t j, A (&of_part)[parts][token_threads * N]) const {
    using V = simd::vec<simd::cuda, A>;
    __shared__ unsigned frequent[threads_of_sums], found;
    const unsigned part = threadIdx.x / token_threads, lane = threadIdx.x % token_threads;
    const bool here = j < dweight.cols;
    for (std::size_t from = block; from < dweight.rows; from += threads_of_sums * std::size_t{frequent_blocks}) {
      __syncthreads();
      if (threadIdx.x == 0) found = 0;
      __syncthreads();
      const std::size_t candidate = from + threadIdx.x * std::size_t{frequent_blocks};
      if (candidate < dweight.rows && candidate != padding &&
          lists.end(candidate) - lists.begin(candidate) > simd::plain_rows)
        frequent[atomicAdd(&found, 1u)] = static_cast<unsigned>(candidate);
      __syncthreads();
      for (unsigned f = 0; f < found; ++f) {
        const unsigned begin = lists.begin(frequent[f]), end = lists.end(frequent[f]);
        A high[N], low[N];
#pragma unroll
        for (int u = 0; u < N; ++u) high[u] = low[u] = A(0);
        for (unsigned k = begin; k < end; k += parts * together) {
          const unsigned own = k + part * together, stop = own + together < end ? own + together : end;
          A sum[N];
          begin_sums(sum, row_of(frequent[f], j), own == begin && here);
          if (here) add_rows(own, stop, j, sum);
#pragma unroll
          for (int u = 0; u < N; ++u) of_part[part][lane * N + u] = sum[u];
          __syncthreads();
          if (part == 0)
            for (unsigned p = 0; p < parts && k + p * together < end; ++p)
#pragma unroll
              for (int u = 0; u < N; ++u) {
                const auto total = simd::add_compensated(V(high[u]), V(low[u]), V(of_part[p][lane * N + u]));
                high[u] = total.v[0].r, low[u] = total.v[1].r;
              }
          __syncthreads();
        }
        if (part != 0 || !here) continue;
#pragma unroll
        for (int u = 0; u < N; ++u) high[u] += low[u];
        store(high, row_of(frequent[f], j));
      }
    }
  }

 private:
  TIGON_DEVICE_INLINE T* row_of(std::size_t v, std::size_t j) const {
    return dweight.data + v * dweight.row_stride + j;
  }
  /// What the row holds, where sums are added to it by this thread; zeros.
  TIGON_DEVICE_INLINE void begin_sums(A (&sum)[N], const T* row, bool here) const {
    elements<N, T> e;
    if (accumulate && here) e.load(row);
#pragma unroll
    for (int u = 0; u < N; ++u) sum[u] = accumulate && here ? e.template get<A>(u) : A(0);
  }
  /// sum += N columns of the rows of dy at places [from, to) of the lists.
  TIGON_DEVICE_INLINE void add_rows(unsigned from, unsigned to, std::size_t j, A (&sum)[N]) const {
#pragma unroll 8
    for (unsigned k = from; k < to; ++k) {
      elements<N, T> e;
      e.load(dy.data + lists.order[k] * dy.row_stride + j);
#pragma unroll
      for (int u = 0; u < N; ++u) sum[u] += e.template get<A>(u);
    }
  }
  static TIGON_DEVICE_INLINE void store(const A (&sum)[N], T* to) {
    elements<N, T> row;
    row.set_all(sum);
    row.store(to);
  }
};
template <int N, class T>
__global__ void __launch_bounds__(threads_of_sums) sum_tokens(const token_sums<N, T> sums, unsigned across) {
  __shared__ typename token_sums<N, T>::A of_part[token_sums<N, T>::parts][token_threads * N];
  const unsigned block = blockIdx.x / across;
  const std::size_t j = (blockIdx.x % across * std::size_t{token_threads} + threadIdx.x % token_threads) * N;
  if (block < sums.frequent_blocks)
    sums.sum_frequent(block, j, of_part);
  else
    sums.sum_ordinary(block - sums.frequent_blocks, j);
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::embedding, backends::cuda> {
  template <class>
  using saved = no_state;

  template <backend B, element T, token_id I>
  static void forward(in_matrix<T> weight, std::span<const I> ids, matrix_view<T> y, embedding_options opt,
                      context& ctx) {
    if (y.rows == 0 || y.cols == 0) return;
    with_vectors<T>(weight, y, [&](auto n) {
      const std::size_t vectors = tigon::detail::ceil_div(y.cols, n.value);
      const unsigned x = std::bit_ceil(static_cast<unsigned>(std::min<std::size_t>(detail::ceil_div(vectors, 2), 256)));
      const unsigned rows = 256 / x;
      gpu::launch(ctx, gpu::gather_rows<n.value, T, I>, gpu::blocks(detail::ceil_div(y.rows, rows) + 1), 256,
                  matrix_view<const T>(weight), tokens_of("embedding_forward", ids, weight.rows, ctx), y,
                  opt.padding_index, x);
    });
  }

  /// The rows of all tokens. A sparse gradient, whose number of rows the host would have to read, is refused by
  /// embedding_backward_sparse.
  template <backend B, element T, token_id I>
  static std::size_t backward(in_matrix<T> dy, std::span<const I> ids, std::size_t vocab, std::span<I>,
                              matrix_view<T> dweight, embedding_options opt, context& ctx) {
    if (dweight.cols == 0) return vocab;
    const std::size_t rows = ids.size();
    workspace::frame frame(ctx.workspace());
    // As many bytes as a CPU's lists have: half of each are left for the sums of the scan, and for the order.
    auto* const first = reinterpret_cast<unsigned*>(frame.template take<std::size_t>(vocab + 1));
    auto* const listed = reinterpret_cast<unsigned*>(frame.template take<std::size_t>(rows));
    const gpu::token_lists lists{first, listed, listed + rows, first + vocab + 1, vocab};
    (void)gpu::fitting(rows, "tokens"), (void)gpu::fitting(vocab, "rows of an embedding");
    const auto blocks_of = [](std::size_t n, unsigned each) { return gpu::blocks(detail::ceil_div(n, each)); };
    gpu::launch(ctx, gpu::clear_counts<gpu::token_lists>, blocks_of(vocab + 1, gpu::scan_threads), gpu::scan_threads,
                lists);
    if (rows != 0) {
      const auto tokens = tokens_of("embedding_backward", ids, vocab, ctx);
      gpu::launch(ctx, gpu::count_tokens<I>, blocks_of(rows + gpu::scan_threads, gpu::scan_threads), gpu::scan_threads,
                  tokens, lists);
      gpu::launch(ctx, gpu::sum_counts<gpu::token_lists>, blocks_of(vocab + 1, gpu::scan_numbers), gpu::scan_threads,
                  lists);
      gpu::launch(ctx, gpu::scan_counts<gpu::token_lists>, blocks_of(vocab + 1, gpu::scan_numbers), gpu::scan_threads,
                  lists);
      gpu::launch(ctx, gpu::list_positions<I>, blocks_of(rows, gpu::scan_threads), gpu::scan_threads, tokens, lists);
      gpu::launch(ctx, gpu::order_positions<I>, blocks_of(rows, gpu::scan_threads), gpu::scan_threads, tokens, lists,
                  static_cast<std::size_t>(opt.padding_index));
    }
    with_vectors<T>(dy, dweight, [&](auto n) {
      constexpr unsigned most_frequent_blocks = 256;
      using sums = gpu::token_sums<n.value, T>;
      const unsigned frequent = rows > simd::plain_rows ? most_frequent_blocks : 0;
      const unsigned ordinary = blocks_of(vocab, sums::parts * gpu::tokens_in_turn);
      const std::size_t across = detail::ceil_div(dweight.cols, std::size_t{gpu::token_threads * n.value});
      gpu::launch(ctx, gpu::sum_tokens<n.value, T>, gpu::blocks((std::size_t{frequent} + ordinary) * across),
                  gpu::threads_of_sums,
                  sums{matrix_view<const T>(dy), lists, dweight, static_cast<std::size_t>(opt.padding_index),
                       opt.dweight == gradient::accumulate, frequent, ordinary},
                  static_cast<unsigned>(across));
    });
    return vocab;
  }

 private:
  template <class I>
  static gpu::ids_of_call<I> tokens_of(const char* op, std::span<const I> ids, std::size_t vocab, context& ctx) {
    return {ids.data(), ids.size(), vocab, gpu::report_of(gpu::stream_of(ctx)), op};
  }
  /// run(elements of an access)
  template <class T, class Run>
  static void with_vectors(matrix_view<const T> from, matrix_view<T> to, Run run) {
    constexpr int N = static_cast<int>(gpu::access_bytes / sizeof(T));
    if (to.cols % N == 0 && gpu::begins_accesses<N>(from.data, from.row_stride) &&
        gpu::begins_accesses<N>(to.data, to.row_stride))
      run(std::integral_constant<int, N>());
    else
      run(std::integral_constant<int, 1>());
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_EMBEDDING_HPP
