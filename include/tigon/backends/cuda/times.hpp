// A product with one number of the device's memory, in place: gradients that were made before their upstream gradient.
#ifndef TIGON_BACKENDS_CUDA_TIMES_HPP
#define TIGON_BACKENDS_CUDA_TIMES_HPP

#include <tigon/backends/cuda/runtime.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/elements.hpp>

#include <algorithm>
#include <span>

namespace tigon::gpu {
inline namespace TIGON_ABI {

inline constexpr unsigned threads_of_times = 256, most_blocks_of_times = 2048;

/// x *= *by, N elements at a time. Where the number is 1, as it is at the end of nearly every loss, x is not touched.
template <int N, class T, class A>
__global__ void __launch_bounds__(threads_of_times) times_number(T* x, std::size_t vectors, const A* by) {
  const A factor = *by;
  if (factor == A(1)) return;
  const std::size_t step = std::size_t{gridDim.x} * threads_of_times;
  for (std::size_t i = blockIdx.x * std::size_t{threads_of_times} + threadIdx.x; i < vectors; i += step) {
    elements<N, T> e;
    e.load(x + i * N);
    A product[N];
#pragma unroll
    for (int u = 0; u < N; ++u) product[u] = e.template get<A>(u) * factor;
    e.set_all(product);
    e.store(x + i * N);
  }
}

/// x *= *by; `by` is a number of the device's memory.
template <class T, class A = accumulator_t<T>>
void times(std::span<T> x, const A* by, context& ctx) {
  constexpr int N = static_cast<int>(access_bytes / sizeof(T));
  const bool wide = x.size() % N == 0 && begins_accesses<N>(x.data(), 0);
  const std::size_t vectors = wide ? x.size() / N : x.size();
  if (vectors == 0) return;
  const std::size_t all = (vectors + threads_of_times - 1) / threads_of_times;
  const unsigned count = static_cast<unsigned>(std::min<std::size_t>(all, most_blocks_of_times));
  if (wide)
    launch(ctx, times_number<N, T, A>, count, threads_of_times, x.data(), vectors, by);
  else
    launch(ctx, times_number<1, T, A>, count, threads_of_times, x.data(), vectors, by);
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_TIMES_HPP
