// Operators on every backend. Compiled twice, with different -m flags, into one program.
#include "two_targets.hpp"

#include <cmath>
#include <tigon/backend/mix.hpp>
#include <tigon/backends/eigen/backend.hpp>
#include <tigon/backends/generic/backend.hpp>
#include <tigon/backends/highway/backend.hpp>
#include <tigon/backends/xsimd/backend.hpp>
#include <tigon/tigon.hpp>

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
  const auto see = [&](double got, double want) {
    worst = std::fmax(worst, std::abs(got - want) / (1 + std::abs(want)));
  };

  if constexpr (std::same_as<T, float>) {  // its names in 16 bits: all_doors.cpp
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
  }

  tigon::softmax_forward<B>(mx, my);
  for (std::size_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < cols; ++j) sum += std::exp(double(x[i * cols + j]));
    for (std::size_t j = 0; j < cols; ++j) see(y[i * cols + j], std::exp(double(x[i * cols + j])) / sum);
  }

  T c[rows * rows];
  tigon::gemm<B>(mx, mx, tigon::matrix_view<T>(c, rows, rows), {.b = tigon::transpose::yes});
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t k = 0; k < rows; ++k) {
      double sum = 0;
      for (std::size_t j = 0; j < cols; ++j) sum += double(x[i * cols + j]) * x[k * cols + j];
      see(c[i * rows + k], sum);
    }
  return worst;
}

/// Operators that check what they read in data, and those that are made of others; all probabilities are equal.
template <class B>
double error_of_losses() {
  constexpr std::size_t vocab = 5;
  float table[vocab * cols] = {}, x[rows * cols], dx[rows * cols], dtable[vocab * cols], logits[rows * vocab] = {};
  float loss[1], lse[rows];
  const std::int32_t ids[rows] = {4, 0, 2};
  const tigon::matrix_view<float> mt(table, vocab, cols), mx(x, rows, cols), mdx(dx, rows, cols),
      mdt(dtable, vocab, cols), ml(logits, rows, vocab);
  double worst = 0;
  const auto see = [&](double got, double want) { worst = std::fmax(worst, std::abs(got - want)); };

  tigon::embedding_forward<B>(mt, ids, mx);
  tigon::fused_linear_cross_entropy_forward<B>(tigon::linear_layer{mx, mt}, ids, {loss}, {mdx, mdt});
  see(loss[0], std::log(double(vocab)));
  tigon::cross_entropy_forward<B>(ml, ids, loss, ml);
  see(loss[0], std::log(double(vocab)));
  see(logits[4], (0.2 - 1) / rows);

  const auto heads = [](float* p) { return tigon::heads_view<float>::of_heads(p, 1, 1, rows, cols - 1); };
  float cosine[rows * cols], sine[rows * cols] = {};
  for (float& v : cosine) v = 1;
  tigon::rope_forward<B>(heads(x), heads(x), tigon::matrix_view<const float>(cosine, rows, (cols - 1) / 2),
                         tigon::matrix_view<const float>(sine, rows, (cols - 1) / 2), heads(dx), heads(dtable));
  tigon::attention_forward<B>(heads(x), heads(x), heads(x), heads(dx), lse);
  for (std::size_t i = 0; i < rows; ++i) see(lse[i], std::log(double(i + 1)));
  return worst;
}

template <class B>
answer answer_of() {
  double error = error_of<B, float>();
  if constexpr (std::same_as<B, tigon::backends::highway>) {
    error = std::fmax(error, error_of<B, tigon::bfloat16>() * 1e-4);  // 16 bits: 4e-3, not 4e-7
    error = std::fmax(error, error_of_losses<B>());
  }
  return {B::info.name.data(), TIGON_STRING(TIGON_TARGET), tigon::simd::vec<typename B::engine, float>::size, error};
}

}  // namespace

void TIGON_TESTS_LINK_NAME(answer (&answers)[backends_compared]) {
  namespace tb = tigon::backends;
  answers[0] = answer_of<tb::generic>();
  answers[1] = answer_of<tb::eigen>();
  answers[2] = answer_of<tb::xsimd>();
  answers[3] = answer_of<tb::highway>();
  answers[4] = answer_of<tigon::mix<tb::highway, tigon::from<tb::xsimd, tigon::op::rms_norm, tigon::op::softmax>,
                                    tigon::from<tb::generic, tigon::op::gemm>>>();
}
