// The loops over the columns of a row: for_columns is the only one, with what it is given to do; reduce_columns and
// map_columns are a reduction and a map.
//
//   step        U vectors of columns, U = B::row.unroll, whose operations are independent of one another
//   block       the steps after which a reduction folds its accumulators into a total, and totals in pairs
//   tail        columns that no step covers: the same step, of one vector, which ignores the lanes behind the last of
//               them
//   head        columns before the first at which a vector of the output is aligned, where it is stored past the caches
//   side work   what a map does beside its own work in every step: prefetching, or the reduction of a later row
#ifndef TIGON_ROWS_LANES_LOOP_HPP
#define TIGON_ROWS_LANES_LOOP_HPP

#include <tigon/backend/backend.hpp>
#include <tigon/rows/lanes/sinks.hpp>
#include <tigon/rows/lanes/sources.hpp>
#include <tigon/simd/registers.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// Side work of a map: prefetch the next rows of its operands, or none.
template <bool Prefetch>
struct prefetching {
  static constexpr bool reduces = false, prefetches = Prefetch;
  struct state {};
  template <std::size_t>
  TIGON_INLINE void run(std::size_t) const {}
  template <std::size_t U>
  TIGON_INLINE void finish(const state (&)[U]) const {}
};

// Sources: a row for every row of the program; vectors, the same for every row; a number; rows that reductions
// prefetch.
template <class Source>
inline constexpr bool has_rows = requires { requires Source::has_rows; };
template <class Source>
inline constexpr bool is_vector = requires { requires Source::is_vector; };
template <class Source>
inline constexpr bool is_constant = requires { requires Source::is_constant; };
template <class Source>
inline constexpr bool is_read_again = requires { requires Source::is_read_again; };
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

// Whether consecutive rows of an operand are contiguous, or it has none: the hardware prefetcher crosses such row ends.
template <class Source>
TIGON_INLINE bool is_contiguous(const Source& x, std::size_t cols) {
  if constexpr (has_rows<Source>)
    return x.next == cols;
  else
    return is_constant<Source>;
}

// Prefetches column j + Column of the next row, if the operand is read again.
template <std::size_t Column, int Level, class Source>
TIGON_INLINE void prefetch_if_read_again(const Source& x, std::size_t j) {
  if constexpr (is_read_again<Source>) x.template prefetch<Column, Level>(j);
}

// Whether there is such a row.
template <class Source>
TIGON_INLINE bool is_prefetched(const Source& x) {
  if constexpr (is_read_again<Source>)
    return x.next != 0;
  else
    return false;
}

// Prefetches 2 KiB beyond column j + Column, in this row or the next, once for every cache line.
template <std::size_t Column, class Source>
TIGON_INLINE void prefetch_far(const Source& x, std::size_t j) {
  if constexpr (has_rows<Source>) {
    if constexpr (Source::template begins_line<Column>)
      __builtin_prefetch(reinterpret_cast<const char*>(x.p + j + Column) + 2048);
  }
}

// Totals of a very long row, added in pairs: a plain total of up to `plain` parts, then the next one.
template <class P, bool Used = true>
class pairwise {
 public:
  static constexpr std::size_t plain = 16;

  // Before every part: whether there are `plain` parts in the present total.
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

// The loop. From column `head` on, step(j, ignore_none) takes Step columns at a time, forwards or backwards; begin()
// and end() come around every Block of them, 0 for all. step(j, ignore_from{n}) takes the rest, n <= Lanes, and the
// head.
template <std::size_t Step, std::size_t Block, std::size_t Lanes, class Begin, class OneStep, class End>
TIGON_INLINE void for_columns(std::size_t head, std::size_t cols, bool backwards, Begin begin, OneStep step, End end) {
  const std::size_t last = head + (cols - head) / Step * Step;
  const std::size_t stride = backwards ? std::size_t{0} - Step : Step;
  std::size_t j = backwards ? last - Step : head;
  for (std::size_t left = last - head; left > 0;) {
    const std::size_t count = Block == 0 ? left : std::min(Block, left);
    begin();
    const std::size_t stop = backwards ? j - count : j + count;
    do step(j, ignore_none{}), j += stride;
    while (j != stop);
    end();
    left -= count;
  }
  for (std::size_t k = head != 0 ? 0 : last; k < cols;) {
    const std::size_t n = std::min(Lanes, (k < head ? head : cols) - k);
    step(k, ignore_from{n});
    k += n;
    if (k == head) k = last;
  }
}
// The same forwards from the first column, in one block.
template <std::size_t Step, std::size_t Lanes, class OneStep>
TIGON_INLINE void for_columns(std::size_t cols, OneStep step) {
  const auto none = []() TIGON_LAMBDA {};
  for_columns<Step, 0, Lanes>(0, cols, false, none, step, none);
}
// Vectors of a step: U, or one that is not full.
template <class Ignore, std::size_t U>
inline constexpr std::size_t vectors_of_step = ignores<Ignore> ? 1 : U;

// combine of f(x[j]...) over the columns: independent accumulators, folded into a total after every block, and totals
// in pairs, so that the rounding error does not grow with the length of the row.
template <class B, class V, std::size_t K, class F, class Combine, class... Source>
TIGON_INLINE pack<V, K> reduce_columns(std::size_t cols, pack<V, K> identity, F f, Combine combine, Source... x) {
  constexpr std::size_t N = V::size, U = B::row.unroll;
  constexpr std::size_t sets = N > 1 && K > 4 ? std::min<std::size_t>(U, 2) : U;  // what registers hold
  constexpr std::size_t block = 64 * sets * N / (U * N) * (U * N);
  static constexpr reduce_plan plan = plan_of<B, pass_shape<row_pass::reduce, V, K, Source...>>;
  const auto prefetch = [&](auto u, std::size_t j)
                            TIGON_LAMBDA { (prefetch_if_read_again<u * N, B::row.cpu.prefetch_into>(x, j), ...); };
  [[maybe_unused]] const bool some = plan.may_prefetch && (is_prefetched(x) || ...);
  pack<V, K> total = identity, acc[sets];
  pairwise<pack<V, K>> totals;
  const auto begin = [&]() TIGON_LAMBDA {
    if (totals.is_due()) totals.add(std::exchange(total, identity), combine);
    unrolled<sets>([&](auto u) TIGON_LAMBDA { acc[u] = identity; });
  };
  const auto step = [&](std::size_t j, auto ignore) TIGON_LAMBDA {
    constexpr bool whole = !ignores<decltype(ignore)>;
    if constexpr (whole && plan.may_prefetch)
      if (some) unrolled<U>([&](auto u) TIGON_LAMBDA { prefetch(u, j); });
    unrolled<vectors_of_step<decltype(ignore), U>>([&](auto u) TIGON_LAMBDA {
      if constexpr (whole && plan.prefetches_far) (prefetch_far<u * N>(x, j), ...);
      if constexpr (whole && plan.prefetches) prefetch(u, j);
      pack<V, K> r = f(x.template load<V>(j, u * N, ignore)...);
      unrolled<K>([&](auto k) TIGON_LAMBDA { r.v[k] = kept(r.v[k], identity.v[k], ignore); });
      pack<V, K>& sum = whole ? acc[u % sets] : total;
      sum = combine(sum, r);
    });
  };
  const auto end = [&]() TIGON_LAMBDA {
    halve<sets>([&](auto u, auto width) TIGON_LAMBDA { acc[u] = combine(acc[u], acc[u + width]); });
    total = combine(total, acc[0]);
  };
  for_columns<U * N, block, N>(0, cols, false, begin, step, end);
  return totals.with(total, combine);
}

// f(sink, number of its first result)
template <class... Sink, class F>
TIGON_INLINE void each_sink(const std::tuple<Sink...>& y, F f) {
  unrolled<sizeof...(Sink)>([&](auto k) TIGON_LAMBDA {
    constexpr std::size_t counts[] = {Sink::results...};
    constexpr std::size_t offset = [&] {
      std::size_t sum = 0;
      for (std::size_t before = 0; before < k(); ++before) sum += counts[before];
      return sum;
    }();
    f(std::get<k>(y), std::integral_constant<std::size_t, offset>{});
  });
}

// What a map reduces beside its outputs: of K results behind the first W the last are maxima, the others sums.
template <class V, std::size_t W, std::size_t K, std::size_t Maxima>
struct map_results {
  using S = typename V::value_type;
  using values = pack<V, K == 0 ? 1 : K>;

  template <class I>
  static TIGON_INLINE V identity(I k) {
    return V(k + Maxima < K ? S(0) : -std::numeric_limits<S>::infinity());
  }
  static TIGON_INLINE values none() {
    values result{};
    unrolled<K>([&](auto k) TIGON_LAMBDA { result.v[k] = identity(k); });
    return result;
  }
  static TIGON_INLINE values join(values a, const values& b) {
    unrolled<K>([&](auto k) TIGON_LAMBDA {
      if constexpr (k + Maxima < K)
        a.v[k] = a.v[k] + b.v[k];
      else
        a.v[k] = max(a.v[k], b.v[k]);
    });
    return a;
  }
  // The results among what a map returns.
  template <class R>
  static TIGON_INLINE values of(const R& r) {
    values result{};
    unrolled<K>([&](auto k) TIGON_LAMBDA { result.v[k] = r.v[W + k]; });
    return result;
  }
};

// Where and how a map goes over its columns.
struct map_course {
  std::size_t cols, head = 0;
  std::size_t streamed = 0;  // a bit for the first result of every output that is stored past the caches
  bool backwards = false;
  bool contiguous = false;  // the hardware prefetcher knows the next rows
};

// y[j]... = f(x[j]...), and the K results that are reduced.
template <class B, class V, std::size_t K, std::size_t Maxima, class SideWork, class... Sink, class F, class... Source>
TIGON_INLINE auto map_columns(map_course on, const SideWork& side, std::tuple<Sink...> y, F f, Source... x) {
  constexpr std::size_t N = V::size, U = B::row.unroll, W = (Sink::results + ...);
  constexpr std::size_t block = K == 0 ? 0 : 64 * U * N;
  static constexpr map_plan plan = plan_of<B, pass_shape<row_pass::map, V, K, Source...>>;
  using R = decltype(as_pack(f(x.template load<V>(0)...)));
  static_assert(pack_size<R> == W + K, "tigon: a map returns one vector for every output");
  using results = map_results<V, W, K, Maxima>;
  const auto join = [](auto a, const auto& b) TIGON_LAMBDA { return results::join(a, b); };
  const auto barrier = []() TIGON_LAMBDA {
    if constexpr (plan.in_order) load_barrier();
  };
  const auto prefetch = [&](std::size_t j) TIGON_LAMBDA {
    if constexpr (SideWork::prefetches) {
      if (!on.contiguous)
        unrolled<U>([&](auto u) TIGON_LAMBDA { (x.template prefetch<u * N, B::row.cpu.prefetch_into>(j), ...); });
      else if constexpr (with_rows<Source...> ==
                         1)  // the hardware prefetcher runs too close to the loads of one stream
        unrolled<U>([&](auto u) TIGON_LAMBDA { (prefetch_far<u * N>(x, j), ...); });
    }
  };
  typename results::values total = results::none(), acc[U];
  pairwise<typename results::values, K != 0> totals;
  typename SideWork::state beside[U];
  const auto begin = [&]() TIGON_LAMBDA {
    if constexpr (K != 0) {
      if (totals.is_due()) totals.add(std::exchange(total, results::none()), join);
      unrolled<U>([&](auto u) TIGON_LAMBDA { acc[u] = results::none(); });
    }
  };
  const auto step = [&](std::size_t j, auto ignore) TIGON_LAMBDA {
    constexpr bool whole = !ignores<decltype(ignore)>;
    constexpr std::size_t count = vectors_of_step<decltype(ignore), U>;
    R r[count];
    if constexpr (whole && plan.in_order) prefetch(j);
    unrolled<count>([&](auto u) TIGON_LAMBDA {
      if constexpr (whole) barrier();
      r[u] = as_pack(f(x.template load<V>(j, u * N, ignore)...));
    });
    if constexpr (whole) barrier();
    // Here, as where nothing is written, so that compilers contract products and sums alike.
    if constexpr (K != 0)
      unrolled<count>([&](auto u) TIGON_LAMBDA {
        auto reduced = results::of(r[u]);
        unrolled<K>([&](auto k) TIGON_LAMBDA { reduced.v[k] = kept(reduced.v[k], results::identity(k), ignore); });
        auto& sum = whole ? acc[u] : total;
        sum = results::join(sum, reduced);
      });
    if constexpr (SideWork::reduces)
      unrolled<count>([&](auto u) TIGON_LAMBDA { side.add(beside[u], j, u * N, ignore); });
    if constexpr (whole && !plan.in_order) prefetch(j);
    // One body for both kinds of stores: a branch that is always taken alike costs less than compiling f twice.
    each_sink(y, [&](auto out, auto k) TIGON_LAMBDA {
      if (V::size > 1 && whole && (on.streamed >> k & 1) != 0)
        out.template put<V::size != 1 && whole>(r, k, j, ignore);
      else
        out.template put<false>(r, k, j, ignore);
    });
  };
  const auto end = [&]() TIGON_LAMBDA {
    if constexpr (K != 0) {
      halve<U>([&](auto u, auto width) TIGON_LAMBDA { acc[u] = results::join(acc[u], acc[u + width]); });
      total = results::join(total, acc[0]);
    }
  };
  for_columns<U * N, block, N>(on.head, on.cols, on.backwards, begin, step, end);
  side.finish(beside);
  if constexpr (K != 0)
    return totals.with(total, join);
  else
    return total;
}

}  // namespace detail
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_LANES_LOOP_HPP
