// Rows of logits of which a loss reads several matrices: too many bytes for shared memory. The blocks of a cluster
// share a row, so that few rows are on their way and every pass but the first finds them in L2.
#ifndef TIGON_BACKENDS_CUDA_WIDE_ROWS_HPP
#define TIGON_BACKENDS_CUDA_WIDE_ROWS_HPP

#include <tigon/backends/cuda/powers.hpp>
// Behind it: it says how these are compiled.
#include <tigon/losses/divergence/fused_linear_distillation_kernel.hpp>

#include <tuple>

namespace tigon::gpu {
inline namespace TIGON_ABI {

#if defined(__CUDACC__)
using blocks_of_wide_row = cluster;
#else
/// The model of a GPU has no clusters: a block is alone.
struct blocks_of_wide_row {
  struct mailbox {};
  explicit blocks_of_wide_row(mailbox&) {}
  static unsigned rank() { return 0; }
  static unsigned size() { return 1; }
  static void sync() {}
  template <class Monoid, int K, class A>
  void join(A (&)[K]) {}
};
#endif

/// Threads of a block, and blocks that share a row where there are clusters.
inline constexpr unsigned wide_row_threads = 512, wide_row_blocks = 8;

/// The columns of a row that a thread has: N at a time, then all threads of all blocks of the row one behind the other.
/// It is also a row as losses that are written row by row take it (rows/row.hpp), for sums and maxima over `cols`
/// columns.
template <int N, class A>
struct wide_row {
  using V = simd::vec<simd::cuda, A>;
  blocks_of_wide_row& blocks;
  unsigned cols;

  static TIGON_DEVICE_INLINE unsigned thread() { return blocks_of_wide_row::rank() * blockDim.x + threadIdx.x; }
  static TIGON_DEVICE_INLINE unsigned step() { return blocks_of_wide_row::size() * blockDim.x * N; }
  static TIGON_DEVICE_INLINE bool first() { return thread() == 0; }
  static TIGON_DEVICE_INLINE bool has(unsigned column) { return column % step() / N == thread(); }

  template <class Monoid, int K>
  TIGON_DEVICE_INLINE void reduce(A (&v)[K]) const {
    group<0>::reduce<Monoid>(v);
    blocks.join<Monoid>(v);
  }
  /// f(column, N elements of each of these rows)
  template <class F, class... T>
  TIGON_DEVICE_INLINE void each(F f, const T*... row) const {
    constexpr int at_once = sizeof...(T) == 1 ? 4 : 2;
    unsigned j = thread() * N;
    for (; j + (at_once - 1) * step() < cols; j += at_once * step()) {
      std::tuple<elements<N, T>...> e[at_once];
#pragma unroll
      for (int u = 0; u < at_once; ++u) load(e[u], j + static_cast<unsigned>(u) * step(), row...);
#pragma unroll
      for (int u = 0; u < at_once; ++u)
        std::apply([&](const auto&... x) { f(j + static_cast<unsigned>(u) * step(), x...); }, e[u]);
    }
    for (; j < cols; j += step()) {
      std::tuple<elements<N, T>...> e;
      load(e, j, row...);
      std::apply([&](const auto&... x) { f(j, x...); }, e);
    }
  }
  /// to[column] = f(column, N elements of each), N numbers at a time. Elements may be narrower than those of the first
  /// row, and lie where it begins: so no thread writes where another may still read. All have read as far as they have
  /// come together.
  template <class D, class F, class T, class... More>
  TIGON_DEVICE_INLINE void map(D* to, F f, const T* row, const More*... more) const {
    constexpr int at_once = (sizeof(T) + ... + sizeof(More)) <= 8 ? 2 : 1;  // what registers hold
    [[maybe_unused]] std::size_t safe = 0;  // columns of `to` that lie where all have read
    for (unsigned begin = 0; begin < cols; begin += at_once * step()) {
      std::tuple<elements<N, T>, elements<N, More>...> e[at_once];
      const auto each_step = [&](auto of) {
#pragma unroll
        for (int u = 0; u < at_once; ++u)
          if (const unsigned j = begin + static_cast<unsigned>(u) * step() + thread() * N; j < cols) of(e[u], j);
      };
      each_step([&](auto& x, unsigned j) { load(x, j, row, more...); });
      if constexpr (sizeof(D) < sizeof(T)) {
        const std::size_t end = begin + at_once * std::size_t{step()};
        if ((end < cols ? end : cols) > safe) {
          if (blocks_of_wide_row::size() == 1)
            __syncthreads();
          else
            blocks_of_wide_row::sync();
          safe = end * (sizeof(T) / sizeof(D));
        }
      }
      each_step(
          [&](const auto& x, unsigned j) { std::apply([&](const auto&... of) { f(j, of...).store(to + j); }, x); });
    }
  }
  template <class D>
  TIGON_DEVICE_INLINE void clear(D* to) const {
    elements<N, D> none;
    none.fill(D(0.0f));
    for (unsigned j = thread() * N; j < cols; j += step()) none.store(to + j);
  }

  /// Of z, whose columns are those of this row, in one pass.
  TIGON_DEVICE_INLINE tigon::detail::log_sum<A> log_sum(vector_view<A> z, tigon::detail::tempered<A> by) const;

  // As a row of rows/row.hpp.
  TIGON_DEVICE_INLINE wide_row part(std::size_t, std::size_t n) const { return {blocks, static_cast<unsigned>(n)}; }
  template <class F, class... X>
  TIGON_DEVICE_INLINE A max(reads<X...> in, F f) const {
    A top[1] = {-std::numeric_limits<A>::infinity()};
    each_operand(in, [&](auto... v) { top[0] = larger::join(top[0], static_cast<A>(f(v...).r)); });
    reduce<larger>(top);
    return top[0];
  }
  template <class F, class... X>
  TIGON_DEVICE_INLINE auto sum(reads<X...> in, F f) const {
    using term = decltype(f(vector_for<X>()...));
    if constexpr (std::is_same_v<term, V>) {
      A sums[1] = {A(0)};
      each_operand(in, [&](auto... v) { sums[0] += f(v...).r; });
      reduce<add>(sums);
      return sums[0];
    } else {
      constexpr int K = static_cast<int>(sizeof(term) / sizeof(V));
      A sums[K] = {};
      each_operand(in, [&](auto... v) {
        const term t = f(v...);
#pragma unroll
        for (int k = 0; k < K; ++k) sums[k] += t.v[k].r;
      });
      reduce<add>(sums);
      std::array<A, K> all;
      for (int k = 0; k < K; ++k) all[k] = sums[k];
      return all;
    }
  }

 private:
  template <class>
  static TIGON_DEVICE_INLINE V vector_for();
  template <class... T>
  static TIGON_DEVICE_INLINE void load(std::tuple<elements<N, T>...>& e, unsigned j, const T*... row) {
    std::apply([&](auto&... x) { (x.load(row + j), ...); }, e);
  }
  static TIGON_DEVICE_INLINE elements<N, A> loaded(const vector_view<A>& x, unsigned j) {
    elements<N, A> e;
    e.load(x.data + j);
    return e;
  }
  static TIGON_DEVICE_INLINE constant<A> loaded(const constant<A>& x, unsigned) { return x; }
  static TIGON_DEVICE_INLINE V number(const elements<N, A>& x, int u) { return V(x.template get<A>(u)); }
  static TIGON_DEVICE_INLINE V number(const constant<A>& x, int) { return V(x.value); }
  // f(a vector of each operand) for every column of this thread: operands are rows of A, and constants.
  template <class F, class... X>
  TIGON_DEVICE_INLINE void each_operand(const reads<X...>& in, F f) const {
    const auto give = [&](const auto& e, unsigned j) {
#pragma unroll
      for (int u = 0; u < N; ++u)
        if (N == 1 || j + static_cast<unsigned>(u) < cols) std::apply([&](const auto&... x) { f(number(x, u)...); }, e);
    };
    const auto take = [&](unsigned j) {
      return std::apply([&](const auto&... x) { return std::make_tuple(loaded(x, j)...); }, in.x);
    };
    constexpr int at_once = sizeof...(X) == 1 ? 4 : 2;
    unsigned j = thread() * N;
    for (; j + (at_once - 1) * step() < cols; j += at_once * step()) {
      decltype(take(j)) e[at_once] = {take(j), take(j + step())};
#pragma unroll
      for (int u = 2; u < at_once; ++u) e[u] = take(j + static_cast<unsigned>(u) * step());
#pragma unroll
      for (int u = 0; u < at_once; ++u) give(e[u], j + static_cast<unsigned>(u) * step());
    }
    for (; j < cols; j += step()) give(take(j), j);
  }
};

/// The logits of a wide row alone, as a part of a row (logits.hpp).
template <int N, class A>
struct logits_of_wide_row {
  const wide_row<N, A>& row;
  const A* z;
  template <class Monoid, int K>
  TIGON_DEVICE_INLINE void reduce(A (&v)[K]) const {
    row.template reduce<Monoid>(v);
  }
  template <class F>
  TIGON_DEVICE_INLINE void each(F f) const {
    row.each(f, z);
  }
};

template <int N, class A>
TIGON_DEVICE_INLINE tigon::detail::log_sum<A> wide_row<N, A>::log_sum(vector_view<A> z,
                                                                      tigon::detail::tempered<A> by) const {
  const logits_of_wide_row<N, A> of_z{*this, z.data};
  const lse_parts<A> of = lse_of_row<A>(of_z, tempered_powers<exponentials::fast, A>(by));
  return {of.top, of.rest, math::log1p(of.rest)};
}

/// loss.row(row, i) for all rows, a cluster, or where there are none a block each.
template <int N, class Loss>
__global__ void __launch_bounds__(wide_row_threads, 2) wide_rows(const __grid_constant__ Loss loss, std::size_t rows) {
  __shared__ typename blocks_of_wide_row::mailbox box;
  blocks_of_wide_row blocks(box);
  const wide_row<N, typename Loss::A> row{blocks, loss.cols};
  for (std::size_t i = blockIdx.x / blocks_of_wide_row::size(); i < rows; i += gridDim.x / blocks_of_wide_row::size())
    loss.row(row, i);
  blocks_of_wide_row::sync();  // others may send to this block until here
}

template <class Loss>
void each_wide_row(context& ctx, const Loss& loss, std::size_t rows) {
  constexpr int N = static_cast<int>(access_bytes / sizeof(typename Loss::A));
  if (rows == 0) return;
  const bool wide = loss.cols % N == 0 && loss.template begins_accesses<N>();
  const auto run = [&](auto n) {
    const auto kernel = wide_rows<n.value, Loss>;
#if defined(__CUDACC__)
    // A short row has one block.
    if (limits().capability >= 9 && loss.cols >= wide_row_blocks * wide_row_threads * n.value) {
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(wide_row_blocks), config.blockDim = wide_row_threads;
      cudaLaunchAttribute of_cluster = cluster_of(wide_row_blocks);
      config.attrs = &of_cluster, config.numAttrs = 1;
      const std::size_t at_once = clusters_at_once<n.value>(kernel, config, wide_row_blocks, 0);
      config.gridDim.x *= static_cast<unsigned>(std::min(rows, at_once));
      return launch(ctx, kernel, config, loss, rows);
    }
#endif
    launch(ctx, kernel, dim3(blocks(rows)), dim3(wide_row_threads), loss, rows);
  };
  wide ? run(std::integral_constant<int, N>()) : run(std::integral_constant<int, 1>());
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_WIDE_ROWS_HPP
