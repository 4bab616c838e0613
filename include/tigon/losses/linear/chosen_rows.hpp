// Rows by their index: which of a matrix a loss is made of, and where their results go.
#ifndef TIGON_LOSSES_LINEAR_CHOSEN_ROWS_HPP
#define TIGON_LOSSES_LINEAR_CHOSEN_ROWS_HPP

#include <tigon/backend/host.hpp>
#include <tigon/core/division.hpp>
#include <tigon/core/views.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Rows that a loss is made of, in ascending order: row[0], ..., row[n - 1], or without `row` the first n, which are
/// all.
struct chosen_rows {
  const std::size_t* row = nullptr;
  std::size_t n = 0;

  constexpr chosen_rows() = default;
  constexpr chosen_rows(std::size_t all) : n(all) {}
  constexpr chosen_rows(const std::size_t* of, std::size_t count) : row(of), n(count) {}
  constexpr bool all() const { return row == nullptr; }
};

/// m, so moved that its row i is row[i]; m itself without `row`. Because row[i] >= i it begins within m.
template <class T>
TIGON_INLINE matrix_view<T> moved_to(matrix_view<T> m, const std::size_t* row, std::size_t i) {
  if (row != nullptr && m.data != nullptr) m.data += (row[i] - i) * m.row_stride;
  return m;
}

/// Rows row[0] < ... < row[n - 1] of m: its first n. From the last to the first, because row[k] >= k.
template <class B, element T>
void spread_rows(matrix_view<T> m, chosen_rows to, context& ctx) {
  constexpr std::size_t width = 256;
  for_host_tasks<B>(ctx, ceil_div(m.cols, width), [=](std::size_t task, std::size_t) {
    const std::size_t first = task * width, cols = std::min(width, m.cols - first);
    for (std::size_t k = to.n; k-- > 0 && to.row[k] != k;)
      std::memcpy(static_cast<void*>(m.row(to.row[k]) + first), m.row(k) + first, cols * sizeof(T));
  });
}
/// The same of numbers, and `other` in the places between.
template <class T>
void spread_numbers(T* numbers, std::size_t count, chosen_rows to, T other) {
  if (numbers == nullptr || to.all()) return;
  std::size_t i = count;
  for (std::size_t k = to.n; k-- > 0;) {
    while (--i > to.row[k]) numbers[i] = other;
    numbers[i] = numbers[k];
  }
  std::fill_n(numbers, i, other);
}

/// Zeros in the rows [begin, end) of m that are not among row[0] < row[1] < ... < row[n - 1].
template <element T>
void clear_other_rows(matrix_view<T> m, std::size_t begin, std::size_t end, const std::size_t* row, std::size_t n) {
  for (std::size_t k = 0; k <= n; ++k) {
    const std::size_t next = k < n ? row[k] : end;
    for (; begin < next; ++begin) std::memset(static_cast<void*>(m.row(begin)), 0, m.cols * sizeof(T));
    ++begin;
  }
}
/// Zeros in all rows of m that are not chosen.
template <class B, element T>
void clear_other_rows(matrix_view<T> m, chosen_rows kept, context& ctx) {
  if (m.data == nullptr || kept.all()) return;
  constexpr std::size_t some = 64;
  for_host_tasks<B>(ctx, ceil_div(m.rows, some), [=](std::size_t task, std::size_t) {
    const std::size_t begin = task * some, end = std::min(m.rows, begin + some);
    const std::size_t *last = kept.row + kept.n, *first = std::lower_bound(kept.row, last, begin);
    clear_other_rows(m, begin, end, first, static_cast<std::size_t>(std::lower_bound(first, last, end) - first));
  });
}

/// The rows of m that are chosen are its first rows: they go to their places, and the others become 0.
template <class B, element T>
void put_chosen(matrix_view<T> m, chosen_rows kept, context& ctx) {
  if (m.data == nullptr || kept.all()) return;
  spread_rows<B>(m, kept, ctx);
  clear_other_rows<B>(m, kept, ctx);
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_LINEAR_CHOSEN_ROWS_HPP
