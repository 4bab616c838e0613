// Numbers in memory of the device: programs that are made of them, and sums of them.
#ifndef TIGON_BACKENDS_CUDA_NUMBERS_HPP
#define TIGON_BACKENDS_CUDA_NUMBERS_HPP

#include <tigon/backend/made_late.hpp>
#include <tigon/backends/cuda/rows.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// A number that the host does not read.
template <class A, class T = A>
struct number_at {
  const T* p;
  TIGON_INLINE A value() const { return static_cast<A>(*p); }
};

using detail::made_late;

/// Block k takes the sum of term(k, j) over j < n, in f64 and in an order that n decides: put(k, sum).
inline constexpr unsigned threads_of_sum = 512;
template <class Term, class Put>
__global__ void __launch_bounds__(threads_of_sum) add_up(Term term, std::size_t n, Put put) {
  double sum[1] = {0};
#pragma unroll 4
  for (std::size_t j = threadIdx.x; j < n; j += threads_of_sum) sum[0] += term(blockIdx.x, j);
  group<0>::reduce<add>(sum);
  if (threadIdx.x == 0) put(blockIdx.x, sum[0]);
}

/// Number j of row k of a matrix.
struct number_of_row {
  matrix_view<const double> rows;
  TIGON_DEVICE_INLINE double operator()(std::size_t k, std::size_t j) const {
    return rows.data[k * rows.row_stride + j];
  }
};
/// Number j of a vector.
struct number_of_vector {
  const double* p;
  TIGON_DEVICE_INLINE double operator()(std::size_t, std::size_t j) const { return p[j]; }
};
/// The gradient of one number: written, or added to.
template <class W>
struct gradient_of_number {
  W* to;
  bool accumulate;
  TIGON_DEVICE_INLINE void operator()(std::size_t, double sum) const {
    using A = accumulator_t<W>;
    *to = static_cast<W>(static_cast<A>(accumulate ? static_cast<double>(static_cast<A>(*to)) + sum : sum));
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_NUMBERS_HPP
