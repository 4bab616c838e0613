// The driver of programs: rows are reduced, and mapped R at a time; every row may add to sums over all rows.
#ifndef TIGON_ROWS_LANES_GRADIENTS_HPP
#define TIGON_ROWS_LANES_GRADIENTS_HPP

#include <tigon/rows/lanes/declared.hpp>
#include <tigon/rows/lanes/partial_sums.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// What few rows are computed by: loops of one vector, which compile in a fraction of the time.
template <class B>
struct for_few_rows : B {
  static constexpr row_tuning row = [](row_tuning of) { return of.unroll = 1, of; }(B::row);
};

// The tasks of a program with K sums over the rows: a reduction, and a declared_map or a function of a row.
template <class B, class A, class Reduction, class F, std::size_t K>
class program_tasks {
  using V = vec<typename B::engine, A>;
  using side_work = decltype(std::declval<Reduction>().template side_work<B>(0, 0, nullptr));
  static constexpr program_plan plan = plan_of<B, program_shape<V, Reduction, F>(K)>;
  static constexpr bool shares_loop = plan.order == row_order::lookahead;
  static constexpr std::size_t R = plan.rows, most = plan.group_rows;
  static_assert(most <= plain_rows);
  using worker = row_worker<B, A, std::conditional_t<shares_loop, side_work, prefetching<plan.map_prefetches>>>;
  using rare_row = row_worker<for_few_rows<B>, A>;
  using totals = std::conditional_t<shares_loop, std::array<double, Reduction::template sums<B>>,
                                    decltype(std::declval<Reduction>().template total<B, A, plan.prefetches>(0, 0, 1))>;

 public:
  // Without sums row.partial(k) has no memory.
  program_tasks(std::size_t rows, std::size_t per_task, std::size_t cols, const Reduction& reduction, const F& fn,
                bool makes_sums)
      : reduction_(reduction),
        fn_(fn),
        rows_(rows),
        cols_(cols),
        per_task_(per_task),
        stride_(makes_sums ? workspace::padded<A>(cols) : 0),
        sums_(makes_sums ? rows_per_sum(per_task_) * K : 0) {
    const std::size_t fitting =
        std::clamp<std::size_t>(plan.group_elements / std::max<std::size_t>(cols, 1), 1, plan.prefetches ? R : most);
    group_ = fitting < R ? fitting : fitting / R * R;
    ahead_ = plan.prefetches ? group_ : 1;
  }
  // Rows of sums that a task has in memory.
  std::size_t sums() const { return sums_; }

  // Adds the rows of a task to its own sums.
  TIGON_INLINE void run(std::size_t task, A* own) const {
    std::fill(own, own + sums_ * stride_, A(0));
    running_total<V> total(sums_ > K ? K * stride_ : 0, group_);
    const std::size_t begin = task * per_task_, end = std::min(rows_, begin + per_task_);
    totals now[most], next[most];
    for (std::size_t first = begin; first < end; first += group_) {
      const std::size_t n = std::min(group_, end - first);
      if constexpr (!shares_loop) {
        for (std::size_t k = 0; k < n; ++k)
          now[k] = reduction_.template total<B, A, plan.prefetches>(first + k, cols_, ahead_);
      } else {
        if (first == begin) reduce_first(first, n, now);
        std::fill(next, next + n, totals{});
      }
      bool all;
      if constexpr (plan.column_blocks)
        all = map_blocks(first, n, end, own, now, next);
      else
        all = map_rows_of(first, n, own, now);
      if constexpr (requires { fn_.f.map_in_f64(rare_row(0, 0), Reduction::template value<A>(now[0])); })
        if (!all) map_in_f64(first, n, own, now);
      if constexpr (shares_loop) std::copy(next, next + n, now);
      total.next(own);
    }
    total.finish(own);
  }

 private:
  // The sums of the first group, where later ones are made beside the map.
  TIGON_INLINE void reduce_first(std::size_t first, std::size_t n, totals (&now)[most]) const {
    std::fill(now, now + n, totals{});
    for (std::size_t column = 0; column < cols_; column += B::row.block_cols)
      for (std::size_t k = 0; k < n; ++k)
        reduction_.template side_work<B>(first + k, column, now[k].data())
            .template run<B::row.unroll>(std::min(+B::row.block_cols, cols_ - column));
  }

  // A group row by row, R at a time where possible. False where rows are left alone.
  TIGON_INLINE bool map_rows_of(std::size_t first, std::size_t n, A* own, const totals (&now)[most]) const {
    std::size_t k = 0;
    bool all = true;
    if constexpr (R > 1)
      for (; k + R <= n; k += R) {
        const auto value = [&](std::size_t r) TIGON_LAMBDA { return Reduction::template value<A>(now[k + r]); };
        if (!fn_.template together<B, plan.prefetches, R, K>(first + k, cols_, ahead_, value, own, stride_)) break;
      }
    for (; k < n; ++k)
      all &= map_one(worker({first + k, 0, 1, ahead_, plan.prefetches}, cols_, {own, nullptr, stride_}),
                     Reduction::template value<A>(now[k]));
    return all;
  }

  // A group block by block; in a shared loop its map reduces the rows of the next group, into `next`.
  TIGON_INLINE bool map_blocks(std::size_t first, std::size_t n, std::size_t end, A* own, const totals (&now)[most],
                               [[maybe_unused]] totals (&next)[most]) const {
    bool all = true;
    for (std::size_t column = 0; column < cols_; column += B::row.block_cols)
      for (std::size_t k = 0; k < n; ++k) {
        // By value (+): nvcc has no such member on the device.
        const std::size_t i = first + k, width = std::min(+B::row.block_cols, cols_ - column);
        if constexpr (shares_loop) {
          // The last rows reduce themselves, for nothing.
          const std::size_t later = i + group_ < end ? i + group_ : i;
          all &= map_one(worker({i, column}, width, {own, nullptr, stride_},
                                reduction_.template side_work<B>(later, column, next[k].data())),
                         Reduction::template value<A>(now[k]));
        } else {
          all &= map_one(worker({i, column}, width, {own, nullptr, stride_}), Reduction::template value<A>(now[k]));
        }
      }
    return all;
  }

  // The rows of a group that its map has left alone.
  TIGON_INLINE void map_in_f64(std::size_t first, std::size_t n, A* own, const totals (&now)[most]) const {
    for (std::size_t k = 0; k < n; ++k)
      [&]<std::size_t... p>(std::index_sequence<p...>) TIGON_LAMBDA {
        fn_.f.map_in_f64(rare_row({first + k, 0}, cols_), Reduction::template value<A>(now[k]),
                         vector_view<A>{own + p * stride_, cols_}...);
      }(std::make_index_sequence<K>{});
  }

  template <class Row, class Value>
  TIGON_INLINE bool map_one(const Row& row, Value value) const {
    if constexpr (is_declared_map<F>)
      return fn_.template one<K>(row, value);
    else if constexpr (Reduction::reduction == reduction_kind::declared)
      return fn_(row, value), true;
    else
      return fn_(row), true;
  }

  const Reduction& reduction_;
  const F& fn_;
  std::size_t rows_, cols_, per_task_, stride_, sums_, group_, ahead_;
};

// Reduces every row, and maps it by a declared_map, or by fn(row, value) with one map, of the row or of parts of it;
// without a declared reduction by fn(row). The plan (schedule.hpp) orders the rows that are reduced and mapped.
template <class B, class A, class Reduction, class F, class... T>
void run_rows(context& ctx, rows_of_all of, std::size_t cols, Reduction reduction, F fn, adds_to<T...> gradients) {
  // Without sums, tasks are those of any other loop over rows. Programs that nobody wants sums of have none.
  constexpr bool any_tasks = sizeof...(T) == 0 && Reduction::reduction != reduction_kind::declared;
  const bool makes_sums = is_declared_map<F> || gradients.wanted();
  const std::size_t partials_of = partial_tasks<B>(of), row = workspace::padded<A>(cols);
  const std::size_t per_task = any_tasks ? rows_per_task<B>(of.count, cols) : rows_per_partial(of.count, partials_of);
  const std::size_t tasks = any_tasks ? tigon::detail::ceil_div(of.count, per_task) : partials_of;
  const program_tasks<B, A, Reduction, F, sizeof...(T)> program(of.count, per_task, cols, reduction, fn, makes_sums);
  const std::size_t sums = program.sums();
  workspace::frame frame(ctx.workspace());
  A* partials = nullptr;
  if constexpr (sizeof...(T) != 0)
    if (makes_sums) partials = half_a_page_on(frame.template take<A>(tasks * sums * row + page / sizeof(A)));
  const auto run = [&](std::size_t task, std::size_t)
                       TIGON_FLATTEN { program.run(task, partials + task * sums * row); };
  run_row_tasks<B>(ctx, tasks, run);
  if (partials != nullptr) combine_partial_rows<B>(ctx, cols, static_cast<const A*>(partials), tasks, sums, gradients);
}

}  // namespace detail

template <class B, class A, class F, class... T>
void for_rows(context& ctx, rows_of_all rows, std::size_t cols, adds_to<T...> gradients, F fn) {
  detail::run_rows<B, A>(ctx, rows, cols, detail::imperative_reduction{}, fn, gradients);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_LANES_GRADIENTS_HPP
