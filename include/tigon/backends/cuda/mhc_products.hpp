// Products of hyper-connections with a narrow matrix on a GPU: a column of x is a thread's, and the few columns of phi
// are in its registers.
#ifndef TIGON_BACKENDS_CUDA_MHC_PRODUCTS_HPP
#define TIGON_BACKENDS_CUDA_MHC_PRODUCTS_HPP

#include <tigon/backends/cuda/elements.hpp>
// Behind it: it says how these are compiled.
#include <tigon/core/views.hpp>
#include <tigon/ops/depth/mhc_coeffs_options.hpp>

#include <cstdint>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// Threads of a block in the products below, of which five are on a multiprocessor; columns of phi that a thread has at
/// a time, in one and in the other; tokens of a block.
inline constexpr unsigned product_threads = 128, stream_mixes = 8, slab_mixes = 24, product_tokens = 16;

/// gz of product_tokens tokens from `begin` on and Mixes columns from `first` on; zeros behind the last of either.
template <unsigned Mixes, class A>
struct token_gradients {
  A of[product_tokens][Mixes];

  TIGON_DEVICE_INLINE void load(matrix_view<const A> gz, std::size_t begin, std::size_t end, std::size_t first) {
    for (unsigned e = threadIdx.x; e < product_tokens * Mixes; e += product_threads) {
      const std::size_t t = begin + e / Mixes, k = first + e % Mixes;
      of[e / Mixes][e % Mixes] = t < end && k < gz.cols ? gz.data[t * gz.row_stride + k] : A(0);
    }
  }
};
/// A row of phi, by accesses of 16 bytes where it begins at a multiple of them.
template <unsigned Mixes, class P, class A>
TIGON_DEVICE_INLINE void load_mixes(const P* row, std::size_t count, A (&to)[Mixes]) {
  if (count >= Mixes && reinterpret_cast<std::uintptr_t>(row) % access_bytes == 0) {
    constexpr int N = static_cast<int>(access_bytes / sizeof(P));
#pragma unroll
    for (int from = 0; from < static_cast<int>(Mixes); from += N) {
      elements<N, P> e;
      e.load(row + from);
#pragma unroll
      for (int k = 0; k < N; ++k) to[from + k] = e.template get<A>(k);
    }
  } else {
#pragma unroll
    for (unsigned k = 0; k < Mixes; ++k) to[k] = k < count ? static_cast<A>(row[k]) : A(0);
  }
}

/// dx = gz phi^T - shrink x, and what else adds to it. C columns a thread.
template <int C, class T, class P, class A>
__global__ void __launch_bounds__(product_threads, 5)
    gradients_of_streams(matrix_view<const A> gz, matrix_view<const P> phi, matrix_view<const T> x, const A* shrink,
                         matrix_view<T> dx, bool add, tigon::detail::mhc_more<T> more, std::size_t n) {
  __shared__ token_gradients<stream_mixes, A> tokens;
  const std::size_t c = (blockIdx.y * std::size_t{product_threads} + threadIdx.x) * C,
                    begin = blockIdx.x * std::size_t{product_tokens}, channels = x.cols / n;
  const bool here = c < x.cols;
  const std::size_t h = here ? c / channels : 0, channel = here ? c - h * channels : 0;
  A sum[product_tokens][C];
#pragma unroll
  for (unsigned t = 0; t < product_tokens; ++t)
#pragma unroll
    for (int u = 0; u < C; ++u) sum[t][u] = A(0);
  for (std::size_t first = 0; first < gz.cols; first += stream_mixes) {
    __syncthreads();
    tokens.load(gz, begin, gz.rows, first);
    A row[C][stream_mixes];
#pragma unroll
    for (int u = 0; u < C; ++u)
      load_mixes(phi.data + (c + static_cast<std::size_t>(u)) * phi.row_stride + first, here ? gz.cols - first : 0,
                 row[u]);
    __syncthreads();
#pragma unroll
    for (unsigned t = 0; t < product_tokens; ++t)
#pragma unroll
      for (unsigned k = 0; k < stream_mixes; ++k)
#pragma unroll
        for (int u = 0; u < C; ++u) sum[t][u] += tokens.of[t][k] * row[u][k];
  }
  if (!here) return;
  // All of them before the first store, behind which none could be read ahead: dx may be x.
  elements<C, T> own[product_tokens];
#pragma unroll
  for (unsigned t = 0; t < product_tokens; ++t)
    if (begin + t < x.rows) own[t].load(x.data + (begin + t) * x.row_stride + c);
#pragma unroll
  for (unsigned t = 0; t < product_tokens; ++t) {
    const std::size_t i = begin + t;
    if (i >= x.rows) continue;
    T* const to = dx.data + i * dx.row_stride + c;
    elements<C, T> e;
#pragma unroll
    for (int u = 0; u < C; ++u) sum[t][u] -= shrink[i] * own[t].template get<A>(u);
    const auto add_scaled = [&](A scale, const T* from) {
      e.load(from);
#pragma unroll
      for (int u = 0; u < C; ++u) sum[t][u] += scale * e.template get<A>(u);
    };
    if (more.dy.data != nullptr) {
      add_scaled(more.h_pre.data[i * more.h_pre.row_stride + h], more.d_in.data + i * more.d_in.row_stride + channel);
      for (std::size_t o = 0; o < n; ++o)
        add_scaled(more.h_res.data[i * more.h_res.row_stride + o * n + h],
                   more.dy.data + i * more.dy.row_stride + o * channels + channel);
    }
    if (add) add_scaled(A(1), to);
    e.set_all(sum[t]);
    e.store(to);
  }
}

/// Rows of x that a block of the next kernel adds up.
inline constexpr std::size_t rows_of_slab = 512;
/// partials[slab][c][k] = the sum of x[t][c] gz[t][k] over the tokens of a slab. C columns a thread.
template <int C, class T, class A>
__global__ void __launch_bounds__(product_threads, 5)
    products_of_slabs(matrix_view<const T> x, matrix_view<const A> gz, A* partials) {
  __shared__ token_gradients<slab_mixes, A> tokens;
  const std::size_t c = (blockIdx.y * std::size_t{product_threads} + threadIdx.x) * C,
                    begin = blockIdx.x * rows_of_slab,
                    end = x.rows < begin + rows_of_slab ? x.rows : begin + rows_of_slab;
  for (std::size_t first = 0; first < gz.cols; first += slab_mixes) {
    A sum[C][slab_mixes];
#pragma unroll
    for (int u = 0; u < C; ++u)
#pragma unroll
      for (unsigned k = 0; k < slab_mixes; ++k) sum[u][k] = A(0);
    for (std::size_t from = begin; from < end; from += product_tokens) {
      // On their way while gz comes.
      elements<C, T> own[product_tokens];
#pragma unroll
      for (unsigned t = 0; t < product_tokens; ++t)
        if (c < x.cols && from + t < end)
          own[t].load(x.data + (from + t) * x.row_stride + c);
        else
          own[t].fill(T(0));
      __syncthreads();
      tokens.load(gz, from, end, first);
      __syncthreads();
#pragma unroll
      for (unsigned t = 0; t < product_tokens; ++t)
#pragma unroll
        for (unsigned k = 0; k < slab_mixes; ++k)
#pragma unroll
          for (int u = 0; u < C; ++u) sum[u][k] += own[t].template get<A>(u) * tokens.of[t][k];
    }
    if (c >= x.cols) continue;
#pragma unroll
    for (int u = 0; u < C; ++u)
#pragma unroll
      for (unsigned k = 0; k < slab_mixes; ++k)
        if (first + k < gz.cols)
          partials[(blockIdx.x * x.cols + c + static_cast<std::size_t>(u)) * gz.cols + first + k] = sum[u][k];
  }
}
/// dphi = the sum of the slabs, in f64, or added to it. A thread for each element.
template <class A, class DP>
__global__ void __launch_bounds__(256)
    add_slabs(const A* partials, std::size_t slabs, matrix_view<DP> dphi, bool accumulate) {
  using S = accumulator_t<DP>;
  const std::size_t size = dphi.rows * dphi.cols, e = blockIdx.x * std::size_t{256} + threadIdx.x;
  if (e >= size) return;
  DP& to = dphi.data[e / dphi.cols * dphi.row_stride + e % dphi.cols];
  double sum = accumulate ? static_cast<double>(static_cast<S>(to)) : 0;
  for (std::size_t k = 0; k < slabs; ++k) sum += static_cast<double>(partials[k * size + e]);
  to = static_cast<DP>(static_cast<S>(sum));
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_MHC_PRODUCTS_HPP
