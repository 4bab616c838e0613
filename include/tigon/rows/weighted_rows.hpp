// Operand of row programs: a weighted sum of rows that lie a fixed distance apart, as many as are known at run time.
#ifndef TIGON_ROWS_WEIGHTED_ROWS_HPP
#define TIGON_ROWS_WEIGHTED_ROWS_HPP

#include <tigon/rows/sources.hpp>

#include <algorithm>
#include <cstddef>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// Column j is sum_t weight[t * weight_step] * row[t * row_step + j] over t = 0, 1, ..., count - 1, in this order. Weights
/// have the accumulator type of T. 64 terms are added one after the other, and then their sums: the rounding error grows
/// with the number of these.
template <class T>
struct weighted_rows {
  using A = accumulator_t<T>;
  const T* row;
  std::ptrdiff_t row_step;
  const A* weight;
  std::ptrdiff_t weight_step;
  std::size_t count;
};

namespace detail {

template <class T>
struct weighted_source {
  static constexpr std::size_t plain = 64;
  using element_type = T;
  weighted_rows<T> of;
  template <class V>
  TIGON_INLINE V load(std::size_t j, std::size_t more = 0) const {
    return sum<V>([=](const T* row) TIGON_LAMBDA { return simd::load<V>(row + j + more); });
  }
  template <class V>
  TIGON_INLINE V load_n(std::size_t j, std::size_t n) const {
    return sum<V>([=](const T* row) TIGON_LAMBDA { return simd::load_n<V>(row + j, n); });
  }
  TIGON_INLINE const void* begin() const { return nullptr; }
  template <std::size_t, int>
  TIGON_INLINE void prefetch(std::size_t) const {}

 private:
  template <class V, class Load>
  TIGON_INLINE V sum(Load load_from) const {
    V total(typename V::value_type(0));
    const T* row = of.row;
    const auto* weight = of.weight;
    for (std::size_t left = of.count; left != 0;) {
      const std::size_t some = std::min(left, plain);
      V part(typename V::value_type(0));
      for (std::size_t t = 0; t < some; ++t, row += of.row_step, weight += of.weight_step)
        part = fma(V(*weight), load_from(row), part);
      total += part;
      left -= some;
    }
    return total;
  }
};

template <class B, class T>
TIGON_INLINE weighted_source<T> source(weighted_rows<T> rows, place at) {
  rows.row += at.column;
  return {rows};
}

}  // namespace detail
}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::weighted_rows;
}  // namespace tigon

#endif  // TIGON_ROWS_WEIGHTED_ROWS_HPP
