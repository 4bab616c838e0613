// What the program asks of its kernels: pointers to functions, over which only pointers and sizes cross.
#ifndef TIGON_EXAMPLES_MULTI_ARCH_KERNELS_HPP
#define TIGON_EXAMPLES_MULTI_ARCH_KERNELS_HPP

#include <cstddef>

struct kernel_table {
  const char* instruction_set;  ///< as tigon calls it
  std::size_t lanes;            ///< of f32

  /// y = softmax(x) by rows; both are [rows, cols] without gaps.
  void (*softmax)(const float* x, float* y, std::size_t rows, std::size_t cols);
  /// c = a b; a is [m, k], b [k, n], c [m, n].
  void (*product)(const float* a, const float* b, float* c, std::size_t m, std::size_t n, std::size_t k);
};

#endif  // TIGON_EXAMPLES_MULTI_ARCH_KERNELS_HPP
