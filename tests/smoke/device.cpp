// Device code, which .ci/platforms compiles with nvcc: structs of row programs in a kernel, one number at a time, as a
// driver of a GPU would run them.
#include <cstdio>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/rms_norm.hpp>

using number = tigon::simd::vec<tigon::simd::scalar, float>;

__global__ void mapped(const float* x, float* y, float factor) {
  const tigon::detail::rms_norm_program<tigon::casting::llama, float, float> norm{{}};
  const number value = tigon::simd::load<number>(x + threadIdx.x);
  tigon::simd::store(norm.map(factor, value, number(1)), y + threadIdx.x);
  y[threadIdx.x] += tigon::math::rsqrt(x[threadIdx.x]);
}

int main() {
  std::printf("generic 1 lanes of f32 (device code)\n");
  return 0;
}
