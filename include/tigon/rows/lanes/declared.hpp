// What the driver on a CPU makes of a program: a reduction and a declared map.
#ifndef TIGON_ROWS_LANES_DECLARED_HPP
#define TIGON_ROWS_LANES_DECLARED_HPP

#include <tigon/rows/lanes/map_together.hpp>
#include <tigon/rows/lanes/row.hpp>
#include <tigon/simd/registers.hpp>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// Side work of a map: the reduction of the same columns of a later row, which pulls that row into the cache; memory is
// read and written and lanes compute at the same time. Sums of the parts of a row are added up in f64.
template <class V, std::size_t K, class F, class... Source>
struct reducing {
  static constexpr bool reduces = true, prefetches = false;
  struct state {
    pack<V, K> sum;
    TIGON_INLINE state() {
      unrolled<K>([&](auto k) TIGON_LAMBDA { sum.v[k] = V(0); });
    }
  };
  F f;
  std::tuple<Source...> x;
  double* total;

  template <class Ignore>
  TIGON_INLINE void add(state& s, std::size_t j, std::size_t more, Ignore ignore) const {
    auto r =
        unpacked([&](auto... from) TIGON_LAMBDA { return as_pack(f(from.template load<V>(j, more, ignore)...)); }, x);
    unrolled<K>([&](auto k) TIGON_LAMBDA {
      keep_in_register(r.v[k]);
      s.sum.v[k] = s.sum.v[k] + kept(r.v[k], V(0), ignore);
    });
  }
  // All of it, in the order in which a map does it.
  template <std::size_t U>
  TIGON_INLINE void run(std::size_t cols) const {
    constexpr std::size_t N = V::size;
    state s[U];
    for_columns<U * N, N>(cols, [&](std::size_t j, auto ignore) TIGON_LAMBDA {
      unrolled<vectors_of_step<decltype(ignore), U>>([&](auto u) TIGON_LAMBDA { add(s[u], j, u * N, ignore); });
    });
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

// Reduction of a row: the sum over its columns of f(i)(x[j]...), where f(i) is the function for row i; an array of
// sums where that returns a pack.
template <class F, class... X>
struct declared_reduction {
  F f;
  std::tuple<X...> x;
  declared_reduction(F function, const std::tuple<X...>& operands) : f(function), x(operands) {}

  template <class B>
  static constexpr std::size_t sums = pack_size<decltype(std::declval<F>()(0)(
      std::declval<decltype(source<B>(std::declval<X>(), {}))>().template load<vec_of<B, X...>>(0)...))>;

  static constexpr reduction_kind reduction = reduction_kind::declared;
  static constexpr std::size_t column_bytes = (matrix_bytes<X> + ... + 0);
  static constexpr std::size_t element_bytes = narrowest({matrix_bytes<X>...});

  // Adds what the columns from `first` on contribute to the sums at `total`.
  template <class B>
  TIGON_INLINE auto side_work(std::size_t row, std::size_t first, double* total) const {
    return unpacked(
        [&](auto... from) TIGON_LAMBDA {
          const place at{row, first};
          using reducing = reducing<vec_of<B, X...>, sums<B>, decltype(f(row)), decltype(source<B>(from, at))...>;
          return reducing{f(row), std::make_tuple(source<B>(from, at)...), total};
        },
        x);
  }
  // The sums over a whole row, where a map makes none as side work. If it prefetches rows, then those that begin
  // `ahead` rows further down.
  template <class B, class A, bool Prefetches>
  TIGON_INLINE std::array<A, sums<B>> total(std::size_t row, std::size_t cols, std::size_t ahead) const {
    return unpacked(
        [&](auto... from) TIGON_LAMBDA {
          const auto operand = [](auto given) TIGON_LAMBDA {
            if constexpr (Prefetches)
              return read_again(given);
            else
              return given;
          };
          const auto sum = row_worker<B, A>({row, 0, 1, ahead, true}, cols).sum(reads(operand(from)...), f(row));
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

// No reduction: the map needs nothing of the row.
struct no_reduction {
  template <class B>
  static constexpr std::size_t sums = 0;
  static constexpr reduction_kind reduction = reduction_kind::none;
  static constexpr std::size_t column_bytes = 0, element_bytes = 0;
  template <class B>
  TIGON_INLINE prefetching<true> side_work(std::size_t, std::size_t, double*) const {
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

// Reduction by the program itself: fn(row) takes whole rows, by as many passes as it likes.
struct imperative_reduction : no_reduction {
  static constexpr reduction_kind reduction = reduction_kind::imperative;
};

// Reduction by the program itself, to the value that its declared map needs: f(row), by as many passes as it likes.
template <class F>
struct row_value : imperative_reduction {
  F f;
  explicit row_value(F function) : f(function) {}

  template <class B, class A, bool>
  TIGON_INLINE auto total(std::size_t row, std::size_t cols, std::size_t ahead) const {
    return f(row_worker<B, A>({row, 0, 1, ahead, ahead != 1}, cols));
  }
  template <class A, class Value>
  static TIGON_INLINE const Value& value(const Value& of_row) {
    return of_row;
  }
};

// Map of a row, which may add to parameter gradients. For row i and the value of its reduction,
//   f(i, value)(x[j]..., sums[j]...)
// is a pack of the outputs at column j, and of the sums with what this row adds to them.
template <class Out, class F, class... X>
struct declared_map {
  Out out;
  F f;
  std::tuple<X...> x;
  static constexpr std::size_t matrices = matrices_of<X...>, vectors = sizeof...(X) - matrices;
  static constexpr std::size_t outputs = output_rows<Out>;
  static constexpr std::size_t element_bytes = narrowest({output_bytes<Out>, matrix_bytes<X>...});
  declared_map(Out y, F function, const std::tuple<X...>& operands) : out(y), f(function), x(operands) {}

  // One row, or a part of one, with K sums. False where it is left alone.
  template <std::size_t K, class Row, class Value>
  TIGON_INLINE bool one(const Row& row, Value value) const {
    const auto of_row = f(row.i, value);
    if constexpr (requires { of_row.skipped(); })
      if (of_row.skipped()) return only_side_work(row), false;
    map_with_partials<K>(row, x, out.y, of_row);
    return true;
  }

  // Rows [i, i + R) at once: their sums stay in registers from row to row. False, and nothing done, where the outputs
  // cannot be streamed so. If it prefetches rows, then those that begin `ahead` rows further down.
  template <class B, bool Prefetches, std::size_t R, std::size_t K, class Values, class A>
  TIGON_INLINE bool together(std::size_t i, std::size_t cols, std::size_t ahead, const Values& values, A* sums,
                             std::size_t stride) const {
    const auto each_row = [](auto of) TIGON_LAMBDA {
      return [&]<std::size_t... r>(std::index_sequence<r...>)
                 TIGON_LAMBDA { return std::array{of(r)...}; }(std::make_index_sequence<R>{});
    };
    const auto of_row = [&](std::size_t r) TIGON_LAMBDA { return f(i + r, values(r)); };
    if constexpr (requires { of_row(0).skipped(); }) {
      bool skipped = false;
      unrolled<R>([&](auto r) TIGON_LAMBDA { skipped = skipped || of_row(r).skipped(); });
      if (skipped) return false;
    }
    auto of_rows = each_row(of_row);  // not const: g++ would keep it in memory, the program once for each row
    const auto to = each_row([&](std::size_t r) TIGON_LAMBDA { return sink(std::get<0>(out.y), {i + r, 0}); });
    const auto from = each_row([&](std::size_t r) TIGON_LAMBDA {
      const place at{i + r, 0, matrices_of<X...>, ahead};
      return unpacked([&](auto... operand) TIGON_LAMBDA { return std::make_tuple(source<B>(operand, at)...); }, x);
    });
    return map_together<B, Prefetches, K>(cols, to, of_rows, from, sums, stride);
  }
};

template <class F>
inline constexpr bool is_declared_map = false;
template <class Out, class F, class... X>
inline constexpr bool is_declared_map<declared_map<Out, F, X...>> = true;

// A program of a reduction and a map, with so many sums over the rows.
template <class V, class Reduction, class Map>
constexpr row_shape program_shape(std::size_t sums) {
  row_shape shape{.pass = row_pass::program,
                  .sums = sums,
                  .element_bytes = Reduction::element_bytes,
                  .lanes = V::size,
                  .reduction = Reduction::reduction,
                  .reduced_bytes = Reduction::column_bytes};
  if constexpr (is_declared_map<Map>) {
    shape.matrices = Map::matrices, shape.vectors = Map::vectors;
    shape.element_bytes = narrowest({shape.element_bytes, Map::element_bytes});
    shape.outputs = Map::outputs;
  }
  return shape;
}

}  // namespace detail
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_LANES_DECLARED_HPP
