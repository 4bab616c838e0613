// Doors of backend cuda as functions of C, which peers.py calls with pointers of PyTorch: in bf16, or in
// TIGON_BENCH_TYPE, for .ci/cuda, which compiles them in f32 as well.
#ifndef TIGON_BENCH_GPU_DOORS_HPP
#define TIGON_BENCH_GPU_DOORS_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <cstdio>
#include <exception>

#define TIGON_BENCH_DOOR extern "C" __attribute__((visibility("default")))

#if !defined(TIGON_BENCH_TYPE)
#define TIGON_BENCH_TYPE tigon::bfloat16
#endif
using T = TIGON_BENCH_TYPE;
using B = tigon::backends::cuda;
using std::size_t;

/// The context of all calls: PyTorch's stream, and its memory.
tigon::context& context_of_calls();

inline tigon::matrix_view<T> matrix(void* p, size_t rows, size_t cols) { return {static_cast<T*>(p), rows, cols}; }
template <class E = T>
std::span<E> vector(void* p, size_t n) {
  return {static_cast<E*>(p), n};
}
inline std::span<const std::int64_t> labels(void* p, size_t n) { return {static_cast<const std::int64_t*>(p), n}; }
/// 0, or 1 and a sentence on stderr.
template <class F>
int call(F f) {
  try {
    f(context_of_calls());
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

#endif  // TIGON_BENCH_GPU_DOORS_HPP
