// Backend cuda on the model of a GPU with a thread for each of its threads, under ThreadSanitizer: few rows, since each
// has hundreds of threads.
#include "model.hpp"
// Behind it: it says how these are compiled.
#include <gtest/gtest.h>

#include <cmath>

#include <tigon/backends/cuda/backend.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <vector>

namespace {

using namespace tigon;

// Forward and backward, as single numbers make them, of rows that a block has and that lanes of a warp have.
void rms_norm_both_ways(std::size_t rows, std::size_t cols) {
  std::vector<float> x(rows * cols), w(cols, 1.5f), rstd(rows), rstd1(rows), y(x.size()), y1(x.size()), dx(x.size()),
      dx1(x.size()), dw(cols), dw1(cols);
  for (std::size_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(k % 31) - 14;
  const auto matrix = [&](std::vector<float>& v) { return matrix_view(v.data(), rows, cols); };
  workspace scratch(gpu::memory(nullptr));
  context ctx(serial(), scratch, gpu::queue(nullptr));
  using B = backends::cuda;
  rms_norm_forward<B>(matrix(x), w, matrix(y), rstd, {}, ctx);
  rms_norm_backward<B>(matrix(y), matrix(x), w, rstd, matrix(dx), dw, {}, ctx);
  using G = backends::generic;
  rms_norm_forward<G>(matrix(x), w, matrix(y1), rstd1);
  rms_norm_backward<G>(matrix(y1), matrix(x), w, rstd1, matrix(dx1), dw1);
  for (std::size_t k = 0; k < x.size(); ++k) {
    EXPECT_NEAR(y[k], y1[k], 1e-6 * 3);
    EXPECT_NEAR(dx[k], dx1[k], 1e-6);
  }
  for (std::size_t j = 0; j < cols; ++j) EXPECT_NEAR(dw[j], dw1[j], 1e-6 + 4e-7 * std::fabs(dw1[j]));
}

TEST(cuda_threads, rms_norm) {
  rms_norm_both_ways(5, 600);
  rms_norm_both_ways(40, 20);
}
TEST(cuda_threads_without_barriers, rms_norm) {
  cuda_model::without = cuda_model::lacking::barriers;
  rms_norm_both_ways(2, 600);
}

}  // namespace
