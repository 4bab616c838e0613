// Row programs: the loop over a row, its unrolling and its tail, written once.
//
//   for_rows<B>(ctx, rows, cols, [=] TIGON_FN(auto row) {
//     const auto r = tigon::math::rsqrt(row.sum([](auto v) { return v * v; }, x) / row.cols + eps);
//     row.map(y, [=](auto v, auto g) { return v * r * g; }, x, w);
//   });
//
// A row is the engine's worker on one row: on a CPU the lanes of one core. Operands are matrix views (their row i),
// vector views (the same for every row) and `columns` (the column index as a number). Functions take and return
// vectors of any engine. Rows are cut into tasks by shape alone and sums are made in a fixed order, so results do not
// depend on the number of threads.
#ifndef TIGON_SIMD_ROW_HPP
#define TIGON_SIMD_ROW_HPP

#include <tigon/backend/backend.hpp>
#include <tigon/core/context.hpp>
#include <tigon/simd/math.hpp>
#include <tigon/simd/vec.hpp>

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// Operand: the index of the column, as a number.
struct columns_t {};
inline constexpr columns_t columns{};

/// Operand: the same number in every column, for example in place of a weight that is absent.
template <class A>
struct constant {
  A value;
  constexpr TIGON_INLINE explicit constant(A v) : value(v) {}
};

/// Operand of a row_sum, a zero to its function: rows that only the row_map reads are brought near with the others.
template <class Operand>
struct nearby {
  Operand operand;
  constexpr TIGON_INLINE explicit nearby(Operand o) : operand(o) {}
};

/// Operand: the even columns of a matrix of pairs, 0, 2, ..., or the odd ones, as columns 0, 1, ...
template <class T>
struct even_columns {
  matrix_view<T> pairs;
};
template <class T>
struct odd_columns {
  matrix_view<T> pairs;
};
/// Output for two results: the first goes to the even columns, the second to the odd ones.
template <class T>
struct pair_columns {
  matrix_view<T> pairs;
};

/// A row that lies anywhere in an output of `bytes` bytes, or some rows of one; streamed past the caches as the rows of
/// all of it are.
template <class T>
struct row_at {
  T* data;
  std::size_t bytes;
};
template <class T>
struct rows_of {
  matrix_view<T> part;
  std::size_t bytes;
};

/// Several outputs of one map; the function returns a pack of as many vectors.
template <class... Outs>
struct outs {
  std::tuple<Outs...> out;
  explicit constexpr outs(Outs... o) : out(o...) {}
};

namespace detail {

// What a loop reads.
template <class T, bool Matrix>
struct row_source {
  using element_type = std::remove_const_t<T>;
  T* p;
  std::size_t next;  // elements to the row that is read next, where asking for it early pays; otherwise 0
  template <class V>
  TIGON_INLINE V load(std::size_t j) const {
    return simd::load<V>(p + j);
  }
  template <class V>
  TIGON_INLINE V load_n(std::size_t j, std::size_t n) const {
    return simd::load_n<V>(p + j, n);
  }
  TIGON_INLINE const void* begin() const { return p; }
  // Without a branch: where there is nothing to ask for, it asks for what it has.
  TIGON_INLINE void prefetch(std::size_t j) const {
    if constexpr (Matrix) __builtin_prefetch(p + next + j, 0, 2);
  }
};

struct column_source {
  using element_type = void;
  std::size_t first;
  template <class V>
  TIGON_INLINE V load(std::size_t j) const {
    return V::iota() + V(static_cast<typename V::value_type>(first + j));
  }
  template <class V>
  TIGON_INLINE V load_n(std::size_t j, std::size_t) const {
    return load<V>(j);
  }
  TIGON_INLINE const void* begin() const { return nullptr; }
  TIGON_INLINE void prefetch(std::size_t) const {}
};

template <class A>
struct constant_source {
  using element_type = void;
  A value;
  template <class V>
  TIGON_INLINE V load(std::size_t) const {
    return V(value);
  }
  template <class V>
  TIGON_INLINE V load_n(std::size_t, std::size_t) const {
    return V(value);
  }
  TIGON_INLINE const void* begin() const { return nullptr; }
  TIGON_INLINE void prefetch(std::size_t) const {}
};

// Where a worker is: its row and its first column; and how many matrices it reads, whose next rows share the caches.
struct place {
  std::size_t row, column, matrices = 1;
};

template <class B, class T>
TIGON_INLINE row_source<T, true> source(matrix_view<T> m, place at) {
  constexpr std::size_t row_bytes = B::row.prefetch_row_bytes;
  const bool early = row_bytes != 0 && at.row + 1 < m.rows && at.matrices * m.cols * sizeof(T) <= row_bytes &&
                     m.rows * m.cols * sizeof(T) >= B::row.stream_bytes;
  return {m.row(at.row) + at.column, early ? m.row_stride : 0};
}
template <class B, class T>
TIGON_INLINE row_source<T, false> source(vector_view<T> v, place at) {
  return {v.data + at.column, 0};
}
template <class B, class A>
TIGON_INLINE constant_source<A> source(constant<A> c, place) {
  return {c.value};
}
// Reads a byte of each vector: that sets off the same prefetchers as reading all of it.
template <class T>
struct nearby_source {
  using element_type = void;
  const T* p;
  template <class V>
  TIGON_INLINE V load(std::size_t j) const {
    if constexpr (V::size > 1) (void)*reinterpret_cast<const volatile unsigned char*>(p + j);
    return V(typename V::value_type(0));
  }
  template <class V>
  TIGON_INLINE V load_n(std::size_t, std::size_t) const {
    return V(typename V::value_type(0));
  }
  TIGON_INLINE const void* begin() const { return nullptr; }
  TIGON_INLINE void prefetch(std::size_t) const {}
};
template <class B, class T>
TIGON_INLINE auto source(nearby<matrix_view<T>> n, place at) {
  if constexpr (B::row.sum_ahead)  // the sum is of rows that are written much later
    return constant_source<accumulator_t<std::remove_const_t<T>>>{0};
  else
    return nearby_source<T>{n.operand.row(at.row) + at.column};
}
template <class B, class A>
TIGON_INLINE constant_source<A> source(nearby<constant<A>> n, place) {
  return {n.operand.value};
}
template <class B>
TIGON_INLINE column_source source(columns_t, place at) {
  return {at.column};
}

template <class B, class Operand>
using source_element = typename decltype(source<B>(std::declval<Operand>(), place{}))::element_type;

// Bytes of a column of an operand that has a row of its own for every row.
template <class Operand>
inline constexpr std::size_t matrix_bytes = 0;
template <class T>
inline constexpr std::size_t matrix_bytes<matrix_view<T>> = sizeof(T);
template <class T>
inline constexpr std::size_t matrix_bytes<even_columns<T>> = sizeof(T);
template <class T>
inline constexpr std::size_t matrix_bytes<odd_columns<T>> = sizeof(T);
template <class Operand>
inline constexpr std::size_t matrix_bytes<nearby<Operand>> = matrix_bytes<Operand>;

template <class... Ts>
struct first_element;
template <class T, class... Ts>
struct first_element<T, Ts...> {
  using type = T;
};
template <class... Ts>
struct first_element<void, Ts...> : first_element<Ts...> {};

// The vector of a loop: lanes of the engine, in the accumulator type of the first operand that has elements.
template <class B, class... Operands>
using vec_of = vec<typename B::engine, accumulator_t<typename first_element<source_element<B, Operands>...>::type>>;

// The vector of a loop that writes: as above, or by the first output where no operand has elements.
template <class B, class Sinks, class... Source>
struct write_vec_of;
template <class B, class... Sink, class... Source>
struct write_vec_of<B, std::tuple<Sink...>, Source...> {
  using type = vec<
      typename B::engine,
      accumulator_t<typename first_element<typename Source::element_type..., typename Sink::element_type...>::type>>;
};
template <class B, class Sinks, class... Source>
using write_vec = typename write_vec_of<B, Sinks, Source...>::type;

template <class R>
inline constexpr std::size_t pack_size = 1;
template <class V, std::size_t N>
inline constexpr std::size_t pack_size<pack<V, N>> = N;

template <class V>
TIGON_INLINE V larger(V a, V b) {
  return max(a, b);
}

// f(0), ..., f(N - 1) with constants for indices: an array that is indexed so is known to be registers from the start.
template <std::size_t N, class F>
TIGON_INLINE void unrolled(F f) {
  [&]<std::size_t... K>(std::index_sequence<K...>)
      TIGON_LAMBDA { (f(std::integral_constant<std::size_t, K>{}), ...); }(std::make_index_sequence<N>{});
}

// f(u, width) for a fold of U values into the first: u < width, and width is U / 2, U / 4, ..., 1.
template <std::size_t U, class F>
TIGON_INLINE void halve(F f) {
  if constexpr (U > 1) {
    unrolled<U / 2>([&](auto u) TIGON_LAMBDA { f(u, std::integral_constant<std::size_t, U / 2>{}); });
    halve<U / 2>(f);
  }
}

template <class V>
TIGON_INLINE pack<V, 1> as_pack(V v) {
  return {{v}};
}
template <class V, std::size_t N>
TIGON_INLINE pack<V, N> as_pack(pack<V, N> p) {
  return p;
}

// Vector loads of f32 may read what is stored as another type; lanes lie in the order of memory.
#if defined(__x86_64__) || defined(__i386__)
inline constexpr bool loads_any_type = true;
#else
inline constexpr bool loads_any_type = false;
#endif

template <class T, bool Odd>
struct pair_source {
  using element_type = std::remove_const_t<T>;
  const T* p;
  template <class V>
  TIGON_INLINE V load(std::size_t j) const {
    if constexpr (V::size == 1)
      return simd::load<V>(p + 2 * j + Odd);
    else if constexpr (pair_a_lane<V>)
      return of_lane(simd::load<V>(reinterpret_cast<const float*>(p + 2 * j)));
    else
      return half(simd::load<V>(p + 2 * j), simd::load<V>(p + 2 * j + V::size));
  }
  template <class V>
  TIGON_INLINE V load_n(std::size_t j, std::size_t n) const {
    if constexpr (V::size == 1) {
      return load<V>(j);
    } else {
      const std::size_t first = std::min(2 * n, V::size), second = 2 * n - first;
      const V low = simd::load_n<V>(p + 2 * j, first);
      return half(low, second == 0 ? low : simd::load_n<V>(p + 2 * j + V::size, second));
    }
  }
  template <class V>
  static TIGON_INLINE V half(V a, V b) {
    return Odd ? odd_lanes(a, b) : even_lanes(a, b);
  }
  // A pair of bf16 in a lane of f32 bits: the odd one is its upper half, the even one its lower.
  template <class V>
  static constexpr bool pair_a_lane =
      loads_any_type && std::same_as<element_type, bfloat16> && std::same_as<typename V::value_type, float>;
  template <class V>
  static TIGON_INLINE V of_lane(V pair) {
    return Odd ? bit_and(pair, V(std::bit_cast<float>(0xffff0000u))) : pair.template shl<16>();
  }
  TIGON_INLINE const void* begin() const { return p; }
  TIGON_INLINE void prefetch(std::size_t) const {}
};
template <class B, class T>
TIGON_INLINE pair_source<T, false> source(even_columns<T> c, place at) {
  return {c.pairs.row(at.row) + 2 * at.column};
}
template <class B, class T>
TIGON_INLINE pair_source<T, true> source(odd_columns<T> c, place at) {
  return {c.pairs.row(at.row) + 2 * at.column};
}

// Where a row goes. A row of a matrix may be streamed, if a vector of the stored type is aligned there; a vector that
// every row shares stays in the caches.
template <class T, bool Matrix>
struct row_sink {
  using element_type = T;
  static constexpr std::size_t results = 1;
  T* p;
  std::size_t bytes;  // of the whole output
  template <class V>
  TIGON_INLINE void store(V v, std::size_t j) const {
    simd::store(v, p + j);
  }
  template <class V>
  TIGON_INLINE void store_n(V v, std::size_t j, std::size_t n) const {
    simd::store_n(v, p + j, n);
  }
  /// The vectors of one unrolled step; of several results the k-th.
  template <bool Stream, std::size_t U, class R, class K>
  TIGON_INLINE void put(const R (&r)[U], K k, std::size_t j) const {
    using V = std::remove_cvref_t<decltype(r[0].v[k])>;
    if constexpr (U > 1 && stores_pairs<V, T>) {
      unrolled<U / 2>([&](auto u) TIGON_LAMBDA {
        store_pair<Stream && Matrix>(r[2 * u].v[k], r[2 * u + 1].v[k], p + j + 2 * u * V::size);
      });
    } else {
      unrolled<U>([&](auto u) TIGON_LAMBDA {
        if constexpr (Stream && Matrix)
          simd::stream(r[u].v[k], p + j + u * V::size);
        else
          simd::store(r[u].v[k], p + j + u * V::size);
      });
    }
  }
  template <class R, class K>
  TIGON_INLINE void put_n(const R& r, K k, std::size_t j, std::size_t n) const {
    store_n(r.v[k], j, n);
  }
  /// Large enough to be streamed, and none of the operands.
  template <class... Begin>
  TIGON_INLINE bool streams(std::size_t stream_bytes, Begin... begin) const {
    return !Matrix || (bytes >= stream_bytes && ((static_cast<const void*>(p) != begin) && ... && true));
  }
  /// What is streamed at a time, in bytes.
  template <class V>
  static constexpr std::size_t width = (stores_pairs<V, T> ? 2 : 1) * V::size * sizeof(T);
  /// Elements before the first one at which a vector may be streamed.
  template <class V>
  TIGON_INLINE std::size_t head() const {
    return (width<V> - reinterpret_cast<std::uintptr_t>(p) % width<V>) % width<V> / sizeof(T);
  }
  template <class V>
  TIGON_INLINE bool aligned_after(std::size_t head) const {
    return !Matrix || reinterpret_cast<std::uintptr_t>(p + head) % width<V> == 0;
  }
};

template <class T>
TIGON_INLINE row_sink<T, true> sink(matrix_view<T> m, place at) {
  return {m.row(at.row) + at.column, m.rows * m.cols * sizeof(T)};
}
template <class T>
TIGON_INLINE row_sink<T, false> sink(vector_view<T> v, place at) {
  return {v.data + at.column, 0};
}

// Pairs of columns, from two results.
template <class T>
struct pair_sink {
  using element_type = T;
  static constexpr std::size_t results = 2;
  T* p;
  std::size_t bytes;
  template <bool Stream, std::size_t U, class R, class K>
  TIGON_INLINE void put(const R (&r)[U], K k, std::size_t j) const {
    using V = std::remove_cvref_t<decltype(r[0].v[k])>;
    const row_sink<T, true> row{p, bytes};
    unrolled<U>([&](auto u) TIGON_LAMBDA {
      const V a = r[u].v[k], b = r[u].v[k + 1];
      const std::size_t at = 2 * (j + u * V::size);
      if constexpr (V::size == 1) {
        row.store(a, at), row.store(b, at + 1);
      } else {
        const pack<V, 1> both[2] = {{{zip_low(a, b)}}, {{zip_high(a, b)}}};
        row.template put<Stream>(both, std::integral_constant<std::size_t, 0>{}, at);
      }
    });
  }
  template <class R, class K>
  TIGON_INLINE void put_n(const R& r, K k, std::size_t j, std::size_t n) const {
    using V = std::remove_cvref_t<decltype(r.v[k])>;
    const V a = r.v[k], b = r.v[k + 1];
    if constexpr (V::size == 1) {
      simd::store(a, p + 2 * j), simd::store(b, p + 2 * j + 1);
    } else {
      const std::size_t first = std::min(2 * n, V::size), second = 2 * n - first;
      simd::store_n(zip_low(a, b), p + 2 * j, first);
      if (second != 0) simd::store_n(zip_high(a, b), p + 2 * j + V::size, second);
    }
  }
  template <class... Begin>
  TIGON_INLINE bool streams(std::size_t stream_bytes, Begin... begin) const {
    return row_sink<T, true>{p, bytes}.streams(stream_bytes, begin...);
  }
  // Streamed from the first column or not at all.
  template <class V>
  TIGON_INLINE std::size_t head() const {
    return 0;
  }
  template <class V>
  TIGON_INLINE bool aligned_after(std::size_t head) const {
    return row_sink<T, true>{p, bytes}.template aligned_after<V>(2 * head);
  }
};
template <class T>
TIGON_INLINE pair_sink<T> sink(pair_columns<T> c, place at) {
  return {c.pairs.row(at.row) + 2 * at.column, c.pairs.rows * c.pairs.cols * sizeof(T)};
}

template <class T>
TIGON_INLINE row_sink<T, true> sink(row_at<T> r, place at) {
  return {r.data + at.column, r.bytes};
}
template <class T>
TIGON_INLINE row_sink<T, true> sink(rows_of<T> r, place at) {
  return {r.part.row(at.row) + at.column, r.bytes};
}

// What a writing loop does in passing: it asks for the next row; or nothing.
template <bool Prefetch>
struct no_sum {
  static constexpr bool any = false, prefetches = Prefetch;
  struct state {};
  template <std::size_t>
  TIGON_INLINE void run(std::size_t) const {}
  TIGON_INLINE void add(state&, std::size_t) const {}
  TIGON_INLINE void add_n(state&, std::size_t, std::size_t) const {}
  template <std::size_t U>
  TIGON_INLINE void finish(const state (&)[U]) const {}
};

using no_errand = no_sum<true>;

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
// lanes compute, all at the same time.
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
  number* total;

  TIGON_INLINE void add(state& s, std::size_t j) const {
    auto r = std::apply([&](auto... from) TIGON_LAMBDA { return as_pack(f(from.template load<V>(j)...)); }, x);
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
      unrolled<U>([&](auto u) TIGON_LAMBDA { add(s[u], j + u * N); });
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
// caches are wanted and the rows do not begin at whole vectors.
template <class B, class Sink, std::size_t R, class F, class... Source, class... A>
TIGON_INLINE bool write_together(std::size_t cols, const std::array<Sink, R>& y, const std::array<F, R>& f,
                                 const std::array<std::tuple<Source...>, R>& x, A*... sums) {
  using V = write_vec<B, std::tuple<Sink>, Source...>;
  constexpr std::size_t N = V::size, U = std::min<std::size_t>(B::row.unroll, 2), K = sizeof...(A);
  bool wanted = true, possible = true;
  unrolled<R>([&](auto r) TIGON_LAMBDA {
    wanted =
        wanted &&
        std::apply([&](auto... from) TIGON_LAMBDA { return y[r].streams(B::row.stream_bytes, from.begin()...); }, x[r]);
    possible = possible && y[r].template head<V>() == 0;
  });
  if (wanted && !possible) return false;
  const auto call = [&](auto r, auto load, const pack<V, K>& sum) TIGON_LAMBDA {
    return [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      return std::apply([&](auto... from) TIGON_LAMBDA { return f[r](load(from)..., sum.v[k]...); }, x[r]);
    }(std::make_index_sequence<K>{});
  };
  const auto loop = [&](auto stream) TIGON_LAMBDA {
    std::size_t j = 0;
    for (; j + U * N <= cols; j += U * N) {
      pack<V, 1> out[R][U];
      unrolled<U>([&](auto u) TIGON_LAMBDA {
        pack<V, K> acc{{load<V>(sums + j + u * N)...}};
        unrolled<R>([&](auto r) TIGON_LAMBDA {
          const auto v = call(
              r, [&](auto from) TIGON_LAMBDA { return from.template load<V>(j + u * N); }, acc);
          out[r][u].v[0] = v.v[0];
          unrolled<K>([&](auto k) TIGON_LAMBDA { acc.v[k] = v.v[k + 1]; });
        });
        std::size_t k = 0;
        (store(acc.v[k++], sums + j + u * N), ...);
      });
      unrolled<R>([&](auto r)
                      TIGON_LAMBDA { y[r].template put<stream>(out[r], std::integral_constant<std::size_t, 0>{}, j); });
    }
    for (; j < cols; j += N) {
      const std::size_t n = std::min(N, cols - j);
      pack<V, K> acc{{load_n<V>(sums + j, n)...}};
      unrolled<R>([&](auto r) TIGON_LAMBDA {
        const auto v = call(
            r, [&](auto from) TIGON_LAMBDA { return from.template load_n<V>(j, n); }, acc);
        unrolled<K>([&](auto k) TIGON_LAMBDA { acc.v[k] = v.v[k + 1]; });
        y[r].store_n(v.v[0], j, n);
      });
      std::size_t k = 0;
      (store_n(acc.v[k++], sums + j, n), ...);
    }
  };
  if (wanted)
    loop(std::true_type{});
  else
    loop(std::false_type{});
  return true;
}

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

  /// The task's k-th partial row of a parameter gradient; combined over the tasks when all rows are done.
  TIGON_INLINE vector_view<A> partial(std::size_t k) const { return {partials_ + k * stride_, cols}; }
  /// The worker's k-th scratch row.
  TIGON_INLINE vector_view<A> scratch(std::size_t k) const { return {scratch_ + k * stride_, cols}; }

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

  /// y[j] = f(x[j]...); f returns a pack where y is `outs(...)`. Outputs may be operands.
  template <class Out, class F, class... X>
  TIGON_INLINE void map(Out y, F f, X... x) const {
    (void)write<0>(sinks(y), f, detail::source<B>(x, beside<X...>())...);
  }

  /// Map and sum in one pass: f returns a pack whose first vectors go to y and whose others are summed. Returns the
  /// sum, or an array of them.
  template <class Out, class F, class... X>
  TIGON_INLINE auto map_sum(Out y, F f, X... x) const {
    using V = detail::vec_of<B, X...>;
    using R = decltype(f(detail::source<B>(x, at_).template load<V>(0)...));
    constexpr std::size_t K = detail::pack_size<R> - std::tuple_size_v<decltype(sinks(y))>;
    const auto total = write<K>(sinks(y), f, detail::source<B>(x, beside<X...>())...);
    return finish<K>([&](auto k) TIGON_LAMBDA { return sum_lanes(total.v[k]); });
  }

  /// Sum over the row of f(x[j]...); an array of sums where f returns a pack.
  template <class F, class... X>
  TIGON_INLINE auto sum(F f, X... x) const {
    using V = detail::vec_of<B, X...>;
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
        detail::source<B>(x, at_)...);
    return finish<K>([&](auto k) TIGON_LAMBDA { return sum_lanes(total.v[k]); });
  }

  /// Maximum over the row of f(x[j]...), -infinity for an empty row. A NaN may or may not be seen.
  template <class F, class... X>
  TIGON_INLINE auto max(F f, X... x) const {
    using V = detail::vec_of<B, X...>;
    using S = typename V::value_type;
    const auto total = accumulate<V>(
        pack<V, 1>{{V(-std::numeric_limits<S>::infinity())}},
        [f](auto... v) TIGON_LAMBDA { return detail::as_pack(f(v...)); },
        [](auto a, auto b) TIGON_LAMBDA {
          a.v[0] = detail::larger(a.v[0], b.v[0]);
          return a;
        },
        detail::source<B>(x, at_)...);
    return max_lanes(total.v[0]);
  }

  /// Any monoid: `combine` of f(x[j]...) over the row in an unspecified but fixed order. `identity` is an array of K
  /// numbers, f returns a pack of K vectors, `combine` takes and returns packs; it is also called with packs of one
  /// lane. Returns an array of K numbers.
  template <class S, std::size_t K, class F, class Combine, class... X>
  TIGON_INLINE std::array<S, K> reduce(std::array<S, K> identity, F f, Combine combine, X... x) const {
    using V = detail::vec_of<B, X...>;
    using scalar_vec = vec<scalar, S>;
    pack<V, K> start;
    for (std::size_t k = 0; k < K; ++k) start.v[k] = V(identity[k]);
    const auto total = accumulate<V>(start, f, combine, detail::source<B>(x, at_)...);
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
  template <class Out, class S, class Combine, class X>
  TIGON_INLINE void scan(Out y, S init, Combine combine, X x) const {
    const auto in = detail::source<B>(x, at_);
    const auto out = detail::sink(y, at_);
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
  // columns, so that the rounding error grows with the root of the row, not with its length.
  template <class V, std::size_t K, class F, class Combine, class... Source>
  TIGON_INLINE pack<V, K> accumulate(pack<V, K> identity, F f, Combine combine, Source... x) const {
    read_ = true;
    constexpr std::size_t N = V::size;
    constexpr std::size_t U = B::row.unroll;
    constexpr std::size_t block = 64 * U * N;
    pack<V, K> total = identity;
    std::size_t j = 0;
    while (j + U * N <= cols) {
      const std::size_t end = std::min(cols, j + block);
      pack<V, K> acc[U];
      detail::unrolled<U>([&](auto u) TIGON_LAMBDA { acc[u] = identity; });
      for (; j + U * N <= end; j += U * N) {
        detail::unrolled<U>([&](auto u)
                                TIGON_LAMBDA { acc[u] = combine(acc[u], f(x.template load<V>(j + u * N)...)); });
      }
      detail::halve<U>([&](auto u, auto width) TIGON_LAMBDA { acc[u] = combine(acc[u], acc[u + width]); });
      total = combine(total, acc[0]);
    }
    for (; j < cols; j += N) {
      const std::size_t n = std::min(N, cols - j);
      const auto inside = V::iota() < V(static_cast<typename V::value_type>(n));
      pack<V, K> rest = f(x.template load_n<V>(j, n)...);
      detail::unrolled<K>([&](auto k) TIGON_LAMBDA { rest.v[k] = select(inside, rest.v[k], identity.v[k]); });
      total = combine(total, rest);
    }
    return total;
  }

  // The place of operands whose next rows are asked for.
  template <class... X>
  TIGON_INLINE detail::place beside() const {
    constexpr std::size_t matrices = ((detail::matrix_bytes<X> != 0) + ... + 0);
    return {at_.row, at_.column, B::row.sum_ahead ? 1 : matrices};
  }

  template <class Out>
  TIGON_INLINE auto sinks(Out y) const {
    return std::make_tuple(detail::sink(y, at_));
  }
  template <class... Outs>
  TIGON_INLINE auto sinks(outs<Outs...> y) const {
    return std::apply([&](auto... out) TIGON_LAMBDA { return std::make_tuple(detail::sink(out, at_)...); }, y.out);
  }

  // Outputs that outgrow the caches are streamed past them unless an operand is overwritten. Writing passes also ask
  // for the next row of every large operand, so that its first pass finds it near: memory works while lanes compute.
  template <std::size_t K, class... Sink, class F, class... Source>
  TIGON_INLINE auto write(std::tuple<Sink...> y, F f, Source... x) const {
    using V = detail::write_vec<B, std::tuple<Sink...>, Source...>;
    if constexpr (V::size > 1) {
      bool stream = std::get<0>(y).bytes != 0;
      each(y, [&](auto out, auto) TIGON_LAMBDA { stream = stream && out.streams(B::row.stream_bytes, x.begin()...); });
      if (stream) {
        const std::size_t head = std::min(cols, std::get<0>(y).template head<V>());
        if constexpr (Errand::any) stream = head == 0;  // the order of an errand depends on nothing but the columns
        each(y, [&](auto out, auto) TIGON_LAMBDA { stream = stream && out.template aligned_after<V>(head); });
        if (stream) return write_loop<K, V, true>(head, y, f, x...);
      }
    }
    return write_loop<K, V, false>(0, y, f, x...);
  }

  // The one loop that writes; where B says so from the end to the beginning in a row that was read before, because what
  // the pass before read last is still in the first-level cache.
  template <std::size_t K, class V, bool Stream, class... Sink, class F, class... Source>
  TIGON_INLINE auto write_loop(std::size_t head, std::tuple<Sink...> y, F f, Source... x) const {
    constexpr std::size_t N = V::size;
    constexpr std::size_t U = B::row.unroll;
    constexpr std::size_t W = (Sink::results + ...);
    constexpr std::size_t block = 64 * U * N;
    using R = decltype(detail::as_pack(f(x.template load<V>(0)...)));
    static_assert(detail::pack_size<R> == W + K, "tigon: a map returns one vector for every output");
    pack<V, K == 0 ? 1 : K> total;
    detail::unrolled<K == 0 ? 1 : K>([&](auto k) TIGON_LAMBDA { total.v[k] = V(0); });
    const auto add = [&](auto& sums, const R& r) TIGON_LAMBDA {
      detail::unrolled<K>([&](auto k) TIGON_LAMBDA { sums.v[k] = sums.v[k] + r.v[W + k]; });
    };
    typename Errand::state passing[U];
    const auto part = [&](std::size_t j, std::size_t n) TIGON_LAMBDA {
      errand_.add_n(passing[0], j, n);
      R r = detail::as_pack(f(x.template load_n<V>(j, n)...));
      each(y, [&](auto out, auto k) TIGON_LAMBDA { out.put_n(r, k, j, n); });
      if constexpr (K != 0) {
        const auto inside = V::iota() < V(static_cast<typename V::value_type>(n));
        detail::unrolled<K>([&](auto k) TIGON_LAMBDA { r.v[W + k] = select(inside, r.v[W + k], V(0)); });
        add(total, r);
      }
    };
    const std::size_t last = head + (cols - head) / (U * N) * (U * N);
    const bool backwards = !Errand::any && B::row.reverse && read_;
    std::size_t at = backwards ? last - U * N : head;
    const std::size_t step = backwards ? std::size_t{0} - U * N : U * N;
    for (std::size_t left = last - head; left > 0;) {
      const std::size_t count = K == 0 ? left : std::min(block, left);
      pack<V, K == 0 ? 1 : K> acc[U];
      detail::unrolled<U>([&](auto u) TIGON_LAMBDA {
        detail::unrolled<K == 0 ? 1 : K>([&](auto k) TIGON_LAMBDA { acc[u].v[k] = V(0); });
      });
      for (std::size_t done = 0; done < count; done += U * N, at += step) {
        const std::size_t j = at;
        R r[U];
        detail::unrolled<U>([&](auto u) TIGON_LAMBDA { r[u] = detail::as_pack(f(x.template load<V>(j + u * N)...)); });
        detail::unrolled<U>([&](auto u) TIGON_LAMBDA { errand_.add(passing[u], j + u * N); });
        if constexpr (Errand::prefetches)
          detail::unrolled<U>([&](auto u) TIGON_LAMBDA { (x.prefetch(j + u * N), ...); });
        each(y, [&](auto out, auto k) TIGON_LAMBDA { out.template put<Stream>(r, k, j); });
        detail::unrolled<U>([&](auto u) TIGON_LAMBDA { add(acc[u], r[u]); });
      }
      if constexpr (K != 0) {
        detail::halve<U>([&](auto u, auto width) TIGON_LAMBDA {
          detail::unrolled<K>([&](auto k) TIGON_LAMBDA { acc[u].v[k] = acc[u].v[k] + acc[u + width].v[k]; });
        });
        detail::unrolled<K>([&](auto k) TIGON_LAMBDA { total.v[k] = total.v[k] + acc[0].v[k]; });
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
};

namespace detail {

template <class B>
constexpr std::size_t rows_per_task(std::size_t rows, std::size_t cols) {
  const std::size_t fitting = B::row.task_elements / std::max<std::size_t>(cols, 1);
  return std::clamp<std::size_t>(fitting, 1, std::max<std::size_t>(rows, 1));
}

/// Partial rows of one parameter gradient: fixed by shape. Many short sums also keep the rounding error small.
template <class B>
constexpr std::size_t partial_tasks(std::size_t rows) {
  const std::size_t per_task = std::max<std::size_t>((rows + B::row.partials - 1) / B::row.partials, 16);
  return (rows + per_task - 1) / per_task;
}

// Large arrays begin at a page, and a read waits for an earlier store at the same place of another page: partial rows
// are written half a page away from what is read beside them.
inline constexpr std::size_t page = 4096;
template <class A>
A* half_a_page_on(A* p) {
  const std::size_t at = reinterpret_cast<std::uintptr_t>(p) % page;
  return p + (page + page / 2 - at) % page / sizeof(A);
}

// Rows of scratch begin a cache line apart.
template <class A>
constexpr std::size_t padded(std::size_t cols) {
  return workspace::bytes_for<A>(cols) / sizeof(A);
}

}  // namespace detail

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
  return ctx.executor().workers() * workspace::bytes_for<A>(scratch_rows * detail::padded<A>(cols));
}

/// As for_rows; row.scratch(k), k < scratch_rows, are rows of A that belong to the worker.
template <class B, class A, class F>
void for_rows_with_scratch(context& ctx, std::size_t rows, std::size_t cols, std::size_t scratch_rows, F fn) {
  const std::size_t per_task = detail::rows_per_task<B>(rows, cols);
  const std::size_t stride = detail::padded<A>(cols);
  workspace::frame frame(ctx.workspace());
  A* scratch = frame.template take<A>(ctx.executor().workers() * scratch_rows * stride);
  ctx.executor().run((rows + per_task - 1) / per_task, [&](std::size_t task, std::size_t worker) TIGON_FLATTEN {
    A* own = scratch + worker * scratch_rows * stride;
    const std::size_t end = std::min(rows, (task + 1) * per_task);
    for (std::size_t i = task * per_task; i < end; ++i) fn(row_worker<B, A>(i, cols, nullptr, own, stride));
    stream_fence();
  });
}

/// A parameter gradient that the partial rows of all tasks add up to; not written where `out` is empty.
template <class T>
struct parameter_gradient {
  vector_view<T> out;
  gradient mode = gradient::overwrite;
};

/// Bytes that for_rows_with_partials takes from the workspace for `count` parameter gradients.
template <class B, class A>
constexpr std::size_t partials_workspace(std::size_t rows, std::size_t cols, std::size_t count) {
  return workspace::bytes_for<A>(detail::partial_tasks<B>(rows) * count * detail::padded<A>(cols) +
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

  // Of a column of a row, in the matrices.
  static constexpr std::size_t bytes = (detail::matrix_bytes<X> + ... + 0);

  // Adds what the columns from `first` on contribute to the sums at `total`.
  template <class B, class A>
  TIGON_INLINE auto errand(std::size_t row, std::size_t first, A* total) const {
    return std::apply(
        [&](auto... from) TIGON_LAMBDA {
          const detail::place at{row, first};
          using errand = detail::sum_errand<detail::vec_of<B, X...>, sums<B>, decltype(f(row)),
                                            decltype(detail::source<B>(from, at))...>;
          return errand{f(row), std::make_tuple(detail::source<B>(from, at)...), total};
        },
        x);
  }
  // The sums over a whole row, where none are made in passing.
  template <class B, class A>
  TIGON_INLINE std::array<A, sums<B>> total(std::size_t row, std::size_t cols) const {
    return std::apply(
        [&](auto... from) TIGON_LAMBDA {
          const row_worker<B, A> worker(row, cols);
          if constexpr (sums<B> == 1)
            return std::array<A, 1>{worker.sum(f(row), from...)};
          else
            return worker.sum(f(row), from...);
        },
        x);
  }
  template <class A, std::size_t K>
  static TIGON_INLINE auto value(const std::array<A, K>& total) {
    if constexpr (K == 1)
      return total[0];
    else
      return total;
  }
};

/// Statistic of a program whose columns need nothing of the row.
struct no_statistic {
  template <class B>
  static constexpr std::size_t sums = 0;
  static constexpr std::size_t bytes = 0;
  template <class B, class A>
  TIGON_INLINE detail::no_errand errand(std::size_t, std::size_t, A*) const {
    return {};
  }
  template <class B, class A>
  TIGON_INLINE std::array<A, 0> total(std::size_t, std::size_t) const {
    return {};
  }
  template <class A>
  static TIGON_INLINE int value(const std::array<A, 0>&) {
    return 0;
  }
};

/// Program of a row that adds to parameter gradients. For row i and its statistic,
///   f(i, value)(x[j]..., sums[j]...)
/// is a pack of the outputs at column j, and of the sums with what this row adds to them.
template <class Out, class F, class... X>
struct row_map {
  Out out;
  F f;
  std::tuple<X...> x;
  explicit row_map(Out y, F function, X... operands) : out(y), f(function), x(operands...) {}

  // One row, or a part of one.
  template <class Row, class Value, class... Sums>
  TIGON_INLINE void one(const Row& row, Value value, Sums... sums) const {
    std::apply([&](auto... from) TIGON_LAMBDA { row.map(outs(out, sums...), f(row.i, value), from..., sums...); }, x);
  }

  // Rows [i, i + R) at once: their sums stay in registers from row to row. False, and nothing done, where the outputs
  // cannot be streamed so.
  template <class B, std::size_t R, class Values, class... Sums>
  TIGON_INLINE bool together(std::size_t i, std::size_t cols, const Values& values, Sums... sums) const {
    const auto sources = [&](std::size_t row) TIGON_LAMBDA {
      return std::apply(
          [&](auto... from) TIGON_LAMBDA {
            return std::make_tuple(detail::source<B>(from, {row, 0})...);
          },
          x);
    };
    return [&]<std::size_t... r>(std::index_sequence<r...>) TIGON_LAMBDA {
      return detail::write_together<B>(cols, std::array{detail::sink(out, {i + r, 0})...},
                                       std::array{f(i + r, values(r))...}, std::array{sources(i + r)...}, sums...);
    }(std::make_index_sequence<R>{});
  }
};

namespace detail {
// Rows that a program with so many sums takes at a time: three, whose reads have room in every set of a first-level
// cache, four where they save more than one sum, or two of 16 bits, which are busier with arithmetic. One where it is
// no row_map.
template <class F, std::size_t Sums>
inline constexpr std::size_t rows_together = 1;
template <class Out, class F, class... X, std::size_t Sums>
inline constexpr std::size_t rows_together<row_map<Out, F, X...>, Sums> =
    sizeof(typename decltype(sink(std::declval<Out>(), {}))::element_type) == 2 ? 2
    : Sums > 1                                                                  ? 4
                                                                                : 3;
}  // namespace detail

/// As for_rows, for parameter gradients: every row's columns are written once, by a row_map, or by fn(row, value) with
/// one map, where value is the row's statistic and row.partial(k) a row of A in which the task sums up its share of the
/// k-th parameter gradient. The partial rows are combined by column, task by task in pairs, and rounded once into
/// `out`. Without rows the gradients are zero.
///
/// Where B::row.sum_ahead is off, the statistics of as many rows as stay near are made first, and a row_map then writes
/// two to four of these at a time: memory is read and written in turns. Otherwise a few rows are gone over a block of
/// columns at a time, so that weights and partial rows stay in the first-level cache: fn sees parts of rows, and its
/// map adds up the statistic of the rows that follow.
template <class B, class A, class Statistic, class F, class... T>
void for_rows_with_partials(context& ctx, std::size_t rows, std::size_t cols, Statistic statistic, F fn,
                            parameter_gradient<T>... out) {
  using V = vec<typename B::engine, A>;
  using errand = decltype(statistic.template errand<B, A>(0, 0, nullptr));
  using totals = std::array<A, Statistic::template sums<B>>;
  // Not on single numbers: compilers contract products and sums of those as they like, here so and there otherwise, and
  // a row's bits would depend on its place.
  constexpr bool in_passing = errand::any && V::size > 1 && B::row.sum_ahead;
  using worker = row_worker<B, A, std::conditional_t<in_passing, errand, detail::no_sum<!errand::any>>>;
  constexpr std::size_t K = sizeof...(T);
  constexpr bool is_map = detail::rows_together<F, K> > 1;
  constexpr std::size_t R = V::size > 1 && !in_passing ? detail::rows_together<F, K> : 1;
  constexpr bool whole_rows = !in_passing && (R > 1 || K == 0);  // there are no partial rows to be kept near
  constexpr std::size_t most = whole_rows ? 32 : 8;
  const std::size_t tasks = detail::partial_tasks<B>(rows);
  const std::size_t per_task = tasks == 0 ? 0 : (rows + tasks - 1) / tasks;
  const std::size_t stride = detail::padded<A>(cols);
  constexpr std::size_t elements =
      whole_rows ? B::row.group_bytes / std::max<std::size_t>(Statistic::bytes, 1) : B::row.group_elements;
  const std::size_t fitting = std::clamp<std::size_t>(elements / std::max<std::size_t>(cols, 1), 1, most);
  const std::size_t group = fitting < R ? fitting : fitting / R * R;
  const auto one = [&](const auto& row, auto value) TIGON_LAMBDA {
    if constexpr (is_map)
      [&]<std::size_t... k>(std::index_sequence<k...>)
          TIGON_LAMBDA { fn.one(row, value, row.partial(k)...); }(std::make_index_sequence<K>{});
    else
      fn(row, value);
  };
  workspace::frame frame(ctx.workspace());
  A* partials = detail::half_a_page_on(frame.template take<A>(tasks * K * stride + detail::page / sizeof(A)));
  ctx.executor().run(tasks, [&](std::size_t task, std::size_t) TIGON_FLATTEN {
    A* own = partials + task * K * stride;
    std::fill(own, own + K * stride, A(0));
    const std::size_t begin = task * per_task, end = std::min(rows, begin + per_task);
    totals now[most], next[most];
    for (std::size_t first = begin; first < end; first += group) {
      const std::size_t n = std::min(group, end - first);
      if constexpr (!in_passing) {
        for (std::size_t k = 0; k < n; ++k) now[k] = statistic.template total<B, A>(first + k, cols);
      } else if (first == begin) {
        std::fill(now, now + n, totals{});
        for (std::size_t column = 0; column < cols; column += B::row.block_cols)
          for (std::size_t k = 0; k < n; ++k)
            statistic.template errand<B>(first + k, column, now[k].data())
                .template run<B::row.unroll>(std::min(B::row.block_cols, cols - column));
      }
      if constexpr (in_passing) std::fill(next, next + n, totals{});
      if constexpr (whole_rows) {
        std::size_t k = 0;
        if constexpr (R > 1) {
          const auto together = [&]() TIGON_LAMBDA {
            return [&]<std::size_t... p>(std::index_sequence<p...>) TIGON_LAMBDA {
              return fn.template together<B, R>(
                  first + k, cols, [&](std::size_t r) TIGON_LAMBDA { return Statistic::value(now[k + r]); },
                  own + p * stride...);
            }(std::make_index_sequence<K>{});
          };
          while (k + R <= n && together()) k += R;
        }
        for (; k < n; ++k) one(worker(first + k, cols, own, nullptr, stride), Statistic::value(now[k]));
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
                Statistic::value(now[k]));
          else
            one(worker(i, width, own, nullptr, stride, column), Statistic::value(now[k]));
        }
      if constexpr (in_passing) std::copy(next, next + n, now);
    }
    stream_fence();
  });
  const auto combine = [&]<class U>(parameter_gradient<U> g, std::size_t k, std::size_t begin, std::size_t end) {
    if (g.out.data == nullptr) return;
    for (std::size_t j = begin; j < end; j += V::size) {
      const std::size_t n = std::min(V::size, end - j);
      // Binary counter: level l holds the sum of 2^l consecutive tasks.
      V level[64];
      std::size_t used = 0;
      for (std::size_t task = 0; task < tasks; ++task) {
        V v = load<V>(partials + (task * K + k) * stride + j);
        for (std::size_t carry = task; (carry & 1) != 0; carry >>= 1) v = level[--used] + v;
        level[used++] = v;
      }
      V total(A(0));
      while (used > 0) total = level[--used] + total;
      if (n == V::size) {
        if (g.mode == gradient::accumulate) total = load<V>(g.out.data + j) + total;
        store(total, g.out.data + j);
      } else {
        if (g.mode == gradient::accumulate) total = load_n<V>(g.out.data + j, n) + total;
        store_n(total, g.out.data + j, n);
      }
    }
  };
  // A task per 1024 columns: a whole number of vectors of every engine.
  constexpr std::size_t width = 1024;
  ctx.executor().run((cols + width - 1) / width, [&](std::size_t task, std::size_t) {
    std::size_t k = 0;
    (combine(out, k++, task * width, std::min(cols, (task + 1) * width)), ...);
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::columns;
using simd::constant;
using simd::even_columns;
using simd::for_rows;
using simd::for_rows_with_partials;
using simd::for_rows_with_scratch;
using simd::nearby;
using simd::no_statistic;
using simd::odd_columns;
using simd::outs;
using simd::pack;
using simd::pair_columns;
using simd::parameter_gradient;
using simd::round_to;
using simd::row_at;
using simd::row_map;
using simd::row_sum;
using simd::rows_of;
}  // namespace tigon

#endif  // TIGON_SIMD_ROW_HPP
