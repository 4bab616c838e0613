// Six operators with NaN in each place of a row, and division and square root, on every engine; with
// TIGON_SMOKE_BACKEND, on the one backend that it names. A program without test libraries: .ci/other_cpus compiles it
// for another processor and runs it in an emulator.
#include "support/nan_rows.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#if !defined(TIGON_SMOKE_BACKEND)
#include <tigon/backends/eigen/backend.hpp>
#include <tigon/backends/generic/backend.hpp>
#include <tigon/backends/highway/backend.hpp>
#if !defined(__riscv)  // xsimd 8 has no lanes there
#include <tigon/backends/xsimd/backend.hpp>
#endif
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

/// A sum over the bits of what operators compute.
template <class B>
std::uint32_t bits_of_results() {
  tigon::test::table<float> x = tigon::test::table<float>::drawn(1), y = x, z = x;
  tigon::softmax_forward<B>(tigon::matrix_view<const float>(x), tigon::matrix_view<float>(y));
  tigon::swiglu_forward<B>(tigon::matrix_view<const float>(x), tigon::matrix_view<const float>(y),
                           tigon::matrix_view<float>(z));
  std::uint32_t sum = 2166136261u;
  for (const auto* out : {&y, &z})
    for (const float v : out->v) {
      std::uint32_t word;
      std::memcpy(&word, &v, sizeof word);
      sum = (sum ^ word) * 16777619u;
    }
  return sum;
}

template <class B, class T = float>
void check() {
  using V = tigon::simd::vec<typename B::engine, float>;
  // Every CPU of 64 bits has registers, whatever its flags are.
  static_assert(V::size >= 4 || B::info.name == "generic" || B::info.name == "eigen");
  const std::string lost = tigon::test::first_lost_nan_of_six<B, T>();
  std::printf("%-8s %2zu lanes of %s (%s): %s, bits %08x\n", B::info.name.data(), V::size,
              tigon::element_name<T>().data(), std::string(B::engine::target).c_str(),
              lost.empty() ? "NaN stays in its row" : lost.c_str(), static_cast<unsigned>(bits_of_results<B>()));
  failed += !lost.empty();
  if (rounds_once<V>()) return;
  std::printf("%-8s a quotient or a square root is not rounded once\n", B::info.name.data());
  ++failed;
}

}  // namespace

int main() {
  namespace backends = tigon::backends;
#if defined(TIGON_SMOKE_BACKEND)
  check<backends::TIGON_SMOKE_BACKEND>();
  check<backends::TIGON_SMOKE_BACKEND, tigon::bfloat16>();
#else
  check<backends::generic>();
  check<backends::eigen>();
  check<backends::highway>();
  check<backends::highway, tigon::bfloat16>();
#if !defined(__riscv)
  check<backends::xsimd>();
#endif
#endif
  return failed;
}
