// How a GPU's thread reads and writes the operands of a row program (rows/operands.hpp), N columns at a time.
//
//   loaded<N, X>    what a thread keeps of N columns of operand X: the elements of a matrix, which are read once; of
//                   most others nothing, they are read where they are used
//   output<Y>       where results go
//
// What steers a CPU's caches means nothing here: plain() takes it off.
#ifndef TIGON_BACKENDS_CUDA_OPERANDS_HPP
#define TIGON_BACKENDS_CUDA_OPERANDS_HPP

#include <tigon/backends/cuda/elements.hpp>
// Behind it: it says how these are compiled.
#include <tigon/rows/driver.hpp>

#include <algorithm>
#include <tuple>

namespace tigon::gpu {
inline namespace TIGON_ABI {

// Operands and outputs without the words that are for a CPU.

template <class T>
constexpr auto plain(T operand) {
  return operand;
}
template <class T>
constexpr matrix_view<T> plain(simd::rows_of<T> r) {
  return r.part;
}
template <class X>
constexpr auto plain(simd::cached<X> x) {
  return plain(x.operand);
}
template <class X>
constexpr auto plain(simd::read_again<X> x) {
  return plain(x.operand);
}
template <class X>
constexpr auto plain(simd::in_f64<X> x) {
  return plain(x.operand);
}
template <class Y>
constexpr auto plain(simd::often_zero<Y> y) {
  return plain(y.output);
}
template <class Y>
  requires requires(Y y) { y.as_output(); }
constexpr auto plain(Y y) {
  return plain(y.as_output());
}
template <class... X>
constexpr auto all_plain(const std::tuple<X...>& x) {
  return std::apply([](auto... one) { return std::make_tuple(plain(one)...); }, x);
}

// Operands.

/// A row of a matrix, or a vector for all rows: its type, how many elements a column has, where row i begins.
template <class X>
struct operand;
template <class T>
struct operand<matrix_view<T>> {
  using element = std::remove_const_t<T>;
  static constexpr int per_column = 1;
  static constexpr bool has_rows = true, for_all_rows = false;
  static TIGON_DEVICE_INLINE const element* row(const matrix_view<T>& m, std::size_t i) {
    return m.data + i * m.row_stride;
  }
  template <int N>
  static bool wide(const matrix_view<T>& m) {
    return begins_accesses<N>(m.data, m.row_stride);
  }
};
template <class T>
struct operand<vector_view<T>> {
  using element = std::remove_const_t<T>;
  static constexpr int per_column = 1;
  static constexpr bool has_rows = false, for_all_rows = true;
  static TIGON_DEVICE_INLINE const element* row(const vector_view<T>& v, std::size_t) { return v.data; }
  template <int N>
  static bool wide(const vector_view<T>& v) {
    return begins_accesses<N>(v.data, 0);
  }
};
template <std::size_t Of, class T>
struct operand<simd::columns_of_pairs<Of, T>> : operand<matrix_view<T>> {
  using typename operand<matrix_view<T>>::element;
  static constexpr int per_column = 2, first = Of;
  static TIGON_DEVICE_INLINE const element* row(const simd::columns_of_pairs<Of, T>& x, std::size_t i) {
    return operand<matrix_view<T>>::row(x.pairs, i);
  }
  template <int N>
  static bool wide(const simd::columns_of_pairs<Of, T>& x) {
    return operand<matrix_view<T>>::template wide<2 * N>(x.pairs);
  }
};
template <class X, int Value>
struct operand<simd::given_or<X, Value>> : operand<X> {
  using typename operand<X>::element;
  static constexpr int otherwise = Value;
  static TIGON_DEVICE_INLINE const element* row(const simd::given_or<X, Value>& x, std::size_t i) {
    return x.operand.data == nullptr ? nullptr : operand<X>::row(x.operand, i);
  }
  template <int N>
  static bool wide(const simd::given_or<X, Value>& x) {
    return x.operand.data == nullptr || operand<X>::template wide<N>(x.operand);
  }
};
/// Rows that are read by several rows each: from the caches, all but once.
template <class X>
struct operand<simd::row_of_group<X>> : operand<X> {
  using typename operand<X>::element;
  static constexpr bool has_rows = false, for_all_rows = false;
  static TIGON_DEVICE_INLINE const element* row(const simd::row_of_group<X>& x, std::size_t i) {
    return operand<X>::row(x.operand, i / x.rows);
  }
  template <int N>
  static bool wide(const simd::row_of_group<X>& x) {
    return operand<X>::template wide<N>(x.operand);
  }
};
/// Numbers that no memory has.
template <class A>
struct operand<simd::constant<A>> {
  using element = void;
  static constexpr bool has_rows = false, for_all_rows = false;
  static TIGON_DEVICE_INLINE A number(const simd::constant<A>& c, std::size_t) { return c.value; }
  template <int N>
  static bool wide(const simd::constant<A>&) {
    return true;
  }
};
template <>
struct operand<simd::columns_t> {
  using element = void;
  static constexpr bool has_rows = false, for_all_rows = false;
  static TIGON_DEVICE_INLINE std::size_t number(simd::columns_t, std::size_t j) { return j; }
  template <int N>
  static bool wide(simd::columns_t) {
    return true;
  }
};

template <class X>
concept in_memory = !std::is_void_v<typename operand<X>::element>;

/// N columns of an operand, from column j of a row on.
template <int N, class X>
struct columns_of {};
template <int N, in_memory X>
struct columns_of<N, X> {
  using op = operand<X>;
  elements<N * op::per_column, typename op::element> e;

  TIGON_DEVICE_INLINE void load(const X& x, std::size_t i, std::size_t j) {
    if constexpr (requires { op::at(x, i, j); }) {
      e.load(op::at(x, i, j));
    } else {
      const auto* const row = op::row(x, i);
      if constexpr (requires { op::otherwise; })
        if (row == nullptr) return e.fill(static_cast<typename op::element>(static_cast<float>(op::otherwise)));
      e.load(row + j * op::per_column);
    }
  }
  template <class V>
  TIGON_DEVICE_INLINE V get(int u) const {
    using A = typename V::value_type;
    if constexpr (op::per_column == 2)
      return V(e.template get<A>(2 * u + op::first));
    else
      return V(e.template get<A>(u));
  }
};

/// Which operands a thread keeps: the rows of matrices; or vectors, too, which it keeps for all rows of a task.
enum class keeps { rows, vectors_too };

/// What a thread keeps of N columns.
template <keeps Keeps, int N, class X>
struct loaded {
  TIGON_DEVICE_INLINE auto now(const X& x, std::size_t i, std::size_t j) const {
    if constexpr (in_memory<X>) {
      columns_of<N, X> c;
      c.load(x, i, j);
      return c;
    } else {
      return made{x, j};
    }
  }

 private:
  struct made {
    X x;
    std::size_t j;
    template <class V>
    TIGON_DEVICE_INLINE V get(int u) const {
      return V(static_cast<typename V::value_type>(operand<X>::number(x, j + static_cast<std::size_t>(u))));
    }
  };
};
template <keeps Keeps, int N, class X>
  requires(operand<X>::has_rows || (Keeps == keeps::vectors_too && operand<X>::for_all_rows))
struct loaded<Keeps, N, X> {
  columns_of<N, X> c;
  TIGON_DEVICE_INLINE const columns_of<N, X>& now(const X&, std::size_t, std::size_t) const { return c; }
};

/// The same of all operands of a program.
template <keeps Keeps, int N, class Operands>
struct loaded_columns;
template <keeps Keeps, int N, class... X>
struct loaded_columns<Keeps, N, std::tuple<X...>> {
  std::tuple<loaded<Keeps, N, X>...> of;

  TIGON_DEVICE_INLINE void load(const std::tuple<X...>& x, std::size_t i, std::size_t j) {
    each_operand([&](auto k) {
      if constexpr (operand<kind<k>>::has_rows) std::get<k>(of).c.load(std::get<k>(x), i, j);
    });
  }
  TIGON_DEVICE_INLINE void load_vectors(const std::tuple<X...>& x, std::size_t j) {
    each_operand([&](auto k) {
      if constexpr (Keeps == keeps::vectors_too && operand<kind<k>>::for_all_rows)
        std::get<k>(of).c.load(std::get<k>(x), 0, j);
    });
  }
  /// Takes over the rows of another.
  TIGON_DEVICE_INLINE void take_rows(const loaded_columns& other) {
    each_operand([&](auto k) {
      if constexpr (operand<kind<k>>::has_rows) std::get<k>(of) = std::get<k>(other.of);
    });
  }
  /// f(u, values of column j + u...) for u = 0, ..., N - 1.
  template <class V, class F>
  TIGON_DEVICE_INLINE void each(const std::tuple<X...>& x, std::size_t i, std::size_t j, F f) const {
    [&]<std::size_t... k>(std::index_sequence<k...>) {
      const std::tuple<decltype(std::get<k>(of).now(std::get<k>(x), i, j))...> all(
          std::get<k>(of).now(std::get<k>(x), i, j)...);
#pragma unroll
      for (int u = 0; u < N; ++u) f(u, std::get<k>(all).template get<V>(u)...);
    }(std::index_sequence_for<X...>());
  }

 private:
  template <std::size_t k>
  using kind = std::tuple_element_t<k, std::tuple<X...>>;
  template <class F>
  static TIGON_DEVICE_INLINE void each_operand(F f) {
    [&]<std::size_t... k>(std::index_sequence<k...>) {
      (f(std::integral_constant<std::size_t, k>()), ...);
    }(std::index_sequence_for<X...>());
  }
};

// Outputs.

template <class Y>
struct output;
template <class T>
struct output<matrix_view<T>> {
  using element = T;
  static constexpr int results = 1;
  /// Result K of N columns.
  template <int K, int N, class R>
  static TIGON_DEVICE_INLINE void put(const matrix_view<T>& y, std::size_t i, std::size_t j, const R (&r)[N]) {
    using A = typename std::remove_cvref_t<decltype(r[0].v[K])>::value_type;
    A v[N];
#pragma unroll
    for (int u = 0; u < N; ++u) v[u] = r[u].v[K].r;
    elements<N, T> e;
    e.set_all(v);
    e.store(y.data + i * y.row_stride + j);
  }
  template <int N>
  static bool wide(const matrix_view<T>& y) {
    return begins_accesses<N>(y.data, y.row_stride);
  }
};
template <class T>
struct output<simd::pair_columns<T>> {
  using element = T;
  static constexpr int results = 2;
  template <int K, int N, class R>
  static TIGON_DEVICE_INLINE void put(const simd::pair_columns<T>& y, std::size_t i, std::size_t j, const R (&r)[N]) {
    using A = typename std::remove_cvref_t<decltype(r[0].v[K])>::value_type;
    T* const to = y.pairs.data + i * y.pairs.row_stride + 2 * j;
    if constexpr (N == 1) {
      to[0] = as_element<T>(r[0].v[K].r), to[1] = as_element<T>(r[0].v[K + 1].r);
    } else {
      A v[2 * N];
#pragma unroll
      for (int u = 0; u < N; ++u) v[2 * u] = r[u].v[K].r, v[2 * u + 1] = r[u].v[K + 1].r;
      elements<2 * N, T> e;
      e.set_all(v);
      e.store(to);
    }
  }
  template <int N>
  static bool wide(const simd::pair_columns<T>& y) {
    return begins_accesses<2 * N>(y.pairs.data, y.pairs.row_stride);
  }
};

/// Results K, K + 1, ... of N columns to outputs I, I + 1, ...
template <int I = 0, int K = 0, int N, class R, class... Y>
TIGON_DEVICE_INLINE void put_all(const std::tuple<Y...>& y, std::size_t i, std::size_t j, const R (&r)[N]) {
  if constexpr (I < static_cast<int>(sizeof...(Y))) {
    using to = output<std::tuple_element_t<I, std::tuple<Y...>>>;
    to::template put<K, N>(std::get<I>(y), i, j, r);
    put_all<I + 1, K + to::results>(y, i, j, r);
  }
}

// What a program reads and writes, as a whole.

template <class E>
inline constexpr std::size_t element_bytes = sizeof(E);
template <>
inline constexpr std::size_t element_bytes<void> = access_bytes;

/// Columns that a thread takes at a time: 16 bytes of the matrix with the smallest elements; but two where numbers are
/// f64.
template <class A, class... X, class... Y>
consteval int columns_at_a_time(const std::tuple<X...>*, const std::tuple<Y...>*) {
  if (sizeof(A) == 8) return 2;
  const std::size_t least = std::min({std::size_t{8}, element_bytes<typename output<Y>::element>...,
                                      operand<X>::has_rows ? element_bytes<typename operand<X>::element> : 8 ...});
  return static_cast<int>(access_bytes / least);
}
/// Bytes of a column that a thread keeps.
template <class... X>
consteval std::size_t kept_bytes(const std::tuple<X...>*) {
  const auto of = []<class O>(std::type_identity<O>) -> std::size_t {
    if constexpr (O::has_rows)
      return sizeof(typename O::element) * O::per_column;
    else
      return 0;
  };
  return (of(std::type_identity<operand<X>>()) + ... + 0);
}
template <int N, class... X, class... Y>
bool all_wide(const std::tuple<X...>& x, const std::tuple<Y...>& y) {
  return std::apply(
             [](const auto&... o) {
               return (operand<std::remove_cvref_t<decltype(o)>>::template wide<N>(o) && ... && true);
             },
             x) &&
         std::apply(
             [](const auto&... o) {
               return (output<std::remove_cvref_t<decltype(o)>>::template wide<N>(o) && ... && true);
             },
             y);
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_OPERANDS_HPP
