// Rows that are reduced below their maximum, part by part, each below a top of its own: softmax's forward.
#ifndef TIGON_OPS_SOFTMAX_BELOW_MAX_HPP
#define TIGON_OPS_SOFTMAX_BELOW_MAX_HPP

#include <tigon/backend/caches.hpp>
#include <tigon/core/division.hpp>
#include <tigon/rows/row.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <limits>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Sums over the parts of a row, each below its top.
template <class A>
struct part_sums {
  static constexpr std::size_t most = 64;
  A top[most], sum[most];
  std::size_t count = 0;
  A highest = std::numeric_limits<A>::lowest();  ///< of the tops so far

  /// What the next part is taken below if this is its maximum.
  template <class P>
  TIGON_INLINE A reference(const P& p, A largest) const {
    return p.exceeds(largest, highest) ? largest : highest;
  }
  TIGON_INLINE void add(A t, A s) {
    top[count] = highest = t;
    sum[count++] = s;
  }
  /// The value that map takes for a part comes in the place of its sum.
  template <class P>
  TIGON_INLINE void finish(const P& p) {
    A total(0);
    for (std::size_t k = 0; k < count; ++k) {
      top[k] = top[k] == highest ? A(1) : p.weight(top[k], highest);
      total += top[k] * sum[k];
    }
    for (std::size_t k = 0; k < count; ++k) sum[k] = p.finish(total, top[k]);
  }
  TIGON_INLINE A value(std::size_t k) const { return sum[k]; }
};

/// The two steps of a part of a row, which is a worker on some columns of it.
template <class P, element T>
struct below_max {
  using A = accumulator_t<T>;
  P program;
  matrix_view<const T> x;
  matrix_view<T> y;
  bool in_place, once;  ///< y is x; and what is kept takes the place of x, which can be read once

  /// What the reduction made of each column.
  template <class Part>
  TIGON_INLINE vector_view<A> kept(const Part& part, vector_view<A> scratch) const {
    if constexpr (std::same_as<T, A>)
      if (once) return {y.row(part.i), part.cols};
    return scratch;
  }
  /// The reference is the largest number of the parts so far. Where this part has a much larger one, it is reduced
  /// again. In place it cannot be, so its maximum is found first.
  template <class Part>
  TIGON_INLINE void reduce(const Part& part, vector_view<A> scratch, part_sums<A>& sums) const {
    A top = sums.highest;
    const bool looked = once || sums.count == 0;
    if (looked) top = sums.reference(program, part.max(reads(x), [](auto v) { return v; }));
    for (;;) {
      const auto of = program;
      const auto [sum, largest] =
          part.template map_sum<1>(reads(cached{x, looked}), writes(kept(part, scratch)), [=](auto v) {
            const auto e = of.reduce(top, v);
            return pack{e, e, v};
          });
      const A wanted = sums.reference(program, largest);
      if (once || !(wanted > top)) return sums.add(top, sum);
      top = wanted;
    }
  }
  template <class Part>
  TIGON_INLINE void map(const Part& part, vector_view<A> scratch, A value) const {
    const auto of = program;
    part.map(reads(kept(part, scratch)), writes(cached{y, in_place}), [=](auto e) { return of.map(value, e); });
  }
};

/// Columns of a part: no more than so many parts a row, and whole steps of a loop.
constexpr std::size_t columns_of_part(std::size_t cols, std::size_t wanted, std::size_t most_parts) {
  constexpr std::size_t step = 256;
  return std::max(wanted, ceil_div(cols, most_parts * step) * step);
}
/// Rows of a task, of about 2^16 elements: the first and the last of them overlap no other.
constexpr std::size_t rows_of_task(std::size_t rows, std::size_t cols) {
  constexpr std::size_t elements = std::size_t{1} << 16, balanced = 128;
  const std::size_t most = std::max<std::size_t>(elements / cols, 1), least = std::max<std::size_t>(8192 / cols, 8);
  return std::max(std::min(std::max(ceil_div(rows, balanced), least), most), std::min<std::size_t>(8, rows / balanced));
}

/// Row programs below the maximum of their row, whose map takes what the reduction made of each column:
/// softmax_program. A row is taken in parts. Each is reduced below a top of its own, the largest number so far or one
/// that this does not exceed; `weight` is by what its sum is multiplied below the row's highest top, and 1 for that
/// one.
///
/// Where two rows and what is kept of them stay in L2, a part of one row is mapped, then a part of the next row is
/// reduced, and so on: stores drain while lanes compute. Results do not depend on it.
template <class B, class P, element T>
void map_below_max(context& ctx, P program, matrix_view<const T> x, matrix_view<T> y) {
  using A = accumulator_t<T>;
  const bool in_place = x.data == y.data, once = std::same_as<T, A> && in_place;
  const below_max<P, T> steps{program, x, y, in_place, once};
  const std::size_t rows = x.rows, cols = x.cols, per_task = rows_of_task(rows, cols);
  const std::size_t width = columns_of_part(cols, columns_per_block<B>(once), part_sums<A>::most);
  const std::size_t parts = ceil_div(cols, width);
  const bool overlap = !once && cols * sizeof(A) <= std::size_t{1} << 18;
  const auto part_of = [=](const auto& task, std::size_t i, std::size_t k)
                           TIGON_LAMBDA { return task.on(i).part(k * width, std::min(width, cols - k * width)); };
  for_rows<B, A>(ctx, ceil_div(rows, per_task), cols, {.scratch = 2, .row_tasks = true}, [=] TIGON_FN(auto task) {
    const std::size_t begin = task.i * per_task, end = std::min(rows, begin + per_task);
    part_sums<A> sums[2];
    // Row i is reduced and, if they overlap, row i - 1 is mapped.
    for (std::size_t i = begin; i < end + (overlap ? 1 : 0); ++i) {
      const bool reduces = i < end, maps = overlap && i > begin;
      part_sums<A>&next = sums[i % 2], &last = sums[(i + 1) % 2];
      const vector_view<A> of_next = task.scratch(i % 2), of_last = task.scratch((i + 1) % 2);
      if (reduces) next = part_sums<A>{};
      for (std::size_t k = 0; k < parts; ++k) {
        if (reduces) steps.reduce(part_of(task, i, k), of_next, next);
        if (maps) steps.map(part_of(task, i - 1, k), of_last, last.value(k));
      }
      if (reduces) next.finish(program);
      if (!overlap)
        for (std::size_t k = parts; k-- > 0;) steps.map(part_of(task, i, k), of_next, next.value(k));
    }
  });
}
/// Bytes that it takes from the workspace.
template <class B, class A>
std::size_t below_max_workspace(std::size_t cols, const context& ctx) {
  return simd::scratch_workspace<B, A>(cols, 2, ctx);
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_SOFTMAX_BELOW_MAX_HPP
