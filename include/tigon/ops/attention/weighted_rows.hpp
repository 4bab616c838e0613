// Operand of row programs: a weighted sum of rows that lie a fixed distance apart, as many as are known at run time.
#ifndef TIGON_OPS_ATTENTION_WEIGHTED_ROWS_HPP
#define TIGON_OPS_ATTENTION_WEIGHTED_ROWS_HPP

#include <tigon/core/element.hpp>
#include <tigon/simd/packs.hpp>
#include <tigon/simd/vec.hpp>

#include <algorithm>
#include <cstddef>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Column j is sum_t weight[t * weight_step] * row[t * row_step + j] over t = 0, 1, ..., count - 1, in this order.
/// Weights have the accumulator type of T. 64 terms are added one after the other, and then their sums: the rounding
/// error grows with the number of these. It loads itself, as an operand of an operator's own does (rows/row.hpp).
template <class T>
struct weighted_rows {
  using element_type = T;
  using A = accumulator_t<T>;
  const T* row;
  std::ptrdiff_t row_step;
  const A* weight;
  std::ptrdiff_t weight_step;
  std::size_t count;

  TIGON_INLINE weighted_rows source(std::size_t, std::size_t column) const {
    return {row + column, row_step, weight, weight_step, count};
  }
  template <class V, class Ignore = simd::ignore_none>
  TIGON_INLINE V load(std::size_t j, std::size_t more = 0, Ignore ignore = {}) const {
    return sum<V>([=](const T* from) TIGON_LAMBDA { return simd::load<V>(from + j + more, ignore); });
  }
  TIGON_INLINE const void* begin() const { return nullptr; }
  template <std::size_t, int>
  TIGON_INLINE void prefetch(std::size_t) const {}

 private:
  template <class V, class Load>
  TIGON_INLINE V sum(Load load_from) const {
    constexpr std::size_t plain = 64;
    V total(typename V::value_type(0));
    const T* from = row;
    const auto* by = weight;
    for (std::size_t left = count; left != 0;) {
      const std::size_t some = std::min(left, plain);
      V part(typename V::value_type(0));
      for (std::size_t t = 0; t < some; ++t, from += row_step, by += weight_step)
        part = fma(V(*by), load_from(from), part);
      total += part;
      left -= some;
    }
    return total;
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_WEIGHTED_ROWS_HPP
