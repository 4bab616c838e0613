// RMSNorm on a GPU: the doors of tigon on pointers of the device.
//
//   nvcc -std=c++20 -O3 -arch=native --expt-relaxed-constexpr -DTIGON_DEVICE=gpu -isystem include examples/cuda/rms_norm.cu -o rms_norm
//
// TIGON_DEVICE=gpu makes backend cuda the default, and includes its header with every operator.
#include <tigon/ops/rms_norm.hpp>

#include <cstdio>
#include <span>
#include <vector>

int main() {
  const std::size_t rows = 8192, cols = 4096;
  std::vector<float> x(rows * cols), w(cols, 2), y(x.size());
  for (std::size_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(k % 13) - 6;

  cudaStream_t stream;
  cudaStreamCreate(&stream);
  float *gx, *gw, *gy, *rstd;
  cudaMalloc(&gx, x.size() * sizeof(float)), cudaMalloc(&gw, w.size() * sizeof(float));
  cudaMalloc(&gy, y.size() * sizeof(float)), cudaMalloc(&rstd, rows * sizeof(float));
  cudaMemcpy(gx, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemcpy(gw, w.data(), w.size() * sizeof(float), cudaMemcpyHostToDevice);

  tigon::workspace scratch(tigon::gpu::memory(stream));
  tigon::context ctx(tigon::serial(), scratch, tigon::gpu::queue(stream));
  try {
    tigon::rms_norm_forward(tigon::matrix_view(gx, rows, cols), std::span(gw, cols), tigon::matrix_view(gy, rows, cols),
                            std::span(rstd, rows), {.eps = 1e-6}, ctx);
    ctx.wait();  // the call returned when its work was in the queue
  } catch (const tigon::error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  cudaMemcpy(y.data(), gy, y.size() * sizeof(float), cudaMemcpyDeviceToHost);
  std::printf("x %g, y %g\n", x[0], y[0]);
}
