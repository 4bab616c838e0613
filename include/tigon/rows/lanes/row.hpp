// The worker of a row on the lanes of a core, and the loops over rows that have no sums over them.
#ifndef TIGON_ROWS_LANES_ROW_HPP
#define TIGON_ROWS_LANES_ROW_HPP

#include <tigon/backend/backend.hpp>
#include <tigon/backend/host.hpp>
#include <tigon/core/context.hpp>
#include <tigon/core/workspace.hpp>
#include <tigon/rows/lanes/loop.hpp>
#include <tigon/rows/program.hpp>
#include <tigon/simd/math.hpp>
#include <tigon/simd/vec.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {
template <class S, std::size_t N>
struct row_array {
  alignas(64) S data[N];
  TIGON_INLINE row_array() {}
  row_array(const row_array&) = delete;
  TIGON_INLINE vector_view<S> first(std::size_t n) { return {data, n}; }
};
// Rows of memory that a worker has: sums over the rows, and scratch.
template <class A>
struct own_rows {
  A* partials = nullptr;
  A* scratch = nullptr;
  std::size_t stride = 0;
};
}  // namespace detail

/// The worker of one row. Made by for_rows.
template <class B, class A, class SideWork = detail::prefetching<true>>
class row_worker {
 public:
  std::size_t i;     ///< index of the row
  std::size_t cols;  ///< width of the row

  TIGON_INLINE row_worker(std::size_t index, std::size_t width) : row_worker(detail::place{index, 0}, width) {}
  TIGON_INLINE row_worker(detail::place at, std::size_t width, detail::own_rows<A> own = {}, SideWork side_work = {})
      : i(at.row), cols(width), own_(own), at_(at), side_work_(side_work) {}

  /// True for the one worker of this row that writes scalars. Always, on a CPU.
  TIGON_INLINE bool first() const { return true; }
  /// A number of the row is written, by that worker. The others read it behind sync().
  template <class S>
  TIGON_INLINE void save(S& to, std::type_identity_t<S> value) const {
    to = value;
  }
  /// The workers of the row wait for one another. Nothing, on a CPU.
  TIGON_INLINE void sync() const {}
  /// Memory of the row for N numbers, not initialised, that lives as long as what is returned.
  template <class S, std::size_t N>
  TIGON_INLINE auto array() const {
    return detail::row_array<S, N>();
  }

  /// The same worker on columns [first, first + width): operands and outputs are whole rows still.
  TIGON_INLINE row_worker part(std::size_t first, std::size_t width) const {
    row_worker worker = *this;
    worker.cols = width;
    worker.at_.column = first;
    return worker;
  }

  /// The same worker on another row of its operands. The row that comes next is `ahead` rows further down.
  TIGON_INLINE row_worker on(std::size_t row, std::size_t ahead = 1) const {
    row_worker worker = *this;
    worker.i = worker.at_.row = row;
    worker.at_.ahead = ahead, worker.at_.leads = ahead != 1;
    return worker;
  }

  /// The task's k-th partial row of a parameter gradient; combined over the tasks when all rows are done.
  TIGON_INLINE vector_view<A> partial(std::size_t k) const { return {own_.partials + k * own_.stride, cols}; }
  /// The worker's k-th scratch row.
  TIGON_INLINE vector_view<A> scratch(std::size_t k) const { return {own_.scratch + k * own_.stride, cols}; }

  /// One element of the row.
  template <class M>
  TIGON_INLINE auto at(M m, std::size_t j) const {
    return static_cast<accumulator_t<std::remove_cvref_t<decltype(*row_of(m))>>>(row_of(m)[j]);
  }
  /// Writes one element of the row.
  template <class M>
  TIGON_INLINE void put(M m, std::size_t j, accumulator_t<std::remove_cvref_t<decltype(*m.data)>> value) const {
    row_of(m)[j] = static_cast<std::remove_cvref_t<decltype(*m.data)>>(value);
  }

  /// y[j]... = f(x[j]...); f returns a pack where there are several outputs. Outputs may be operands.
  template <class... X, class... Y, class F>
  TIGON_INLINE void map(reads<X...> in, writes<Y...> out, F f) const {
    const auto y = sinks(out);
    unpacked(
        [&](auto... x) TIGON_LAMBDA {
          (void)write<0, 0>(y, (detail::was_read(x) || ...), f, detail::source<B>(x, beside<X...>())...);
        },
        in.x);
  }

  /// Map and sum in one pass: f returns a pack whose first vectors go to the outputs and whose others are summed.
  /// Returns the sum, or an array of them. Of the last so many the maximum is taken, in which a NaN may or may not be
  /// seen.
  template <std::size_t Maxima = 0, class... X, class... Y, class F>
  TIGON_INLINE auto map_sum(reads<X...> in, writes<Y...> out, F f) const {
    return unpacked(
        [&](auto... x) TIGON_LAMBDA {
          using R = decltype(f(detail::source<B>(x, at_).template load<detail::vec_of<B, X...>>(0)...));
          constexpr std::size_t K = pack_size<R> - sizeof...(Y);
          const auto total =
              write<K, Maxima>(sinks(out), (detail::was_read(x) || ...), f, detail::source<B>(x, beside<X...>())...);
          return finish<K>([&](auto k) TIGON_LAMBDA {
            if constexpr (k + Maxima < K)
              return sum_lanes(total.v[k]);
            else
              return max_lanes(total.v[k]);
          });
        },
        in.x);
  }

  /// Sum over the row of f(x[j]...); an array of sums where f returns a pack.
  template <class... X, class F>
  TIGON_INLINE auto sum(reads<X...> in, F f) const {
    using V = detail::vec_of<B, X...>;
    using R = decltype(f(detail::source<B>(std::declval<X>(), detail::place{}).template load<V>(0)...));
    constexpr std::size_t K = pack_size<R>;
    pack<V, K> zero;
    unrolled<K>([&](auto k) TIGON_LAMBDA { zero.v[k] = V(0); });
    const auto total = reduced(in, zero, f, [](auto a, auto b) TIGON_LAMBDA {
      unrolled<K>([&](auto k) TIGON_LAMBDA { a.v[k] = a.v[k] + b.v[k]; });
      return a;
    });
    return finish<K>([&](auto k) TIGON_LAMBDA { return sum_lanes(total.v[k]); });
  }

  /// Maximum over the row of f(x[j]...), -infinity for an empty row. A NaN may or may not be seen.
  template <class... X, class F>
  TIGON_INLINE auto max(reads<X...> in, F f) const {
    using V = detail::vec_of<B, X...>;
    const V lowest(-std::numeric_limits<typename V::value_type>::infinity());
    const auto total = reduced(in, pack<V, 1>{{lowest}}, f, [](auto a, auto b) TIGON_LAMBDA {
      a.v[0] = larger(a.v[0], b.v[0]);
      return a;
    });
    return max_lanes(total.v[0]);
  }

  /// Any monoid: `combine` of f(x[j]...) over the row in an unspecified but fixed order. `identity` is an array of K
  /// numbers, f returns a pack of K vectors, `combine` takes and returns packs; it is also called with packs of one
  /// lane. Returns an array of K numbers.
  template <class... X, class S, std::size_t K, class F, class Combine>
  TIGON_INLINE std::array<S, K> reduce(reads<X...> in, std::array<S, K> identity, F f, Combine combine) const {
    using V = detail::vec_of<B, X...>;
    using scalar_vec = vec<scalar, S>;
    pack<V, K> start;
    for (std::size_t k = 0; k < K; ++k) start.v[k] = V(identity[k]);
    const auto total = reduced(in, start, f, combine);
    alignas(64) S lane[K][V::size];
    for (std::size_t k = 0; k < K; ++k) simd::store(total.v[k], lane[k]);
    pack<scalar_vec, K> folded;
    for (std::size_t k = 0; k < K; ++k) folded.v[k] = scalar_vec(lane[k][0]);
    for (std::size_t l = 1; l < V::size; ++l) {
      pack<scalar_vec, K> next;
      for (std::size_t k = 0; k < K; ++k) next.v[k] = scalar_vec(lane[k][l]);
      folded = combine(folded, next);
    }
    std::array<S, K> result;
    for (std::size_t k = 0; k < K; ++k) simd::store(folded.v[k], &result[k]);
    return result;
  }

  // The side work of a map of a row that is left alone.
  friend TIGON_INLINE void only_side_work(const row_worker& row) {
    row.side_work_.template run<B::row.unroll>(row.cols);
  }

 private:
  template <class T>
  TIGON_INLINE T* row_of(matrix_view<T> m) const {
    return m.row(i);
  }
  template <class T>
  TIGON_INLINE T* row_of(vector_view<T> v) const {
    return v.data;
  }
  template <class... X, class V, std::size_t K, class F, class Combine>
  TIGON_INLINE pack<V, K> reduced(reads<X...> in, pack<V, K> identity, F f, Combine combine) const {
    return unpacked(
        [&](auto... x) TIGON_LAMBDA {
          return detail::reduce_columns<B>(
              cols, identity, [f](auto... v) TIGON_LAMBDA { return as_pack(f(v...)); }, combine,
              detail::source<B>(x, beside<X...>())...);
        },
        in.x);
  }
  template <std::size_t K, class F>
  static TIGON_INLINE auto finish(F f) {
    return [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      if constexpr (K == 1)
        return f(std::integral_constant<std::size_t, 0>{});
      else
        return std::array{f(std::integral_constant<std::size_t, k>{})...};
    }(std::make_index_sequence<K>{});
  }

  // The place of operands whose next rows are prefetched.
  template <class... X>
  TIGON_INLINE detail::place beside() const {
    constexpr std::size_t sharing = plan_operand(B::row.cpu).rows_share_cache ? detail::matrices_of<X...> : 1;
    return {at_.row, at_.column, sharing, at_.ahead, at_.leads};
  }

  template <class... Y>
  TIGON_INLINE auto sinks(const writes<Y...>& out) const {
    return unpacked([&](auto... to) TIGON_LAMBDA { return std::tuple(detail::sink(to, at_)...); }, out.y);
  }
  // Outputs larger than stream_bytes are stored past the caches, each unless it is an operand, `read` whether one was.
  // Of K results that are reduced the last are maxima, the others sums.
  template <std::size_t K, std::size_t Maxima, class... Sink, class F, class... Source>
  TIGON_INLINE auto write(const std::tuple<Sink...>& y, bool read, F f, Source... x) const {
    using V = detail::vec_of_elements<B, typename Source::element_type..., typename Sink::element_type...>;
    constexpr map_plan plan = plan_of<B, detail::pass_shape<row_pass::map, V, K, Source...>>;
    detail::map_course on{cols};
    if constexpr (V::size > 1) {
      detail::each_sink(y, [&](auto out, auto k) TIGON_LAMBDA {
        if (!out.streams(B::row.stream_bytes, x.begin()...)) return;
        if (on.streamed == 0) on.head = std::min(cols, out.template head<V>());
        if (out.template aligned_after<V>(on.head)) on.streamed |= std::size_t{1} << k;
      });
      if constexpr (SideWork::reduces)
        if (on.head != 0) on.streamed = 0;  // the order of a reduction depends on nothing but the columns
      if (on.streamed == 0) on.head = 0;
    }
    // The end of a row that was just reduced is still in L1; or, serpentine, that of a vector beside every other row.
    on.backwards = !SideWork::reduces && read && (plan.backwards || (plan.serpentine && at_.row % 2 != 0));
    on.contiguous = plan.leaves_contiguous && !read && !at_.leads && (detail::is_contiguous(x, cols) && ...);
    return detail::map_columns<B, V, K, Maxima>(on, side_work_, y, f, x...);
  }

  detail::own_rows<A> own_;
  detail::place at_;
  [[no_unique_address]] SideWork side_work_;
};

namespace detail {

// Tasks are a multiple of 128 where there are rows enough, so that 16 workers, or 64, have equal shares: of
// task_elements at most, and not so few that the change from one to the next, and the groups of rows that end there,
// cost.
inline constexpr std::size_t balanced_tasks = 128, least_task_elements = 8192, least_task_rows = 8;
template <class B>
constexpr std::size_t rows_per_task(std::size_t rows, std::size_t cols) {
  const std::size_t width = std::max<std::size_t>(cols, 1);
  const std::size_t most = std::max<std::size_t>(B::row.task_elements / width, 1);
  const std::size_t least = std::max(least_task_elements / width, least_task_rows);
  const std::size_t rounds = rows / (most * balanced_tasks) + (rows % (most * balanced_tasks) != 0);
  const std::size_t tasks = std::max<std::size_t>(rounds, 1) * balanced_tasks;
  return std::clamp<std::size_t>(std::max(rows / tasks + (rows % tasks != 0), least), 1, most);
}

// The one loop over tasks, of for_rows and of programs: run(task, worker) for each. What a task has stored past the
// caches has arrived when it returns. run() is called, not inlined: g++ would compile its body twice.
template <class B, class Run>
void run_row_tasks(context& ctx, std::size_t tasks, const Run& run) {
  static_assert(tigon::detail::loops_on_host<B>());
  ctx.executor().run(tasks, [&](std::size_t task, std::size_t worker) {
    run(task, worker);
    stream_fence();
  });
}

}  // namespace detail

template <class B, class A>
std::size_t scratch_workspace(std::size_t cols, std::size_t scratch_rows, const context& ctx) {
  // A device whose driver has programs alone runs no such loop.
  if constexpr (!host_memory<B> && !rows::loops_over_rows<B>) return 0;
  return workspace::bytes_for<A>(ctx.executor().workers(), scratch_rows, workspace::padded<A>(cols));
}

template <class B, class A, class F>
void for_rows(context& ctx, std::size_t rows, std::size_t cols, row_loop how, F fn) {
  const std::size_t per_task = how.row_tasks ? 1 : detail::rows_per_task<B>(rows, cols);
  const std::size_t stride = workspace::padded<A>(cols);
  workspace::frame frame(ctx.workspace());
  A* scratch = how.scratch == 0 ? nullptr : frame.template take<A>(ctx.executor().workers() * how.scratch * stride);
  const auto run = [&](std::size_t task, std::size_t worker) TIGON_FLATTEN {
    A* own = scratch + worker * how.scratch * stride;
    const std::size_t end = std::min(rows, (task + 1) * per_task);
    for (std::size_t i = task * per_task; i < end; ++i) fn(row_worker<B, A>({i, 0}, cols, {nullptr, own, stride}));
  };
  detail::run_row_tasks<B>(ctx, (rows + per_task - 1) / per_task, run);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_LANES_ROW_HPP
