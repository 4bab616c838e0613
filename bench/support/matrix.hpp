// A dense matrix in a recycled buffer.
#ifndef TIGON_BENCH_SUPPORT_MATRIX_HPP
#define TIGON_BENCH_SUPPORT_MATRIX_HPP

#include <tigon/core/views.hpp>

#include "support/buffers.hpp"

#include <cstddef>
#include <cstdint>

namespace tigon_bench {

template <class T>
struct matrix {
  std::size_t rows = 0, cols = 0;
  buffer<T> values;

  matrix() = default;
  matrix(std::size_t r, std::size_t c) : rows(r), cols(c), values(r * c) {}

  tigon::matrix_view<T> view() const { return {values.data(), rows, cols}; }
  std::size_t bytes() const { return values.bytes(); }
  void fill(double low, double high, std::uint64_t seed) const { fill_uniform(values.span(), low, high, seed); }
};

template <class T>
matrix<T> uniform_matrix(std::size_t rows, std::size_t cols, double low, double high, std::uint64_t seed) {
  matrix<T> m(rows, cols);
  m.fill(low, high, seed);
  return m;
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_MATRIX_HPP
