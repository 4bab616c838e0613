// One program for many CPUs. It runs the kernels of the widest instruction set that this one has;
// TIGON_INSTRUCTION_SET=x86-64-v3 forces another.
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include "kernels_multi_arch.hpp"

int main() try {
  constexpr std::size_t rows = 5, cols = 37;
  std::vector<float> x(rows * cols), y(x.size()), square(rows * rows), transposed(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 11) - 4.5f;
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j) transposed[j * rows + i] = x[i * cols + j];

  const kernel_table& run = kernels();
  run.softmax(x.data(), y.data(), rows, cols);
  run.product(x.data(), transposed.data(), square.data(), rows, rows, cols);

  double worst = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    double sum = 0, product = 0;
    for (std::size_t j = 0; j < cols; ++j) sum += std::exp(double(x[i * cols + j]));
    for (std::size_t j = 0; j < cols; ++j) {
      const double wanted = std::exp(double(x[i * cols + j])) / sum;
      worst = std::fmax(worst, std::abs(y[i * cols + j] - wanted) / wanted);
      product += double(x[j]) * x[i * cols + j];
    }
    worst = std::fmax(worst, std::abs(square[i] - product) / (1 + std::abs(product)));
  }

  std::printf("%s: %s, %zu lanes\n%s\n", kernels_instruction_set(), run.instruction_set, run.lanes,
              worst < 2e-6 ? "right" : "WRONG");
  return worst < 2e-6 ? 0 : 1;
} catch (const std::exception& e) {
  std::printf("%s\n", e.what());
  return 1;
}
