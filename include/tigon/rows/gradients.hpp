// Row programs with parameter gradients: every row adds to sums over all rows.
//
//   for_rows_with_partials<B, A>(ctx, rows, cols, row_sum(f, x...), row_map(y, g, x...), parameter_gradient{dw, mode});
#ifndef TIGON_ROWS_GRADIENTS_HPP
#define TIGON_ROWS_GRADIENTS_HPP

#include <tigon/core/division.hpp>
#include <tigon/rows/row.hpp>
#include <tigon/simd/totals.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <tuple>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// Rows of a program with parameter gradients, and the rows of all such programs that run side by side: the more there
/// are, the fewer tasks is each of them cut into.
struct rows_of_all {
  std::size_t count, all;
  constexpr rows_of_all(std::size_t rows) : rows_of_all(rows, rows) {}
  constexpr rows_of_all(std::size_t rows, std::size_t of) : count(rows), all(of) {}
};

/// The function of a row_map in two stages: rest(first(v), v, x..., sums...), where v is the first operand. Rows that are
/// written together make `first` of the next columns beside `rest` of these: in a long chain of operations a processor
/// sees too few columns ahead.
template <class First, class Rest>
struct staged {
  First first;
  Rest rest;

  template <class V, class... X>
  TIGON_INLINE auto operator()(V v, X... x) const {
    return rest(first(v), v, x...);
  }
};
template <class First, class Rest>
staged(First, Rest) -> staged<First, Rest>;

namespace detail {
template <class F>
inline constexpr bool is_staged = false;
template <class First, class Rest>
inline constexpr bool is_staged<staged<First, Rest>> = true;

// A value that the compiler must have before it goes on: a product that is added next stays a product and a sum.
template <class R>
TIGON_INLINE void settle(R& r) {
  if constexpr (requires { r.r; })
    settle(r.r);
  else if constexpr (requires { r.raw; })
    settle(r.raw);
  else if constexpr (requires { r.data; })
    settle(r.data);
  else
#if defined(__x86_64__) || defined(__i386__)
    asm("" : "+v"(r));
#elif defined(__aarch64__)
    asm("" : "+w"(r));
#else
    asm("" : "+m"(r));
#endif
}

// Or it adds up the same columns of a row further down, which it thereby brings near: memory is read and written and
// lanes compute, all at the same time. Sums of the parts of a row are added up in f64.
template <class V, std::size_t K, class F, class... Source>
struct sum_errand {
  static constexpr bool any = true, prefetches = false;
  using number = typename V::value_type;
  struct state {
    pack<V, K> sum;
    TIGON_INLINE state() {
      unrolled<K>([&](auto k) TIGON_LAMBDA { sum.v[k] = V(0); });
    }
  };
  F f;
  std::tuple<Source...> x;
  double* total;

  TIGON_INLINE void add(state& s, std::size_t j, std::size_t more) const {
    auto r = std::apply([&](auto... from) TIGON_LAMBDA { return as_pack(f(from.template load<V>(j, more)...)); }, x);
    unrolled<K>([&](auto k) TIGON_LAMBDA {
      settle(r.v[k]);
      s.sum.v[k] = s.sum.v[k] + r.v[k];
    });
  }
  TIGON_INLINE void add_n(state& s, std::size_t j, std::size_t n) const {
    const auto inside = V::iota() < V(static_cast<number>(n));
    auto r = std::apply([&](auto... from) TIGON_LAMBDA { return as_pack(f(from.template load_n<V>(j, n)...)); }, x);
    unrolled<K>([&](auto k) TIGON_LAMBDA {
      settle(r.v[k]);
      s.sum.v[k] = s.sum.v[k] + select(inside, r.v[k], V(0));
    });
  }
  // All of it, in the order in which a loop does it in passing.
  template <std::size_t U>
  TIGON_INLINE void run(std::size_t cols) const {
    constexpr std::size_t N = V::size;
    state s[U];
    std::size_t j = 0;
    for (; j + U * N <= cols; j += U * N) {
      unrolled<U>([&](auto u) TIGON_LAMBDA { add(s[u], j, u * N); });
    }
    for (; j < cols; j += N) add_n(s[0], j, std::min(N, cols - j));
    finish(s);
  }
  template <std::size_t U>
  TIGON_INLINE void finish(const state (&s)[U]) const {
    unrolled<K>([&](auto k) TIGON_LAMBDA {
      V sum = s[0].sum.v[k];
      unrolled<U - 1>([&](auto u) TIGON_LAMBDA { sum = sum + s[u + 1].sum.v[k]; });
      total[k] += sum_lanes(sum);
    });
  }
};

// out = f(x..., sums...) for R rows, one after the other in every few columns, with their sums in registers. Every f
// returns what goes to its sink and the new sums. All rows are read before one is written: a read waits for an earlier
// store at the same place of another page, where long rows often are. False, and nothing done, where stores past the
// caches are wanted and the rows do not begin at whole vectors. It asks for the rows that come next, if so told.
template <class B, bool Asks, class Sink, std::size_t R, class F, class... Source, class... A>
TIGON_INLINE bool write_together(std::size_t cols, const std::array<Sink, R>& y, const std::array<F, R>& f,
                                 const std::array<std::tuple<Source...>, R>& x, A*... sums) {
  using V = write_vec<B, std::tuple<Sink>, Source...>;
  constexpr std::size_t N = V::size, U = std::min<std::size_t>(B::row.unroll, 2), K = sizeof...(A);
  constexpr std::size_t held = K == 0 ? 1 : K;
  // Compilers keep what is read after a store behind it. Rows of 16 bits, which compute for longer, mix the vectors of a
  // step and store their sums at its end; wider ones wait for memory, and go on vector by vector.
  constexpr bool mixes = sizeof(typename Sink::element_type) == 2 && !is_staged<F>;
  bool wanted = true, possible = true;
  unrolled<R>([&](auto r) TIGON_LAMBDA {
    wanted =
        wanted &&
        std::apply([&](auto... from) TIGON_LAMBDA { return y[r].streams(B::row.stream_bytes, from.begin()...); }, x[r]);
    possible = possible && y[r].template head<V>() == 0;
  });
  if (wanted && !possible) return false;
  const auto call = [&](auto r, auto load, const pack<V, held>& sum) TIGON_LAMBDA {
    return [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      return std::apply([&](auto... from) TIGON_LAMBDA { return f[r](load(from)..., sum.v[k]...); }, x[r]);
    }(std::make_index_sequence<K>{});
  };
  // The first operand of a step of columns, and what a staged function makes of it.
  const auto begun = [&](auto r, std::size_t j, std::size_t more) TIGON_LAMBDA {
    if constexpr (is_staged<F>) {
      const V v = std::get<0>(x[r]).template load<V>(j, more);
      return std::pair{v, f[r].first(v)};
    } else {
      return 0;
    }
  };
  const auto finish = [&](auto r, const auto& first, auto load, const pack<V, held>& sum) TIGON_LAMBDA {
    return [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      return std::apply([&](auto, auto... from)
                            TIGON_LAMBDA { return f[r].rest(first.second, first.first, load(from)..., sum.v[k]...); },
                        x[r]);
    }(std::make_index_sequence<K>{});
  };
  std::size_t j = 0;
  decltype(begun(std::integral_constant<std::size_t, 0>{}, 0, 0)) ahead[R][U];
  if constexpr (is_staged<F>)
    if (U * N <= cols)
      unrolled<U>([&](auto u)
                      TIGON_LAMBDA { unrolled<R>([&](auto r) TIGON_LAMBDA { ahead[r][u] = begun(r, 0, u * N); }); });
  for (; j + U * N <= cols; j += U * N) {
    if constexpr (Asks)  // not by std::apply: g++ drops calls of a function that does nothing but ask
      unrolled<R * U>([&](auto k) TIGON_LAMBDA {
        unrolled<sizeof...(Source)>([&](auto s) TIGON_LAMBDA {
          std::get<s>(x[k / U]).template prefetch<k % U * N, B::row.cpu.prefetch_into>(j);
        });
      });
    pack<V, 1> out[R][U];
    pack<V, held> acc[U];
    [[maybe_unused]] const std::size_t next = j + 2 * U * N <= cols ? j + U * N : j;
    const auto keep_sums = [&]([[maybe_unused]] auto u) TIGON_LAMBDA {
      std::size_t k = 0;
      (store(acc[u].v[k++], sums + j + u * N), ...);
    };
    unrolled<U>([&](auto u) TIGON_LAMBDA {
      acc[u] = {{load<V>(sums + j + u * N)...}};
      unrolled<R>([&](auto r) TIGON_LAMBDA {
        const auto load = [&](auto from) TIGON_LAMBDA { return from.template load<V>(j, u * N); };
        const auto v = [&]() TIGON_LAMBDA {
          if constexpr (is_staged<F>)
            return finish(r, ahead[r][u], load, acc[u]);
          else
            return call(r, load, acc[u]);
        }();
        out[r][u].v[0] = v.v[0];
        unrolled<K>([&](auto k) TIGON_LAMBDA { acc[u].v[k] = v.v[k + 1]; });
        if constexpr (is_staged<F>) {
          ahead[r][u] = begun(r, next, u * N);
          asm volatile("");  // as it is written: mixed with what follows, the chain is as long as before
        }
      });
      if constexpr (!mixes) keep_sums(u);
    });
    if constexpr (mixes) unrolled<U>(keep_sums);
    constexpr std::integral_constant<std::size_t, 0> k{};
    if (wanted)
      unrolled<R>([&](auto r) TIGON_LAMBDA { y[r].template put<true>(out[r], k, j); });
    else
      unrolled<R>([&](auto r) TIGON_LAMBDA { y[r].template put<false>(out[r], k, j); });
  }
  for (; j < cols; j += N) {
    const std::size_t n = std::min(N, cols - j);
    pack<V, held> acc{{load_n<V>(sums + j, n)...}};
    unrolled<R>([&](auto r) TIGON_LAMBDA {
      const auto v = call(
          r, [&](auto from) TIGON_LAMBDA { return from.template load_n<V>(j, n); }, acc);
      unrolled<K>([&](auto k) TIGON_LAMBDA { acc.v[k] = v.v[k + 1]; });
      y[r].store_n(v.v[0], j, n);
    });
    std::size_t k = 0;
    (store_n(acc.v[k++], sums + j, n), ...);
  }
  return true;
}

/// Partial rows of one parameter gradient: fixed by shape. Many short sums also keep the rounding error small.
template <class B>
constexpr std::size_t partial_tasks(rows_of_all rows) {
  using tigon::detail::ceil_div;
  return ceil_div(rows.count, std::max<std::size_t>(ceil_div(rows.all, B::row.partials), 16));
}
/// Rows that a task of so many adds up.
constexpr std::size_t rows_per_partial(std::size_t rows, std::size_t tasks) {
  return tasks == 0 ? 0 : (rows + tasks - 1) / tasks;
}

// Compensated totals of a task of more than plain_rows rows: behind its partial rows are the high parts of their totals,
// and the low parts. The columns take turns, some after every group of rows: a pause for all of them at once would leave
// memory idle.
template <class V>
class running_total {
  using A = typename V::value_type;

 public:
  /// For partial rows of so many columns together, whole vectors; 0: there are no totals.
  running_total(std::size_t columns, std::size_t group) : columns_(columns) {
    if (columns == 0) return;
    const std::size_t groups = plain_rows / group, turns = std::min(groups, columns / V::size);
    groups_per_turn_ = groups / turns;
    width_ = ((columns + turns - 1) / turns + V::size - 1) / V::size * V::size;
  }
  /// After a group of rows.
  TIGON_INLINE void next(A* sums) {
    if (columns_ == 0 || ++groups_ < groups_per_turn_) return;
    groups_ = 0;
    A* const from = sums + first_;
    add_to_total<V, sums_after::zero>(from, from + columns_, from + 2 * columns_, std::min(width_, columns_ - first_));
    first_ = first_ + width_ < columns_ ? first_ + width_ : 0;
  }
  /// After the last: the sums become the totals.
  void finish(A* sums) const {
    if (columns_ != 0) add_to_total<V, sums_after::total>(sums, sums + columns_, sums + 2 * columns_, columns_);
  }

 private:
  std::size_t columns_, width_ = 0, first_ = 0, groups_per_turn_ = 1, groups_ = 0;
};

// Large arrays begin at a page, and a read waits for an earlier store at the same place of another page: partial rows
// are written half a page away from what is read beside them.
inline constexpr std::size_t page = 4096;
template <class A>
A* half_a_page_on(A* p) {
  const std::size_t at = reinterpret_cast<std::uintptr_t>(p) % page;
  return p + (page + page / 2 - at) % page / sizeof(A);
}

}  // namespace detail

/// A parameter gradient that the partial rows of all tasks add up to; not written where `out` is empty.
template <class T>
struct parameter_gradient {
  vector_view<T> out;
  gradient mode = gradient::overwrite;
};

/// Bytes that for_rows_with_partials takes from the workspace for `count` parameter gradients.
template <class B, class A>
constexpr std::size_t partials_workspace(rows_of_all rows, std::size_t cols, std::size_t count) {
  const std::size_t tasks = detail::partial_tasks<B>(rows);
  const std::size_t sums = rows_per_sum(detail::rows_per_partial(rows.count, tasks));
  return workspace::bytes_for<A>(workspace::product(tasks, count, sums, workspace::padded<A>(cols)) +
                                 detail::page / sizeof(A));
}

/// Statistic of a row: the sum over its columns of f(i)(x[j]...), where f(i) is the function for row i; an array of
/// sums where that returns a pack.
template <class F, class... X>
struct row_sum {
  F f;
  std::tuple<X...> x;
  explicit row_sum(F function, X... operands) : f(function), x(operands...) {}

  template <class B>
  static constexpr std::size_t sums =
      detail::pack_size<decltype(std::declval<F>()(0)(std::declval<decltype(detail::source<B>(std::declval<X>(), {}))>()
                                                          .template load<detail::vec_of<B, X...>>(0)...))>;

  static constexpr reduction_kind reduction = reduction_kind::declared;
  static constexpr std::size_t column_bytes = (detail::matrix_bytes<X> + ... + 0);
  static constexpr std::size_t element_bytes = detail::narrowest({detail::matrix_bytes<X>...});

  // Adds what the columns from `first` on contribute to the sums at `total`.
  template <class B>
  TIGON_INLINE auto errand(std::size_t row, std::size_t first, double* total) const {
    return std::apply(
        [&](auto... from) TIGON_LAMBDA {
          const detail::place at{row, first};
          using errand = detail::sum_errand<detail::vec_of<B, X...>, sums<B>, decltype(f(row)),
                                            decltype(detail::source<B>(from, at))...>;
          return errand{f(row), std::make_tuple(detail::source<B>(from, at)...), total};
        },
        x);
  }
  // The sums over a whole row, where none are made in passing. If it asks for rows, then for those that begin `ahead` rows
  // further down.
  template <class B, class A, bool Asks>
  TIGON_INLINE std::array<A, sums<B>> total(std::size_t row, std::size_t cols, std::size_t ahead) const {
    return std::apply(
        [&](auto... from) TIGON_LAMBDA {
          const auto operand = [](auto given) TIGON_LAMBDA {
            if constexpr (Asks)
              return read_again(given);
            else
              return given;
          };
          const auto sum = row_worker<B, A>(row, cols).asking(ahead).sum(reads(operand(from)...), f(row));
          if constexpr (sums<B> == 1)
            return std::array<A, 1>{sum};
          else
            return sum;
        },
        x);
  }
  template <class A, class Total, std::size_t K>
  static TIGON_INLINE auto value(const std::array<Total, K>& total) {
    if constexpr (K == 1) {
      return static_cast<A>(total[0]);
    } else {
      std::array<A, K> of_row;
      for (std::size_t k = 0; k < K; ++k) of_row[k] = static_cast<A>(total[k]);
      return of_row;
    }
  }
};

/// Statistic of a program whose columns need nothing of the row.
struct no_statistic {
  template <class B>
  static constexpr std::size_t sums = 0;
  static constexpr reduction_kind reduction = reduction_kind::none;
  static constexpr std::size_t column_bytes = 0, element_bytes = 0;
  template <class B>
  TIGON_INLINE detail::no_errand errand(std::size_t, std::size_t, double*) const {
    return {};
  }
  template <class B, class A, bool>
  TIGON_INLINE std::array<A, 0> total(std::size_t, std::size_t, std::size_t) const {
    return {};
  }
  template <class A, class Total>
  static TIGON_INLINE int value(const std::array<Total, 0>&) {
    return 0;
  }
};

/// Statistic of a program that makes it itself: fn(row, 0) takes whole rows, by as many passes as it likes.
struct own_statistic : no_statistic {
  static constexpr reduction_kind reduction = reduction_kind::imperative;
};

/// Program of a row that adds to parameter gradients. For row i and its statistic,
///   f(i, value)(x[j]..., sums[j]...)
/// is a pack of the outputs at column j, and of the sums with what this row adds to them.
template <class Out, class F, class... X>
struct row_map {
  Out out;
  F f;
  std::tuple<X...> x;
  static constexpr std::size_t matrices = detail::matrices_of<X...>, vectors = sizeof...(X) - matrices;
  static constexpr std::size_t outputs = detail::output_rows<Out>;
  static constexpr std::size_t element_bytes =
      detail::narrowest({detail::output_bytes<Out>, detail::matrix_bytes<X>...});
  template <class B>
  using vec_type = detail::vec_of<B, X...>;
  explicit row_map(Out y, F function, X... operands) : out(y), f(function), x(operands...) {}

  // One row, or a part of one.
  template <class Row, class Value, class... Sums>
  TIGON_INLINE void one(const Row& row, Value value, Sums... sums) const {
    const auto of_row = f(row.i, value);
    if constexpr (requires { of_row.skipped(); })
      if (of_row.skipped()) return row.side_work();
    std::apply([&](auto... from) TIGON_LAMBDA { row.map(reads(from..., sums...), with_sums(out, sums...), of_row); },
               x);
  }
  template <class Y, class... Sums>
  static TIGON_INLINE writes<Y, Sums...> with_sums(Y output, Sums... sums) {
    return writes<Y, Sums...>(output, sums...);
  }
  template <class... Y, class... Sums>
  static TIGON_INLINE writes<Y..., Sums...> with_sums(writes<Y...> to, Sums... sums) {
    return std::apply([&](auto... y) TIGON_LAMBDA { return writes<Y..., Sums...>(y..., sums...); }, to.y);
  }

  // Rows [i, i + R) at once: their sums stay in registers from row to row. False, and nothing done, where the outputs
  // cannot be streamed so. If it asks for rows, then for those that begin `ahead` rows further down.
  template <class B, bool Asks, std::size_t R, class Values, class... Sums>
  TIGON_INLINE bool together(std::size_t i, std::size_t cols, std::size_t ahead, const Values& values,
                             Sums... sums) const {
    const auto sources = [&](std::size_t row) TIGON_LAMBDA {
      return std::apply(
          [&](auto... from) TIGON_LAMBDA {
            return std::make_tuple(detail::source<B>(from, {row, 0, detail::matrices_of<X...>, ahead})...);
          },
          x);
    };
    return [&]<std::size_t... r>(std::index_sequence<r...>) TIGON_LAMBDA {
      const std::array of_rows{f(i + r, values(r))...};
      if constexpr (requires { of_rows[0].skipped(); })
        if ((of_rows[r].skipped() || ...)) return false;
      return detail::write_together<B, Asks>(cols, std::array{detail::sink(out, {i + r, 0})...}, of_rows,
                                             std::array{sources(i + r)...}, sums...);
    }(std::make_index_sequence<R>{});
  }
};

namespace detail {
template <class F>
inline constexpr bool is_row_map = false;
template <class Out, class F, class... X>
inline constexpr bool is_row_map<row_map<Out, F, X...>> = true;

// A program of a reduction and a map, with so many sums over the rows.
template <class V, class Statistic, class Map>
constexpr row_shape program_shape(std::size_t sums) {
  row_shape shape{.pass = row_pass::program,
                  .sums = sums,
                  .element_bytes = Statistic::element_bytes,
                  .lanes = V::size,
                  .reduction = Statistic::reduction,
                  .reduced_bytes = Statistic::column_bytes};
  if constexpr (is_row_map<Map>) {
    shape.matrices = Map::matrices, shape.vectors = Map::vectors;
    shape.element_bytes = narrowest({shape.element_bytes, Map::element_bytes});
    shape.outputs = Map::outputs;
  }
  return shape;
}
}  // namespace detail

/// As for_rows, in groups of `size` rows: statistic(row) makes what a row's map needs, by as many sums as it likes, and
/// map_of(group), a row_map, writes it. The statistic takes the row by reference: the map of a row that was read goes
/// another way. Or it is no_statistic, and the map's value 0.
template <class B, class A, class Statistic, class F>
void map_rows(context& ctx, std::size_t rows, std::size_t size, std::size_t cols, Statistic statistic, F map_of) {
  using reduction = std::conditional_t<std::same_as<Statistic, no_statistic>, no_statistic, own_statistic>;
  using map_type = decltype(map_of(std::size_t{}));
  using V = typename map_type::template vec_type<B>;
  constexpr row_plan plan = plan_of<B, detail::program_shape<V, reduction, map_type>(0)>;
  constexpr std::size_t R = plan.rows;
  const auto value_of = [=](const auto& row) TIGON_LAMBDA {
    if constexpr (std::same_as<Statistic, no_statistic>)
      return 0;
    else
      return statistic(row);
  };
  const std::size_t per_task = detail::rows_per_task<B>(rows, cols);
  ctx.executor().run((rows + per_task - 1) / per_task, [&](std::size_t task, std::size_t) TIGON_FLATTEN {
    const std::size_t end = std::min(rows, (task + 1) * per_task);
    for (std::size_t i = task * per_task; i < end;) {
      const std::size_t group = i / size, last = std::min(end, (group + 1) * size);
      const auto map = map_of(group);
      if constexpr (R > 1) {
        const auto row = [=](std::size_t at) TIGON_LAMBDA { return row_worker<B, A>(at, cols).asking(R); };
        for (; i + R <= last; i += R) {
          std::array<decltype(value_of(row(i))), R> values;
          for (std::size_t r = 0; r < R; ++r) values[r] = value_of(row(i + r));
          const auto value = [&](std::size_t r) TIGON_LAMBDA { return values[r]; };
          if (!map.template together<B, true, R>(i, cols, R, value))
            for (std::size_t r = 0; r < R; ++r) map.one(row(i + r), values[r]);
        }
      }
      for (; i < last; ++i) {
        const row_worker<B, A> row(i, cols);
        map.one(row, value_of(row));
      }
    }
    stream_fence();
  });
}
template <class B, class A, class Statistic, class Map>
void map_rows(context& ctx, std::size_t rows, std::size_t cols, Statistic statistic, Map map) {
  map_rows<B, A>(ctx, rows, std::max<std::size_t>(rows, 1), cols, statistic,
                 [=](std::size_t) TIGON_LAMBDA { return map; });
}

/// As for_rows, for parameter gradients: every row's columns are written once, by a row_map, or by fn(row, value) with
/// one map, where value is the row's statistic and row.partial(k) a row of A in which the task sums up its share of the
/// k-th parameter gradient. The partial rows are combined by column, task by task in pairs, and rounded once into
/// `out`. Without rows the gradients are zero. The rounding error of the sums in A does not grow with the number of rows.
///
/// Unless map and reduction share a loop (row_order::lookahead), the statistics of as many rows as stay near are
/// made first, and a row_map then writes
/// some of these at a time: memory is read and written in turns. Where reductions prefetch, these are no more rows
/// than are written at a time, and both passes ask for those that come next: memory is read all the time. So it is where
/// a statistic is followed by rows that are written one at a time, without a row_map. With a shared loop, or without a
/// statistic and a row_map, or where a row_map writes one row at a time, a few rows are gone over a block of columns at a
/// time, so that weights and partial rows stay in the first-level cache: fn sees parts of rows, and in a shared loop its
/// map
/// adds up the statistic, if any, of the rows that follow.
template <class B, class A, class Statistic, class F, class... T>
void for_rows_with_partials(context& ctx, rows_of_all of, std::size_t cols, Statistic statistic, F fn,
                            parameter_gradient<T>... out) {
  using V = vec<typename B::engine, A>;
  using errand = decltype(statistic.template errand<B>(0, 0, nullptr));
  constexpr std::size_t K = sizeof...(T);
  constexpr row_plan plan = plan_of<B, detail::program_shape<V, Statistic, F>(K)>;
  constexpr bool in_passing = plan.order == row_order::lookahead, asks = plan.prefetches;
  using totals = std::array<std::conditional_t<in_passing, double, A>, Statistic::template sums<B>>;
  constexpr bool is_map = detail::is_row_map<F>;
  constexpr std::size_t R = plan.rows, most = plan.group_rows;
  static_assert(most <= plain_rows);
  using worker = row_worker<B, A, std::conditional_t<in_passing, errand, detail::no_sum<!errand::any || asks>>>;
  const std::size_t rows = of.count, tasks = detail::partial_tasks<B>(of);
  const std::size_t per_task = detail::rows_per_partial(rows, tasks), stride = workspace::padded<A>(cols);
  const std::size_t sums = rows_per_sum(per_task) * K;  // rows of a task
  const std::size_t fitting =
      std::clamp<std::size_t>(plan.group_elements / std::max<std::size_t>(cols, 1), 1, asks ? R : most);
  const std::size_t group = fitting < R ? fitting : fitting / R * R;
  [[maybe_unused]] const std::size_t ahead = asks ? group : 1;
  const auto one = [&](const auto& row, auto value) TIGON_LAMBDA {
    if constexpr (is_map)
      [&]<std::size_t... k>(std::index_sequence<k...>)
          TIGON_LAMBDA { fn.one(row, value, row.partial(k)...); }(std::make_index_sequence<K>{});
    else
      fn(row, value);
  };
  workspace::frame frame(ctx.workspace());
  A* partials = nullptr;
  if constexpr (K != 0)
    partials = detail::half_a_page_on(frame.template take<A>(tasks * sums * stride + detail::page / sizeof(A)));
  ctx.executor().run(tasks, [&](std::size_t task, std::size_t) TIGON_FLATTEN {
    A* own = partials + task * sums * stride;
    std::fill(own, own + sums * stride, A(0));
    detail::running_total<V> total(sums > K ? K * stride : 0, group);
    const std::size_t begin = task * per_task, end = std::min(rows, begin + per_task);
    totals now[most], next[most];
    for (std::size_t first = begin; first < end; first += group) {
      const std::size_t n = std::min(group, end - first);
      if constexpr (!in_passing) {
        for (std::size_t k = 0; k < n; ++k) now[k] = statistic.template total<B, A, asks>(first + k, cols, ahead);
      } else if (first == begin) {
        std::fill(now, now + n, totals{});
        for (std::size_t column = 0; column < cols; column += B::row.block_cols)
          for (std::size_t k = 0; k < n; ++k)
            statistic.template errand<B>(first + k, column, now[k].data())
                .template run<B::row.unroll>(std::min(B::row.block_cols, cols - column));
      }
      if constexpr (in_passing) std::fill(next, next + n, totals{});
      if constexpr (!plan.column_blocks) {
        std::size_t k = 0;
        if constexpr (R > 1) {
          const auto together = [&]() TIGON_LAMBDA {
            return [&]<std::size_t... p>(std::index_sequence<p...>) TIGON_LAMBDA {
              return fn.template together<B, asks, R>(
                  first + k, cols, ahead,
                  [&](std::size_t r) TIGON_LAMBDA { return Statistic::template value<A>(now[k + r]); },
                  own + p * stride...);
            }(std::make_index_sequence<K>{});
          };
          while (k + R <= n && together()) k += R;
        }
        for (; k < n; ++k)
          one(worker(first + k, cols, own, nullptr, stride).asking(ahead), Statistic::template value<A>(now[k]));
        total.next(own);
        continue;
      }
      for (std::size_t column = 0; column < cols; column += B::row.block_cols)
        for (std::size_t k = 0; k < n; ++k) {
          const std::size_t i = first + k, width = std::min(B::row.block_cols, cols - column);
          // The last rows add up themselves, for nothing.
          const std::size_t other = i + group < end ? i + group : i;
          if constexpr (in_passing)
            one(worker(i, width, own, nullptr, stride, column,
                       statistic.template errand<B>(other, column, next[k].data())),
                Statistic::template value<A>(now[k]));
          else
            one(worker(i, width, own, nullptr, stride, column), Statistic::template value<A>(now[k]));
        }
      if constexpr (in_passing) std::copy(next, next + n, now);
      total.next(own);
    }
    total.finish(own);
    stream_fence();
  });
  // U vectors of columns, or what is left of one.
  const auto combine = [&]<std::size_t U, class P>(const parameter_gradient<P>& g, std::size_t k, std::size_t j,
                                                   std::size_t n) TIGON_LAMBDA {
    using strip = pack<V, U>;
    const auto add = [](strip& to, const strip& from) TIGON_LAMBDA {
      detail::unrolled<U>([&](auto u) TIGON_LAMBDA { to.v[u] = from.v[u] + to.v[u]; });
    };
    // Binary counter: level l holds the sum of 2^l consecutive tasks.
    strip level[std::bit_width(B::row.partials)], total;
    std::size_t used = 0;
    for (std::size_t task = 0; task < tasks; ++task) {
      strip sum;
      const A* const from = partials + (task * sums + k) * stride + j;
      detail::unrolled<U>([&](auto u) TIGON_LAMBDA { sum.v[u] = load<V>(from + u * V::size); });
      for (std::size_t carry = task; (carry & 1) != 0; carry >>= 1) add(sum, level[--used]);
      level[used++] = sum;
    }
    detail::unrolled<U>([&](auto u) TIGON_LAMBDA { total.v[u] = V(A(0)); });
    while (used > 0) add(total, level[--used]);
    detail::unrolled<U>([&](auto u) TIGON_LAMBDA {
      P* const to = g.out.data + j + u * V::size;
      if (n >= V::size)
        store(g.mode == gradient::accumulate ? load<V>(to) + total.v[u] : total.v[u], to);
      else
        store_n(g.mode == gradient::accumulate ? load_n<V>(to, n) + total.v[u] : total.v[u], to, n);
    });
  };
  const auto combine_all = [&]<class P>(const parameter_gradient<P>& g, std::size_t k, std::size_t j, std::size_t end) {
    if (g.out.data == nullptr) return;
    constexpr std::size_t U = 4;
    for (; j + U * V::size <= end; j += U * V::size) combine.template operator()<U>(g, k, j, U * V::size);
    for (; j < end; j += V::size) combine.template operator()<1>(g, k, j, std::min(V::size, end - j));
  };
  // A task per 1024 columns: a whole number of vectors of every engine.
  constexpr std::size_t width = 1024;
  ctx.executor().run((cols + width - 1) / width, [&](std::size_t task, std::size_t) {
    std::size_t k = 0;
    (combine_all(out, k++, task * width, std::min(cols, (task + 1) * width)), ...);
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::for_rows_with_partials;
using simd::map_rows;
using simd::no_statistic;
using simd::own_statistic;
using simd::parameter_gradient;
using simd::row_map;
using simd::row_sum;
using simd::staged;
}  // namespace tigon

#endif  // TIGON_ROWS_GRADIENTS_HPP
