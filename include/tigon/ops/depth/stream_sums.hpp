// Weighted sums of streams, and products of streams summed over their channels: what hyper-connections do with a row.
#ifndef TIGON_OPS_DEPTH_STREAM_SUMS_HPP
#define TIGON_OPS_DEPTH_STREAM_SUMS_HPP

#include <tigon/backend/caches.hpp>
#include <tigon/rows/row.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace tigon {

/// The coefficients of every token, or their gradients: how the streams are summed up for the layer, how the layer's
/// output is added to each stream, and how streams are mixed. In h_res the row of a token is n x n: row o, column i is
/// what stream i adds to stream o.
template <class A>
struct mhc_coefficients {
  matrix_view<A> h_pre, h_post, h_res;  ///< [tokens, n], [tokens, n], [tokens, n * n]

  constexpr TIGON_INLINE operator mhc_coefficients<const A>() const
    requires(!std::is_const_v<A>)
  {
    return {h_pre, h_post, h_res};
  }
};

namespace detail {
inline namespace TIGON_ABI {

/// One term of a weighted sum: a row of `from` times a number of that row.
template <class T, class A>
struct mhc_term {
  matrix_view<const T> from;
  A weight;
};

/// Terms that a pass over a row adds up.
inline constexpr std::size_t mhc_terms = 5;

/// f(integral_constant of count), 1 <= count <= Most.
template <std::size_t Most, class F>
TIGON_INLINE void mhc_with_count(std::size_t count, const F& f) {
  if constexpr (Most > 1)
    if (count < Most) return mhc_with_count<Most - 1>(count, f);
  f(std::integral_constant<std::size_t, Most>{});
}

/// to = sum + K terms from `first` on, added up one after the other.
template <std::size_t K, class Row, class X, class Term, class Y>
TIGON_INLINE void mhc_add(Row row, X sum, std::size_t first, Term term, Y to) {
  using A = decltype(term(0).weight);
  [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
    const std::array<A, K> weight{term(first + k).weight...};
    row.map(reads(sum, term(first + k).from...), writes(to), [=](auto s, auto... x) TIGON_LAMBDA {
      std::size_t at = 0;
      ((s = fma(x, decltype(s)(weight[at++]), s)), ...);
      return s;
    });
  }(std::make_index_sequence<K>{});
}

/// to = sum + all terms, term(k) for k < count, count >= 1. Of more than mhc_terms, sums stay in `scratch`, unrounded;
/// it may be the memory of `sum`.
template <class Row, class X, class Term, class S, class Y>
TIGON_INLINE void mhc_add_all(Row row, X sum, std::size_t count, Term term, S scratch, Y to) {
  if (count <= mhc_terms)
    return mhc_with_count<mhc_terms>(count,
                                     [=](auto k) TIGON_LAMBDA { mhc_add<decltype(k)::value>(row, sum, 0, term, to); });
  std::size_t first = (count - 1) % mhc_terms + 1;
  mhc_with_count<mhc_terms>(first,
                            [=](auto k) TIGON_LAMBDA { mhc_add<decltype(k)::value>(row, sum, 0, term, scratch); });
  for (; first + mhc_terms < count; first += mhc_terms) mhc_add<mhc_terms>(row, scratch, first, term, scratch);
  mhc_add<mhc_terms>(row, scratch, first, term, to);
}

/// put(k, sum over the columns of g * of(k)) for k < count. Parts of the row are summed in A, and added up in f64: no
/// sum in A has more than 1024 terms.
template <class Row, class T, class Of, class Put>
TIGON_INLINE void mhc_products(Row row, matrix_view<const T> g, std::size_t count, Of of, Put put) {
  constexpr std::size_t together = 4;
  const std::size_t width = row.cols <= 512 ? 64 : 1024;
  for (std::size_t k = 0; k < count; k += together) {
    std::array<double, together> total{};
    const std::size_t n = std::min(together, count - k);
    const auto at = [=](std::size_t j) TIGON_LAMBDA { return of(k + std::min(j, n - 1)); };
    for (std::size_t first = 0; first < row.cols; first += width) {
      const auto part = row.part(first, std::min(width, row.cols - first));
      const auto sums =
          part.sum(reads(g, at(0), at(1), at(2), at(3)), [](auto d, auto x0, auto x1, auto x2, auto x3) TIGON_LAMBDA {
            return pack{d * x0, d * x1, d * x2, d * x3};
          });
      for (std::size_t j = 0; j < together; ++j) total[j] += static_cast<double>(sums[j]);
    }
    for (std::size_t j = 0; j < n; ++j) put(k + j, total[j]);
  }
}

/// f(part) for columns of a row, so many at a time that what is read again stays in L1.
template <class B, class Row, class F>
TIGON_INLINE void mhc_parts(Row row, F f) {
  constexpr std::size_t width = columns_per_block<B>();
  for (std::size_t first = 0; first < row.cols; first += width) f(row.part(first, std::min(width, row.cols - first)));
}

/// Stream h of rows of n streams.
template <class T>
TIGON_INLINE matrix_view<T> mhc_stream(matrix_view<T> x, std::size_t n, std::size_t h) {
  return x.cols_from(h * (x.cols / n), x.cols / n);
}

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_STREAM_SUMS_HPP
