// Compiled once for every instruction set; nothing here names one.
#include "kernels.hpp"

#include <tigon/gemm/gemm.hpp>
#include <tigon/ops/softmax.hpp>

namespace {

using tigon::matrix_view;

void softmax(const float* x, float* y, std::size_t rows, std::size_t cols) {
  tigon::softmax_forward(matrix_view(x, rows, cols), matrix_view(y, rows, cols));
}

void product(const float* a, const float* b, float* c, std::size_t m, std::size_t n, std::size_t k) {
  tigon::gemm(matrix_view(a, m, k), matrix_view(b, k, n), matrix_view(c, m, n));
}

}  // namespace

extern "C" const kernel_table* TIGON_MULTI_ARCH_ENTRY() {
  using lanes = tigon::simd::vec<tigon::default_backend::engine, float>;
  static constexpr kernel_table table{TIGON_STRING(TIGON_TARGET), lanes::size, &softmax, &product};
  return &table;
}
