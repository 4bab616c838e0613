// Many sums over a block of a GPU at a time, with few exchanges between its threads.
#ifndef TIGON_BACKENDS_CUDA_BLOCK_SUMS_HPP
#define TIGON_BACKENDS_CUDA_BLOCK_SUMS_HPP

#include <tigon/backends/cuda/group.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// K sums over a block, K a power of two: every step of a warp halves the numbers of a thread.
template <int K>
struct sums_of_block {
  double of_warp[K][warp];
  double total[K];

  /// All threads come here, with their parts in s, in f64 where those are, or from the sums of K lanes on. The totals
  /// are there when it returns, until all have come again.
  template <class A>
  TIGON_DEVICE_INLINE void add(A (&s)[K]) {
    const unsigned lane = threadIdx.x % warp;
    unsigned which = 0, by = warp / 2;
    halve<K / 2>(s, lane, by, which);
    double sum_of_warp = static_cast<double>(s[0]);
    for (; by != 0; by /= 2) sum_of_warp += __shfl_xor_sync(~0u, sum_of_warp, by);
    if (lane % (warp / K) == 0) of_warp[which][threadIdx.x / warp] = sum_of_warp;
    __syncthreads();
    if (threadIdx.x < K) {
      double sum = 0;
      for (unsigned k = 0; k < blockDim.x / warp; ++k) sum += of_warp[threadIdx.x][k];
      total[threadIdx.x] = sum;
    }
    __syncthreads();
  }

 private:
  /// Half of the lanes keep the first half of the numbers, the others the second.
  template <int Left, class A>
  static TIGON_DEVICE_INLINE void halve(A (&s)[K], unsigned lane, unsigned& by, unsigned& which) {
    if constexpr (Left != 0) {
      const bool up = (lane & by) != 0;
#pragma unroll
      for (int k = 0; k < Left; ++k) {
        const A sent = up ? s[k] : s[k + Left], own = up ? s[k + Left] : s[k];
        s[k] = own + __shfl_xor_sync(~0u, sent, by);
      }
      which += up ? static_cast<unsigned>(Left) : 0;
      by /= 2;
      halve<Left / 2>(s, lane, by, which);
    }
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_BLOCK_SUMS_HPP
