// Row programs: the loop over a row, its unrolling and its tail, written once.
//
//   for_rows<B>(ctx, rows, cols, [=] TIGON_FN(auto row) {
//     const auto r = tigon::math::rsqrt(row.sum(reads(x), [](auto v) { return v * v; }) / row.cols + eps);
//     row.map(reads(x, w), writes(y), [=](auto v, auto g) { return v * r * g; });
//   });
//
// A row is the engine's worker on one row: on a CPU the lanes of one core. Operands are matrix views (their row i),
// vector views (the same for every row) and `columns` (the column index as a number). Functions take and return
// vectors of any engine. Rows are cut into tasks by shape alone and sums are made in a fixed order, so results do not
// depend on the number of threads.
#ifndef TIGON_ROWS_ROW_HPP
#define TIGON_ROWS_ROW_HPP

#include <tigon/backend/backend.hpp>
#include <tigon/core/context.hpp>
#include <tigon/rows/operands.hpp>
#include <tigon/simd/math.hpp>
#include <tigon/simd/vec.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
/// Sums over very many rows: up to plain_rows rows are added one after the other in a row of sums. Of more rows, every
/// column's sum is added to a compensated total, and begins anew, after plain_rows rows or fewer, so that the rounding
/// error does not grow with the number of rows. Such a sum has three rows in memory, others have one.
inline constexpr std::size_t plain_rows = 64;
constexpr std::size_t rows_per_sum(std::size_t rows) { return rows > plain_rows ? 3 : 1; }

namespace detail {

// What a writing loop does in passing: it asks for the next row; or nothing.
template <bool Prefetch>
struct no_sum {
  static constexpr bool any = false, prefetches = Prefetch;
  struct state {};
  template <std::size_t>
  TIGON_INLINE void run(std::size_t) const {}
  TIGON_INLINE void add_n(state&, std::size_t, std::size_t) const {}
  template <std::size_t U>
  TIGON_INLINE void finish(const state (&)[U]) const {}
};

using no_errand = no_sum<true>;

// Sources with a row for every row of the program.
template <class Source>
inline constexpr bool has_rows = false;
template <class T>
inline constexpr bool has_rows<row_source<T, true>> = true;
template <class Source>
inline constexpr bool has_rows<asking_source<Source>> = has_rows<Source>;
// Vectors, which are the same for every row.
template <class Source>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<row_source<T, false>> = true;
template <class T>
inline constexpr bool is_vector<optional_source<T, false>> = true;
template <class... Source>
inline constexpr std::size_t with_rows = (std::size_t{has_rows<Source>} + ... + 0);

// Bytes of an element of a matrix, otherwise 0.
template <class Source>
constexpr std::size_t row_bytes() {
  if constexpr (has_rows<Source>)
    return sizeof(typename Source::element_type);
  else
    return 0;
}

// What a pass over a row reads, and so many sums that it makes.
template <row_pass Pass, class V, std::size_t Sums, class... Source>
inline constexpr row_shape pass_shape{.pass = Pass,
                                      .matrices = with_rows<Source...>,
                                      .vectors = (std::size_t{is_vector<Source>} + ... + 0),
                                      .others = (std::size_t{!has_rows<Source> && !is_vector<Source>} + ... + 0),
                                      .sums = Sums,
                                      .element_bytes = narrowest({row_bytes<Source>()...}),
                                      .lanes = V::size};

// Whether rows of so many columns of an operand lie one behind the other, or there are none: processors follow those by
// themselves.
template <class Source>
TIGON_INLINE bool lies_in_line(const Source& x, std::size_t cols) {
  if constexpr (has_rows<Source>)
    return x.next == cols;
  else
    return is_constant<Source>;
}

// Asks for those columns of the next row, if the operand is read again.
template <std::size_t Column, int Level, class Source>
TIGON_INLINE void ask_in_sum(const Source& x, std::size_t j) {
  if constexpr (asks_in_sums<Source>) x.template prefetch<Column, Level>(j);
}

template <class Source>
TIGON_INLINE bool asked_for(const Source& x) {
  if constexpr (asks_in_sums<Source>)
    return x.next != 0;
  else
    return false;
}

// Asks for what lies 2 KiB beyond those columns, in this row or the next, once for every cache line.
template <std::size_t Column, class Source>
TIGON_INLINE void prefetch_ahead(const Source& x, std::size_t j) {
  if constexpr (has_rows<Source>) {
    if constexpr (Source::template begins_line<Column>)
      __builtin_prefetch(reinterpret_cast<const char*>(x.p + j + Column) + 2048);
  }
}

/// Totals of a very long row, added in pairs: a plain total of up to `plain` parts, then the next one.
template <class P, bool Used = true>
class pairwise {
 public:
  static constexpr std::size_t plain = 16;

  /// Asked before every part: whether there are `plain` parts in the present total.
  TIGON_INLINE bool is_due() { return parts_++ == plain; }
  template <class Combine>
  [[gnu::noinline]] void add(P total, Combine combine) {
    parts_ = 1;
    // Binary counter: level l holds 2^l totals in succession.
    for (std::size_t carry = totals_++; (carry & 1) != 0; carry >>= 1) total = combine(level_[--used_], total);
    level_[used_++] = total;
  }
  template <class Combine>
  TIGON_INLINE P with(P total, Combine combine) {
    while (used_ > 0) total = combine(level_[--used_], total);
    return total;
  }

 private:
  std::size_t parts_ = 0, totals_ = 0, used_ = 0;
  P level_[32];
};
template <class P>
class pairwise<P, false> {};

}  // namespace detail

/// The worker of one row. Made by for_rows and its cousins.
template <class B, class A, class Errand = detail::no_errand>
class row_worker {
 public:
  std::size_t i;     ///< index of the row
  std::size_t cols;  ///< width of the row

  TIGON_INLINE row_worker(std::size_t index, std::size_t width, A* partials = nullptr, A* scratch = nullptr,
                          std::size_t stride = 0, std::size_t first = 0, Errand errand = {})
      : i(index),
        cols(width),
        partials_(partials),
        scratch_(scratch),
        stride_(stride),
        at_{index, first},
        errand_(errand) {}

  /// True for the one worker of this row that writes scalars. Always, on a CPU.
  TIGON_INLINE bool first() const { return true; }

  /// The same worker on a part of the row: a row of `width` columns.
  TIGON_INLINE row_worker narrow(std::size_t width) const { return part(at_.column, width); }
  /// The same worker on columns [first, first + width): operands and outputs are whole rows still.
  TIGON_INLINE row_worker part(std::size_t first, std::size_t width) const {
    row_worker worker = *this;
    worker.cols = width;
    worker.at_.column = first;
    return worker;
  }

  /// The same worker on another row of its operands.
  TIGON_INLINE row_worker on(std::size_t row) const {
    row_worker worker = *this;
    worker.i = worker.at_.row = row;
    return worker;
  }

  /// The same worker, which asks for the row that comes so many rows further down, not for the next.
  TIGON_INLINE row_worker asking(std::size_t ahead) const {
    row_worker worker = *this;
    worker.at_.ahead = ahead;
    worker.leads_ = true;
    return worker;
  }

  /// The task's k-th partial row of a parameter gradient; combined over the tasks when all rows are done.
  TIGON_INLINE vector_view<A> partial(std::size_t k) const { return {partials_ + k * stride_, cols}; }
  /// The worker's k-th scratch row.
  TIGON_INLINE vector_view<A> scratch(std::size_t k) const { return {scratch_ + k * stride_, cols}; }

  // The side work of a map of this row, which is not made.
  TIGON_INLINE void side_work() const { errand_.template run<B::row.unroll>(cols); }

  /// One element of the row.
  template <class T>
  TIGON_INLINE accumulator_t<std::remove_const_t<T>> at(matrix_view<T> m, std::size_t j) const {
    return static_cast<accumulator_t<std::remove_const_t<T>>>(m.row(i)[j]);
  }
  template <class T>
  TIGON_INLINE accumulator_t<std::remove_const_t<T>> at(vector_view<T> v, std::size_t j) const {
    return static_cast<accumulator_t<std::remove_const_t<T>>>(v.data[j]);
  }
  /// Writes one element of the row.
  template <class T>
  TIGON_INLINE void put(matrix_view<T> m, std::size_t j, accumulator_t<T> value) const {
    m.row(i)[j] = static_cast<T>(value);
  }
  template <class T>
  TIGON_INLINE void put(vector_view<T> v, std::size_t j, accumulator_t<T> value) const {
    v.data[j] = static_cast<T>(value);
  }

  /// y[j]... = f(x[j]...); f returns a pack where there are several outputs. Outputs may be operands.
  template <class... X, class... Y, class F>
  TIGON_INLINE void map(reads<X...> in, writes<Y...> out, F f) const {
    std::apply([&](auto... x) TIGON_LAMBDA { (void)write<0>(sinks(out), f, detail::source<B>(x, beside<X...>())...); },
               in.x);
  }

  /// Map and sum in one pass: f returns a pack whose first vectors go to the outputs and whose others are summed. Returns
  /// the sum, or an array of them.
  template <class... X, class... Y, class F>
  TIGON_INLINE auto map_sum(reads<X...> in, writes<Y...> out, F f) const {
    return std::apply(
        [&](auto... x) TIGON_LAMBDA {
          using R = decltype(f(detail::source<B>(x, at_).template load<detail::vec_of<B, X...>>(0)...));
          constexpr std::size_t K = detail::pack_size<R> - sizeof...(Y);
          const auto total = write<K>(sinks(out), f, detail::source<B>(x, beside<X...>())...);
          return finish<K>([&](auto k) TIGON_LAMBDA { return sum_lanes(total.v[k]); });
        },
        in.x);
  }

  /// Map, sum and maximum in one pass: f returns a pack of what goes to the output, a vector that is summed and one whose
  /// maximum is taken. Returns the sum and the maximum, in which a NaN may or may not be seen.
  template <class... X, class... Y, class F>
  TIGON_INLINE auto map_sum_max(reads<X...> in, writes<Y...> out, F f) const {
    return std::apply(
        [&](auto... x) TIGON_LAMBDA {
          const auto total = write<2, 1>(sinks(out), f, detail::source<B>(x, beside<X...>())...);
          return std::array{sum_lanes(total.v[0]), max_lanes(total.v[1])};
        },
        in.x);
  }

  /// Sum over the row of f(x[j]...); an array of sums where f returns a pack.
  template <class... X, class F>
  TIGON_INLINE auto sum(reads<X...> in, F f) const {
    using V = detail::vec_of<B, X...>;
    return std::apply(
        [&](auto... x) TIGON_LAMBDA {
          using R = decltype(f(detail::source<B>(x, at_).template load<V>(0)...));
          constexpr std::size_t K = detail::pack_size<R>;
          pack<V, K> zero;
          detail::unrolled<K>([&](auto k) TIGON_LAMBDA { zero.v[k] = V(0); });
          const auto total = accumulate<V>(
              zero, [f](auto... v) TIGON_LAMBDA { return detail::as_pack(f(v...)); },
              [](auto a, auto b) TIGON_LAMBDA {
                detail::unrolled<K>([&](auto k) TIGON_LAMBDA { a.v[k] = a.v[k] + b.v[k]; });
                return a;
              },
              detail::source<B>(x, beside<X...>())...);
          return finish<K>([&](auto k) TIGON_LAMBDA { return sum_lanes(total.v[k]); });
        },
        in.x);
  }

  /// Maximum over the row of f(x[j]...), -infinity for an empty row. A NaN may or may not be seen.
  template <class... X, class F>
  TIGON_INLINE auto max(reads<X...> in, F f) const {
    using V = detail::vec_of<B, X...>;
    using S = typename V::value_type;
    return std::apply(
        [&](auto... x) TIGON_LAMBDA {
          const auto total = accumulate<V>(
              pack<V, 1>{{V(-std::numeric_limits<S>::infinity())}},
              [f](auto... v) TIGON_LAMBDA { return detail::as_pack(f(v...)); },
              [](auto a, auto b) TIGON_LAMBDA {
                a.v[0] = detail::larger(a.v[0], b.v[0]);
                return a;
              },
              detail::source<B>(x, beside<X...>())...);
          return max_lanes(total.v[0]);
        },
        in.x);
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
    const auto total = std::apply(
        [&](auto... x)
            TIGON_LAMBDA { return accumulate<V>(start, f, combine, detail::source<B>(x, beside<X...>())...); },
        in.x);
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

  /// Inclusive scan: y[j] = combine(y[j - 1], x[j]), y[-1] = init. `combine` takes and returns numbers.
  template <class X, class Y, class S, class Combine>
  TIGON_INLINE void scan(reads<X> x, writes<Y> y, S init, Combine combine) const {
    const auto in = detail::source<B>(std::get<0>(x.x), at_);
    const auto out = detail::sink(std::get<0>(y.y), at_);
    S running = init;
    for (std::size_t j = 0; j < cols; ++j) {
      running = combine(running, static_cast<S>(in.p[j]));
      out.p[j] = static_cast<typename decltype(out)::element_type>(running);
    }
  }

 private:
  template <std::size_t K, class F>
  static TIGON_INLINE auto finish(F f) {
    return [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      if constexpr (K == 1)
        return f(std::integral_constant<std::size_t, 0>{});
      else
        return std::array{f(std::integral_constant<std::size_t, k>{})...};
    }(std::make_index_sequence<K>{});
  }

  // The one loop that reduces: unrolled into independent accumulators, and those folded into a total every `block`
  // columns, and totals in pairs, so that the rounding error does not grow with the length of the row. More rows than a
  // processor follows by itself are asked for ahead.
  template <class V, std::size_t K, class F, class Combine, class... Source>
  TIGON_INLINE pack<V, K> accumulate(pack<V, K> identity, F f, Combine combine, Source... x) const {
    read_ = true;
    constexpr std::size_t N = V::size;
    constexpr std::size_t U = B::row.unroll;
    constexpr std::size_t sets = N > 1 && K > 4 ? std::min<std::size_t>(U, 2) : U;  // what registers hold
    constexpr std::size_t block = 64 * sets * N;
    constexpr row_plan plan = plan_of<B, detail::pass_shape<row_pass::reduce, V, K, Source...>>;
    constexpr bool asks = plan.reduce_prefetches, may_ask = plan.reduce_may_prefetch;
    const auto ask = [&](auto u, std::size_t j)
                         TIGON_LAMBDA { (detail::ask_in_sum<u * N, B::row.cpu.prefetch_into>(x, j), ...); };
    [[maybe_unused]] const bool is_asked = may_ask && (detail::asked_for(x) || ...);
    pack<V, K> total = identity;
    detail::pairwise<pack<V, K>> totals;
    std::size_t j = 0;
    while (j + U * N <= cols) {
      const std::size_t end = std::min(cols, j + block);
      if (totals.is_due()) totals.add(std::exchange(total, identity), combine);
      pack<V, K> acc[sets];
      detail::unrolled<sets>([&](auto u) TIGON_LAMBDA { acc[u] = identity; });
      for (; j + U * N <= end; j += U * N) {
        if constexpr (may_ask)
          if (is_asked) detail::unrolled<U>([&](auto u) TIGON_LAMBDA { ask(u, j); });
        detail::unrolled<U>([&](auto u) TIGON_LAMBDA {
          if constexpr (plan.reduce_prefetches_far) (detail::prefetch_ahead<u * N>(x, j), ...);
          if constexpr (asks) ask(u, j);
          acc[u % sets] = combine(acc[u % sets], f(x.template load<V>(j, u * N)...));
        });
      }
      detail::halve<sets>([&](auto u, auto width) TIGON_LAMBDA { acc[u] = combine(acc[u], acc[u + width]); });
      total = combine(total, acc[0]);
    }
    for (; j < cols; j += N) {
      const std::size_t n = std::min(N, cols - j);
      const auto inside = V::iota() < V(static_cast<typename V::value_type>(n));
      pack<V, K> rest = f(x.template load_n<V>(j, n)...);
      detail::unrolled<K>([&](auto k) TIGON_LAMBDA { rest.v[k] = select(inside, rest.v[k], identity.v[k]); });
      total = combine(total, rest);
    }
    return totals.with(total, combine);
  }

  // The place of operands whose next rows are asked for.
  template <class... X>
  TIGON_INLINE detail::place beside() const {
    constexpr std::size_t sharing = plan_of<B, row_shape{}>.rows_share_cache ? detail::matrices_of<X...> : 1;
    return {at_.row, at_.column, sharing, at_.ahead};
  }

  template <class... Y>
  TIGON_INLINE auto sinks(writes<Y...> out) const {
    return std::apply([&](auto... y) TIGON_LAMBDA { return std::make_tuple(detail::sink(y, at_)...); }, out.y);
  }

  // Outputs that outgrow the caches are streamed past them, each unless it is an operand. Writing passes also ask for
  // the next row of every large operand, so that its first pass finds it near: memory works while lanes compute. Of K
  // results that are reduced the last are maxima, the others sums.
  template <std::size_t K, std::size_t Maxima = 0, class... Sink, class F, class... Source>
  TIGON_INLINE auto write(std::tuple<Sink...> y, F f, Source... x) const {
    using V = detail::write_vec<B, std::tuple<Sink...>, Source...>;
    std::size_t streamed = 0, head = 0;  // a bit for the first result of every output; columns before the first vector
    if constexpr (V::size > 1) {
      each(y, [&](auto out, auto k) TIGON_LAMBDA {
        if (!out.streams(B::row.stream_bytes, x.begin()...)) return;
        if (streamed == 0) head = std::min(cols, out.template head<V>());
        if (out.template aligned_after<V>(head)) streamed |= std::size_t{1} << k;
      });
      if constexpr (Errand::any)
        if (head != 0) streamed = 0;  // the order of an errand depends on nothing but the columns
      if (streamed == 0) head = 0;
    }
    return write_loop<K, Maxima, V>(streamed, head, y, f, x...);
  }

  // The one loop that writes; where B says so from the end to the beginning in a row that was read before, because what
  // the pass before read last is still in the first-level cache. Or so in every other row: vectors that leave that cache
  // with every row begin with the columns that the row before has left there.
  template <std::size_t K, std::size_t Maxima, class V, class... Sink, class F, class... Source>
  TIGON_INLINE auto write_loop(std::size_t streamed, std::size_t head, std::tuple<Sink...> y, F f, Source... x) const {
    constexpr std::size_t N = V::size;
    constexpr std::size_t U = B::row.unroll;
    constexpr std::size_t W = (Sink::results + ...);
    constexpr std::size_t block = 64 * U * N;
    using R = decltype(detail::as_pack(f(x.template load<V>(0)...)));
    static_assert(detail::pack_size<R> == W + K, "tigon: a map returns one vector for every output");
    using S = typename V::value_type;
    const auto none = [](auto k)
                          TIGON_LAMBDA { return V(k + Maxima < K ? S(0) : -std::numeric_limits<S>::infinity()); };
    const auto join = [](auto k, V a, V b) TIGON_LAMBDA {
      if constexpr (k + Maxima < K)
        return a + b;
      else
        return detail::larger(a, b);
    };
    pack<V, K == 0 ? 1 : K> total{};
    detail::unrolled<K>([&](auto k) TIGON_LAMBDA { total.v[k] = none(k); });
    const auto total_of_none = total;
    const auto add = [&](auto& sums, const R& r) TIGON_LAMBDA {
      detail::unrolled<K>([&](auto k) TIGON_LAMBDA { sums.v[k] = join(k, sums.v[k], r.v[W + k]); });
    };
    constexpr row_plan plan = plan_of<B, detail::pass_shape<row_pass::map, V, K, Source...>>;
    constexpr bool in_order = plan.in_order;
    const auto barrier = []() TIGON_LAMBDA {
      if constexpr (in_order) asm volatile("" ::: "memory");
    };
    // The processor alone follows a single one too closely: that is asked for a little ahead.
    const bool followed = plan.leaves_contiguous && !read_ && !leads_ && (detail::lies_in_line(x, cols) && ...);
    const auto ask = [&](std::size_t j) TIGON_LAMBDA {
      if constexpr (Errand::prefetches) {
        if (!followed)
          detail::unrolled<U>([&](auto u)
                                  TIGON_LAMBDA { (x.template prefetch<u * N, B::row.cpu.prefetch_into>(j), ...); });
        else if constexpr (detail::with_rows<Source...> == 1)
          detail::unrolled<U>([&](auto u) TIGON_LAMBDA { (detail::prefetch_ahead<u * N>(x, j), ...); });
      }
    };
    typename Errand::state passing[U];
    const auto part = [&](std::size_t j, std::size_t n) TIGON_LAMBDA {
      errand_.add_n(passing[0], j, n);
      R r = detail::as_pack(f(x.template load_n<V>(j, n)...));
      each(y, [&](auto out, auto k) TIGON_LAMBDA { out.put_n(r, k, j, n); });
      if constexpr (K != 0) {
        const auto inside = V::iota() < V(static_cast<S>(n));
        detail::unrolled<K>([&](auto k) TIGON_LAMBDA { r.v[W + k] = select(inside, r.v[W + k], none(k)); });
        add(total, r);
      }
    };
    const std::size_t last = head + (cols - head) / (U * N) * (U * N);
    const bool backwards = !Errand::any && read_ && (plan.backwards || (plan.serpentine && at_.row % 2 != 0));
    std::size_t at = backwards ? last - U * N : head;
    const std::size_t step = backwards ? std::size_t{0} - U * N : U * N;
    const auto join_all = [&](auto a, const auto& b) TIGON_LAMBDA {
      detail::unrolled<K>([&](auto k) TIGON_LAMBDA { a.v[k] = join(k, a.v[k], b.v[k]); });
      return a;
    };
    detail::pairwise<std::remove_const_t<decltype(total_of_none)>, K != 0> totals;
    for (std::size_t left = last - head; left > 0;) {
      const std::size_t count = K == 0 ? left : std::min(block, left);
      if constexpr (K != 0)
        if (totals.is_due()) totals.add(std::exchange(total, total_of_none), join_all);
      pack<V, K == 0 ? 1 : K> acc[U];
      if constexpr (K != 0) detail::unrolled<U>([&](auto u) TIGON_LAMBDA { acc[u] = total_of_none; });
      for (std::size_t done = 0; done < count; done += U * N, at += step) {
        const std::size_t j = at;
        R r[U];
        if constexpr (in_order) ask(j);
        detail::unrolled<U>([&](auto u) TIGON_LAMBDA {
          barrier();
          r[u] = detail::as_pack(f(x.template load<V>(j, u * N)...));
        });
        barrier();
        // Here, as where nothing is written, so that compilers contract products and sums alike.
        if constexpr (K != 0) detail::unrolled<U>([&](auto u) TIGON_LAMBDA { add(acc[u], r[u]); });
        if constexpr (Errand::any) detail::unrolled<U>([&](auto u) TIGON_LAMBDA { errand_.add(passing[u], j, u * N); });
        if constexpr (!in_order) ask(j);
        // One body for both kinds of stores: a branch that is always taken alike costs less than compiling f twice.
        each(y, [&](auto out, auto k) TIGON_LAMBDA {
          if (V::size > 1 && (streamed >> k & 1) != 0)
            out.template put<V::size != 1>(r, k, j);
          else
            out.template put<false>(r, k, j);
        });
      }
      if constexpr (K != 0) {
        detail::halve<U>([&](auto u, auto width) TIGON_LAMBDA {
          detail::unrolled<K>([&](auto k) TIGON_LAMBDA { acc[u].v[k] = join(k, acc[u].v[k], acc[u + width].v[k]); });
        });
        total = join_all(total, acc[0]);
      }
      left -= count;
    }
    // What no unrolled step covers: the head and the rest.
    for (std::size_t j = head != 0 ? 0 : last; j < cols;) {
      const std::size_t n = std::min(N, (j < head ? head : cols) - j);
      part(j, n);
      j += n;
      if (j == head) j = last;
    }
    errand_.finish(passing);
    if constexpr (K != 0)
      return totals.with(total, join_all);
    else
      return total;
  }

  // f(sink, number of its first result)
  template <class... Sink, class F>
  static TIGON_INLINE void each(const std::tuple<Sink...>& y, F f) {
    detail::unrolled<sizeof...(Sink)>([&](auto k) TIGON_LAMBDA {
      constexpr std::size_t counts[] = {Sink::results...};
      constexpr std::size_t offset = [&] {
        std::size_t sum = 0;
        for (std::size_t before = 0; before < k(); ++before) sum += counts[before];
        return sum;
      }();
      f(std::get<k>(y), std::integral_constant<std::size_t, offset>{});
    });
  }

  A* partials_;
  A* scratch_;
  std::size_t stride_;
  detail::place at_;
  [[no_unique_address]] Errand errand_;
  mutable bool read_ = false;  // a pass over this row has been made
  bool leads_ = false;         // others may have read it before: the processor does not see the next rows being read
};

namespace detail {

template <class B>
constexpr std::size_t rows_per_task(std::size_t rows, std::size_t cols) {
  const std::size_t fitting = B::row.task_elements / std::max<std::size_t>(cols, 1);
  return std::clamp<std::size_t>(fitting, 1, std::max<std::size_t>(rows, 1));
}

}  // namespace detail

/// Whether there are rows and each begins at a cache line: a sum that map_sum makes while it writes them has the bits of
/// one that is made alone, whether they are written past the caches or not.
template <class T>
bool rows_begin_lines(matrix_view<T> m) {
  constexpr std::size_t line = 64;
  return m.data != nullptr && reinterpret_cast<std::uintptr_t>(m.data) % line == 0 &&
         m.row_stride * sizeof(T) % line == 0;
}

/// Calls fn(row) for every row.
template <class B, class A = float, class F>
void for_rows(context& ctx, std::size_t rows, std::size_t cols, F fn) {
  const std::size_t per_task = detail::rows_per_task<B>(rows, cols);
  ctx.executor().run((rows + per_task - 1) / per_task, [&](std::size_t task, std::size_t) TIGON_FLATTEN {
    const std::size_t end = std::min(rows, (task + 1) * per_task);
    for (std::size_t i = task * per_task; i < end; ++i) fn(row_worker<B, A>(i, cols));
    stream_fence();
  });
}

/// Bytes that for_rows_with_scratch takes from the workspace.
template <class B, class A>
std::size_t scratch_workspace(std::size_t cols, std::size_t scratch_rows, const context& ctx) {
  return workspace::bytes_for<A>(ctx.executor().workers(), scratch_rows, workspace::padded<A>(cols));
}

/// As for_rows; row.scratch(k), k < scratch_rows, are rows of A that belong to the worker.
template <class B, class A, class F>
void for_rows_with_scratch(context& ctx, std::size_t rows, std::size_t cols, std::size_t scratch_rows, F fn) {
  const std::size_t per_task = detail::rows_per_task<B>(rows, cols);
  const std::size_t stride = workspace::padded<A>(cols);
  workspace::frame frame(ctx.workspace());
  A* scratch = frame.template take<A>(ctx.executor().workers() * scratch_rows * stride);
  ctx.executor().run((rows + per_task - 1) / per_task, [&](std::size_t task, std::size_t worker) TIGON_FLATTEN {
    A* own = scratch + worker * scratch_rows * stride;
    const std::size_t end = std::min(rows, (task + 1) * per_task);
    for (std::size_t i = task * per_task; i < end; ++i) fn(row_worker<B, A>(i, cols, nullptr, own, stride));
    stream_fence();
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::for_rows;
using simd::for_rows_with_scratch;
using simd::pack;
using simd::round_computed_to;
using simd::round_to;
}  // namespace tigon

#endif  // TIGON_ROWS_ROW_HPP
