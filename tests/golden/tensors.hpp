// What adapters have in common: fixtures as tensors of the element type under test, and results as numbers.
#ifndef TIGON_TESTS_GOLDEN_TENSORS_HPP
#define TIGON_TESTS_GOLDEN_TENSORS_HPP

#include <cstdint>
#include <tigon/core/views.hpp>

#include "../support/golden.hpp"

namespace golden {

/// A contiguous matrix, or with one row a parameter.
template <class T>
struct matrix {
  std::vector<T> elements;
  std::size_t rows, cols;

  TIGON_NOINLINE matrix(std::size_t r, std::size_t c) : elements(r * c), rows(r), cols(c) {}
  TIGON_NOINLINE explicit matrix(const tensor& t) : matrix(t.rows(), t.cols()) {
    for (std::size_t k = 0; k < elements.size(); ++k) elements[k] = static_cast<T>(static_cast<float>(t.data[k]));
  }
  tigon::matrix_view<T> view() { return {elements.data(), rows, cols}; }
  operator tigon::matrix_view<const T>() const { return {elements.data(), rows, cols}; }
};

template <class T>
TIGON_NOINLINE std::vector<T> vector_of(const tensor& t) {
  if constexpr (tigon::element<T>)
    return matrix<T>(t).elements;
  else
    return {t.data.begin(), t.data.end()};
}

template <class T>
TIGON_NOINLINE values values_of(const std::vector<T>& elements) {
  return {elements.begin(), elements.end()};
}
template <class T>
values values_of(const matrix<T>& m) {
  return values_of(m.elements);
}

}  // namespace golden

#endif  // TIGON_TESTS_GOLDEN_TENSORS_HPP
