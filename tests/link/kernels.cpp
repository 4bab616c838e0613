// Operators on every backend. Compiled twice, with different -m flags, into one program.
#include "two_targets.hpp"

#include <cmath>
#include <tigon/backends/eigen/backend.hpp>
#include <tigon/backends/generic/backend.hpp>
#include <tigon/backends/highway/backend.hpp>
#include <tigon/backends/xsimd/backend.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>
#if __has_include(<tigon/gemm/gemm.hpp>)
#include <tigon/gemm/gemm.hpp>
#endif
#if __has_include(<tigon/losses/fused_linear_cross_entropy.hpp>)
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#endif

namespace {

constexpr std::size_t rows = 3, cols = 37;

template <class B, class T>
double error_of() {
  T x[rows * cols], y[rows * cols], dx[rows * cols], w[cols], dw[cols];
  float rstd[rows];
  for (std::size_t i = 0; i < rows * cols; ++i) x[i] = T(static_cast<float>(i % 11) - 4.5f);
  for (T& v : w) v = T(1.5f);
  const tigon::matrix_view<T> mx(x, rows, cols), my(y, rows, cols), mdx(dx, rows, cols);
  double worst = 0;
  const auto see = [&](double got, double want) { worst = std::fmax(worst, std::abs(got - want) / (1 + std::abs(want))); };

  tigon::rms_norm_forward<B>(mx, w, my, rstd);
  tigon::rms_norm_backward<B>(my, mx, w, rstd, mdx, dw);
  double dw0 = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    double square = 0;
    for (std::size_t j = 0; j < cols; ++j) square += std::pow(double(x[i * cols + j]), 2);
    const double r = 1 / std::sqrt(square / cols + 1e-6);
    for (std::size_t j = 0; j < cols; ++j) see(y[i * cols + j], x[i * cols + j] * r * 1.5);
    dw0 += double(y[i * cols]) * x[i * cols] * r;
  }
  see(dw[0], dw0);

  tigon::softmax_forward<B>(mx, my);
  for (std::size_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < cols; ++j) sum += std::exp(double(x[i * cols + j]));
    for (std::size_t j = 0; j < cols; ++j) see(y[i * cols + j], std::exp(double(x[i * cols + j])) / sum);
  }
#if defined(TIGON_GEMM_GEMM_HPP)
  T c[rows * rows];
  tigon::gemm<B>(mx, mx, tigon::matrix_view<T>(c, rows, rows), {.b = tigon::transpose::yes});
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t k = 0; k < rows; ++k) {
      double sum = 0;
      for (std::size_t j = 0; j < cols; ++j) sum += double(x[i * cols + j]) * x[k * cols + j];
      see(c[i * rows + k], sum);
    }
#endif
  return worst;
}

template <class B>
answer answer_of() {
  return {B::info.name.data(), TIGON_STRING(TIGON_TARGET), tigon::simd::vec<typename B::engine, float>::size,
          std::fmax(error_of<B, float>(), error_of<B, tigon::bfloat16>() * 1e-4)};  // 16 bits: 4e-3, not 4e-7
}

}  // namespace

void TIGON_TESTS_LINK_NAME(answer (&answers)[backends_compared]) {
  namespace tb = tigon::backends;
  answers[0] = answer_of<tb::generic>();
  answers[1] = answer_of<tb::eigen>();
  answers[2] = answer_of<tb::xsimd>();
  answers[3] = answer_of<tb::highway>();
}
