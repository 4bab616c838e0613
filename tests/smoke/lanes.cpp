// The default backend in the smallest program that shows its lanes: forward passes of two operators, a NaN that stays
// in its row, quotients and roots that are rounded once, a sum over the bits of results, and, with TIGON_SMOKE_PRODUCT,
// a product. .ci/versions and .ci/platforms compile it many times.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#if defined(__CUDACC__)  // what nvcc parses is every header
#include <tigon/tigon.hpp>
#elif defined(TIGON_SMOKE_PRODUCT)
#include <tigon/gemm/gemm.hpp>
#endif
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu.hpp>

namespace {

using engine = tigon::default_backend::engine;
using lanes = tigon::simd::vec<engine, float>;

// Every CPU of 64 bits has registers, whatever its flags are.
static_assert(lanes::size >= 4 || tigon::default_backend::info.name == "generic" || engine::name == "eigen");

constexpr std::size_t rows = 3, cols = 70;

bool rounds_once() {
  float x[lanes::size], y[lanes::size], quotient[lanes::size], root[lanes::size];
  for (int first = 0; first < 4096; ++first) {
    for (std::size_t i = 0; i < lanes::size; ++i)
      x[i] = static_cast<float>(first + 1), y[i] = 3 + 7 * static_cast<float>(i);
    if (first == 0) x[0] = std::numeric_limits<float>::infinity();
    const auto a = tigon::simd::load<lanes>(x), b = tigon::simd::load<lanes>(y);
    tigon::simd::store(a / b, quotient);
    tigon::simd::store(sqrt(a), root);
    for (std::size_t i = 0; i < lanes::size; ++i)
      if (quotient[i] != x[i] / y[i] || root[i] != std::sqrt(x[i])) return false;
  }
  return true;
}

struct results {
  float softmax[rows * cols], swiglu[rows * cols], product[rows * rows];
};

results compute(const float* x) {
  results r{};
  const tigon::matrix_view<const float> in(x, rows, cols);
  tigon::softmax_forward(in, tigon::matrix_view<float>(r.softmax, rows, cols));
  tigon::swiglu_forward(in, in, tigon::matrix_view<float>(r.swiglu, rows, cols));
#if defined(TIGON_SMOKE_PRODUCT)
  tigon::gemm(in, in, tigon::matrix_view<float>(r.product, rows, rows), {.b = tigon::transpose::yes});
#endif
  return r;
}

/// What a NaN in column `column` of row 1 must not do, or nothing.
const char* lost_nan(float* x, const results& clean, std::size_t column) {
  const float kept = x[cols + column];
  x[cols + column] = std::numeric_limits<float>::quiet_NaN();
  const results r = compute(x);
  x[cols + column] = kept;
  for (std::size_t i = 0; i < rows * cols; ++i) {
    if (std::isnan(r.softmax[i]) != (i / cols == 1)) return "softmax loses a NaN, or spreads it";
    if (std::isnan(r.swiglu[i]) != (i == cols + column)) return "swiglu loses a NaN, or spreads it";
    if (i / cols != 1 && r.softmax[i] != clean.softmax[i]) return "softmax of another row differs";
  }
  return nullptr;
}

bool right(const float* x, const results& r) {
  for (std::size_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < cols; ++j) {
      const double v = x[i * cols + j], y = v * v / (1 + std::exp(-v));
      sum += r.softmax[i * cols + j];
      if (std::abs(r.swiglu[i * cols + j] - y) > 1e-6 * (1 + std::abs(y))) return false;
    }
    if (std::abs(sum - 1) > 1e-6) return false;
#if defined(TIGON_SMOKE_PRODUCT)
    for (std::size_t k = 0; k < rows; ++k) {
      double product = 0;
      for (std::size_t j = 0; j < cols; ++j)
        product += static_cast<double>(x[i * cols + j]) * static_cast<double>(x[k * cols + j]);
      if (std::abs(r.product[i * rows + k] - product) > 1e-5 * (1 + std::abs(product))) return false;
    }
#endif
  }
  return true;
}

}  // namespace

int main() {
  float x[rows * cols];
  for (std::size_t i = 0; i < rows * cols; ++i) x[i] = static_cast<float>(i * 37 % 101) / 16 - 3;
  const results clean = compute(x);
  const char* wrong = right(x, clean) ? nullptr : "a result is wrong";
  constexpr std::size_t columns[] = {0, 5, 31, 63, 66, 69};
  for (const std::size_t column : columns)
    if (wrong == nullptr) wrong = lost_nan(x, clean, column);
  if (wrong == nullptr && !rounds_once()) wrong = "a quotient or a square root is not rounded once";
  std::uint32_t sum = 2166136261u;
  for (const float* out : {clean.softmax, clean.swiglu})
    for (std::size_t i = 0; i < rows * cols; ++i) {
      std::uint32_t word;
      std::memcpy(&word, &out[i], sizeof word);
      sum = (sum ^ word) * 16777619u;
    }
  std::printf("%-8s %2zu lanes of f32 (%s): %s, bits %08x\n", tigon::default_backend::info.name.data(), lanes::size,
              std::string(engine::target).c_str(), wrong == nullptr ? "passes" : wrong, static_cast<unsigned>(sum));
  return wrong == nullptr ? 0 : 1;
}
