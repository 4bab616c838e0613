// Sums over the rows of a program: every task adds its rows to partial rows of its own, and these are added up in
// pairs.
//
//   partial row       sums over the rows of a task, a number for every column; one for each parameter gradient
//   running total     of a task of more than plain_rows rows: its partial rows are added to compensated totals
#ifndef TIGON_ROWS_LANES_PARTIAL_SUMS_HPP
#define TIGON_ROWS_LANES_PARTIAL_SUMS_HPP

#include <tigon/backend/kernel.hpp>
#include <tigon/core/division.hpp>
#include <tigon/rows/lanes/loop.hpp>
#include <tigon/rows/lanes/row.hpp>
#include <tigon/simd/totals.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tigon::simd {
inline namespace TIGON_ABI {

namespace detail {

// Partial rows of one parameter gradient: fixed by shape. Many short sums also keep the rounding error small.
template <class B>
constexpr std::size_t partial_tasks(rows_of_all rows) {
  using tigon::detail::ceil_div;
  return ceil_div(rows.count, std::max<std::size_t>(ceil_div(rows.all, B::row.partials), 16));
}
// Rows that a task of so many adds up.
constexpr std::size_t rows_per_partial(std::size_t rows, std::size_t tasks) {
  return tasks == 0 ? 0 : tigon::detail::ceil_div(rows, tasks);
}

// Compensated totals of a task of more than plain_rows rows, behind its partial rows: high parts, then low parts.
// Columns are added slice by slice, a slice after every few groups of rows: all of them at once would leave memory
// idle.
template <class V>
class running_total {
  using A = typename V::value_type;

 public:
  // For partial rows of so many columns together, whole vectors; 0: there are no totals.
  running_total(std::size_t columns, std::size_t group) : columns_(columns) {
    if (columns == 0) return;
    const std::size_t groups = plain_rows / group, slices = std::min(groups, columns / V::size);
    groups_per_slice_ = groups / slices;
    width_ = tigon::detail::round_up(tigon::detail::ceil_div(columns, slices), V::size);
  }
  // After a group of rows.
  TIGON_INLINE void next(A* sums) {
    if (columns_ == 0 || ++groups_ < groups_per_slice_) return;
    groups_ = 0;
    A* const from = sums + first_;
    add_to_total<V, sums_after::zero>(from, from + columns_, from + 2 * columns_, std::min(width_, columns_ - first_));
    first_ = first_ + width_ < columns_ ? first_ + width_ : 0;
  }
  // After the last: the sums become the totals.
  void finish(A* sums) const {
    if (columns_ != 0) add_to_total<V, sums_after::total>(sums, sums + columns_, sums + 2 * columns_, columns_);
  }

 private:
  std::size_t columns_, width_ = 0, first_ = 0, groups_per_slice_ = 1, groups_ = 0;
};

// Against 4K aliasing, a load that waits for an earlier store whose address is equal modulo 4096: large arrays begin at
// a page, so partial rows are written half a page away from what is read beside them.
inline constexpr std::size_t page = 4096;
template <class A>
A* half_a_page_on(A* p) {
  const std::size_t at = reinterpret_cast<std::uintptr_t>(p) % page;
  return p + (page + page / 2 - at) % page / sizeof(A);
}

}  // namespace detail

template <class B, class A>
constexpr std::size_t partials_workspace(rows_of_all rows, std::size_t cols, std::size_t count) {
  return tigon::detail::most_of_parts<B>([=]<class P>() -> std::size_t {
    if constexpr (rows::sums_programs<P>) return P::rows::template partials_workspace<A>(rows.count, cols, count);
    const std::size_t tasks = detail::partial_tasks<P>(rows);
    const std::size_t sums = rows_per_sum(detail::rows_per_partial(rows.count, tasks));
    return workspace::bytes_for<A>(workspace::product(tasks, count, sums, workspace::padded<A>(cols)) +
                                   detail::page / sizeof(A));
  });
}

// A few rows less than `rows` may have more partial rows, most where each sums as many.
template <class B, class A>
constexpr std::size_t most_partials_workspace(std::size_t rows, std::size_t cols, std::size_t count) {
  return tigon::detail::most_of_parts<B>([=]<class P>() {
    return std::max(partials_workspace<P, A>(rows, cols, count),
                    partials_workspace<P, A>(rows - rows % P::row.partials, cols, count));
  });
}

namespace detail {

// out = the sums of the partial rows of all tasks, in pairs: a partial row of task t begins at first + t * stride.
template <class B, class A, class T>
struct partial_rows {
  using V = vec<typename B::engine, A>;
  const A* first;
  std::size_t tasks, stride;
  parameter_gradient<T> g;

  // Columns [begin, end).
  void combine(std::size_t begin, std::size_t end) const {
    if (g.out.data == nullptr) return;
    constexpr std::size_t U = 4, N = V::size;
    for_columns<U * N, N>(end - begin, [&](std::size_t j, auto ignore) TIGON_LAMBDA {
      strip<vectors_of_step<decltype(ignore), U>>(begin + j, ignore);
    });
  }

 private:
  // U vectors of columns, or what is left of one.
  template <std::size_t U, class Ignore>
  TIGON_INLINE void strip(std::size_t j, Ignore ignore) const {
    using vectors = pack<V, U>;
    const auto add = [](vectors& to, const vectors& from)
                         TIGON_LAMBDA { unrolled<U>([&](auto u) TIGON_LAMBDA { to.v[u] = from.v[u] + to.v[u]; }); };
    // Binary counter: level l holds the sum of 2^l consecutive tasks.
    vectors level[std::bit_width(B::row.partials)], total;
    std::size_t used = 0;
    for (std::size_t task = 0; task < tasks; ++task) {
      vectors sum;
      const A* const from = first + task * stride + j;
      unrolled<U>([&](auto u) TIGON_LAMBDA { sum.v[u] = load<V>(from + u * V::size); });
      for (std::size_t carry = task; (carry & 1) != 0; carry >>= 1) add(sum, level[--used]);
      level[used++] = sum;
    }
    unrolled<U>([&](auto u) TIGON_LAMBDA { total.v[u] = V(A(0)); });
    while (used > 0) add(total, level[--used]);
    unrolled<U>([&](auto u) TIGON_LAMBDA {
      T* const to = g.out.data + j + u * V::size;
      store(g.mode == gradient::accumulate ? load<V>(to, ignore) + total.v[u] : total.v[u], to, ignore);
    });
  }
};

// The k-th gradient is made of the k-th partial rows; `sums` rows a task.
template <class B, class A, class... T>
void combine_partial_rows(context& ctx, std::size_t cols, const A* partials, std::size_t tasks, std::size_t sums,
                          adds_to<T...> gradients) {
  const std::size_t row = workspace::padded<A>(cols);
  constexpr std::size_t width = 1024;  // columns of a task: a whole number of vectors of every engine
  static_assert(tigon::detail::loops_on_host<B>());
  ctx.executor().run(tigon::detail::ceil_div(cols, width), [&](std::size_t task, std::size_t) {
    [[maybe_unused]] const std::size_t begin = task * width, end = std::min(cols, begin + width);
    std::size_t k = 0;
    const auto combine = [&]<class G>(parameter_gradient<G> g) {
      partial_rows<B, A, G>{partials + k++ * row, tasks, sums * row, g}.combine(begin, end);
    };
    unpacked([&](auto... g) { (combine(g), ...); }, gradients.g);
  });
}

}  // namespace detail
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_LANES_PARTIAL_SUMS_HPP
