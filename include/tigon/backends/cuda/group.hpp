// The threads of a row on a GPU: lanes of a warp, or a block.
#ifndef TIGON_BACKENDS_CUDA_GROUP_HPP
#define TIGON_BACKENDS_CUDA_GROUP_HPP

#include <tigon/backends/cuda/device_code.hpp>

#include <cstddef>
#include <limits>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// Threads of a warp.
inline constexpr unsigned warp = 32;

/// Sums; the maximum.
struct add {
  template <class A>
  static constexpr A none = A(0);
  template <class A>
  static TIGON_DEVICE_INLINE A join(A a, A b) {
    return a + b;
  }
};
struct larger {
  template <class A>
  static constexpr A none = -std::numeric_limits<A>::infinity();
  template <class A>
  static TIGON_DEVICE_INLINE A join(A a, A b) {
    return a > b ? a : b;
  }
};

/// Lanes: 16 or 32 of a warp, of which a block has several groups; 0: all threads of a block.
template <unsigned Lanes>
struct group {
  static constexpr bool is_block = Lanes == 0;
  static constexpr unsigned lanes = is_block ? warp : Lanes;  ///< that shuffle with one another

  static TIGON_DEVICE_INLINE unsigned lane() { return is_block ? threadIdx.x : threadIdx.x % lanes; }
  static TIGON_DEVICE_INLINE unsigned size() { return is_block ? blockDim.x : lanes; }
  /// Which group of the block this is, and how many there are.
  static TIGON_DEVICE_INLINE unsigned index() { return is_block ? 0 : threadIdx.x / lanes; }
  static TIGON_DEVICE_INLINE unsigned count() { return is_block ? 1 : blockDim.x / lanes; }

  /// v[k] joined over the group, the same bits in every thread. All threads of the group come here.
  template <class Monoid, int K, class A>
  static TIGON_DEVICE_INLINE void reduce(A (&v)[K]) {
    shuffle<Monoid>(v);
    if constexpr (is_block) {
      __shared__ A of_warp[K][warp];
      const unsigned warps = blockDim.x / warp, me = threadIdx.x / warp, at = threadIdx.x % warp;
      if (warps == 1) return;
      __syncthreads();  // of_warp has been read: a row is reduced several times
      if (at == 0)
#pragma unroll
        for (int k = 0; k < K; ++k) of_warp[k][me] = v[k];
      __syncthreads();
#pragma unroll
      for (int k = 0; k < K; ++k) v[k] = at < warps ? of_warp[k][at] : Monoid::template none<A>;
      shuffle<Monoid>(v);
    }
  }

 private:
  template <class Monoid, int K, class A>
  static TIGON_DEVICE_INLINE void shuffle(A (&v)[K]) {
    const unsigned mask = lanes == warp ? ~0u : ((1u << lanes % warp) - 1) << (threadIdx.x % warp / lanes * lanes);
#pragma unroll
    for (unsigned by = lanes / 2; by != 0; by /= 2)
#pragma unroll
      for (int k = 0; k < K; ++k) v[k] = Monoid::join(v[k], __shfl_xor_sync(mask, v[k], by));
  }
};

/// The smallest i < n for which is(i) holds, for all threads of a block; n: there is none. All of them come here.
template <class Is>
TIGON_DEVICE_INLINE std::size_t first_where(std::size_t n, Is is) {
  double first[1] = {-static_cast<double>(n)};  // minus it
#pragma unroll 4
  for (std::size_t i = threadIdx.x; i < n; i += blockDim.x)
    if (is(i)) first[0] = larger::join(first[0], -static_cast<double>(i));
  group<0>::reduce<larger>(first);
  return static_cast<std::size_t>(-first[0]);
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_GROUP_HPP
