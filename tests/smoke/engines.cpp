// Six operators with NaN in each place of a row, and division and square root, on every engine. A program without test
// libraries: .ci/other_cpus compiles it for another processor and runs it in an emulator.
#include "support/nan_rows.hpp"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>
#include <tigon/backends/eigen/backend.hpp>
#include <tigon/backends/generic/backend.hpp>
#include <tigon/backends/highway/backend.hpp>
#if !defined(__riscv)  // xsimd 8 has no lanes there
#include <tigon/backends/xsimd/backend.hpp>
#endif

namespace {

int failed = 0;

/// Whether quotients and roots of the lanes are the ones that IEEE 754 requires.
template <class V>
bool rounds_once() {
  float x[V::size], y[V::size], quotient[V::size], root[V::size];
  for (int first = 0; first < 4096; ++first) {
    for (std::size_t i = 0; i < V::size; ++i)
      x[i] = static_cast<float>(first + 1), y[i] = 3 + 7 * static_cast<float>(i);
    if (first == 0) x[0] = std::numeric_limits<float>::infinity();
    const auto a = tigon::simd::load<V>(x), b = tigon::simd::load<V>(y);
    tigon::simd::store(a / b, quotient);
    tigon::simd::store(sqrt(a), root);
    for (std::size_t i = 0; i < V::size; ++i)
      if (quotient[i] != x[i] / y[i] || root[i] != std::sqrt(x[i])) return false;
  }
  return true;
}

template <class B, class T = float>
void check() {
  using V = tigon::simd::vec<typename B::engine, float>;
  const std::string lost = tigon::test::first_lost_nan_of_six<B, T>();
  std::printf("%-8s %2zu lanes of %s: %s\n", B::info.name.data(), V::size, tigon::element_name<T>().data(),
              lost.empty() ? "NaN stays in its row" : lost.c_str());
  failed += !lost.empty();
  if (rounds_once<V>()) return;
  std::printf("%-8s a quotient or a square root is not rounded once\n", B::info.name.data());
  ++failed;
}

}  // namespace

int main() {
  namespace backends = tigon::backends;
  check<backends::generic>();
  check<backends::eigen>();
  check<backends::highway>();
  check<backends::highway, tigon::bfloat16>();
#if !defined(__riscv)
  check<backends::xsimd>();
#endif
  return failed;
}
