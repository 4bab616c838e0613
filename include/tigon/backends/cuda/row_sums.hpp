// Sums over the rows of a task on a GPU: in a thread's registers, or in memory.
#ifndef TIGON_BACKENDS_CUDA_ROW_SUMS_HPP
#define TIGON_BACKENDS_CUDA_ROW_SUMS_HPP

#include <tigon/backends/cuda/elements.hpp>

#include <cstddef>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// K sums over the rows of a task for each column of a thread: in registers.
template <class Shape, int N, int K, class A>
struct thread_sums {
  A s[Shape::kept][K][N];

  template <class Row>
  TIGON_DEVICE_INLINE void clear(const Row&) {
    each([](int, int, int, A& sum) { sum = A(0); });
  }
  template <class S>
  TIGON_DEVICE_INLINE void load(S (&to)[K][N], int t, std::size_t) const {
    copy(to, s[t]);
  }
  template <class S>
  TIGON_DEVICE_INLINE void store(const S (&from)[K][N], int t, std::size_t) {
    copy(s[t], from);
  }
  template <class F>
  TIGON_DEVICE_INLINE void each(F f) {
#pragma unroll
    for (int t = 0; t < Shape::kept; ++t)
#pragma unroll
      for (int k = 0; k < K; ++k)
#pragma unroll
        for (int u = 0; u < N; ++u) f(t, k, u, s[t][k][u]);
  }

 private:
  template <class To, class From>
  static TIGON_DEVICE_INLINE void copy(To (&to)[K][N], const From (&from)[K][N]) {
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int u = 0; u < N; ++u) to[k][u] = static_cast<To>(from[k][u]);
  }
};
/// The same in memory, where a row is too wide for registers: K rows, `stride` elements apart.
template <int N, int K, class A>
struct memory_sums {
  A* own;
  std::size_t stride;

  template <class Row>
  TIGON_DEVICE_INLINE void clear(const Row& row) {
    A none[K][N] = {};
    row.for_columns([&](int t, std::size_t j, const auto&) { store(none, t, j); });
  }
  template <class S>
  TIGON_DEVICE_INLINE void load(S (&to)[K][N], int, std::size_t j) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      elements<N, A> e;
      e.load(own + k * stride + j);
#pragma unroll
      for (int u = 0; u < N; ++u) to[k][u] = e.template get<S>(u);
    }
  }
  template <class S>
  TIGON_DEVICE_INLINE void store(const S (&from)[K][N], int, std::size_t j) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      elements<N, A> e;
      e.set_all(from[k]);
      e.store(own + k * stride + j);
    }
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_ROW_SUMS_HPP
