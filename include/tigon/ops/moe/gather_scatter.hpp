// The rows of a chunk of pairs of a mixture of experts: gathered from their tokens, and added to them. Two operators
// without public functions, so that a backend can override them.
#ifndef TIGON_OPS_MOE_GATHER_SCATTER_HPP
#define TIGON_OPS_MOE_GATHER_SCATTER_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/rows/row.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// A chunk: the pairs pair[0], ..., pair[rows - 1] of one expert, in ascending order.
struct moe_chunk {
  const std::int64_t* pair;
  std::size_t rows, choices, position;

  TIGON_INLINE std::size_t token(std::size_t i) const { return static_cast<std::size_t>(pair[i]) / choices; }
  TIGON_INLINE std::size_t choice(std::size_t i) const { return static_cast<std::size_t>(pair[i]) % choices; }

  /// Its g and u in what is saved.
  template <class T>
  matrix_view<T> gate_of(matrix_view<T> saved) const {
    return saved.rows_from(position, rows).cols_from(0, saved.cols / 2);
  }
  template <class T>
  matrix_view<T> up_of(matrix_view<T> saved) const {
    return saved.rows_from(position, rows).cols_from(saved.cols / 2, saved.cols / 2);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

namespace tigon {

namespace op {
/// Rows of tokens, gathered for the pairs of a chunk. A part of moe and expert_parallel_moe, without public functions.
struct moe_gather {
  static constexpr std::string_view name = "moe_gather";
};
/// Rows of the pairs of a chunk, weighted and added to their tokens, and its gradients. As moe_gather.
struct moe_scatter {
  static constexpr std::string_view name = "moe_scatter";
};
}  // namespace op

template <>
struct kernel<op::moe_gather, backends::generic> {
  using forward_only = void;  ///< its gradient is a scatter without weights

  /// to[i] = from[token of pair i]
  template <backend B, element T>
  static void forward(matrix_view<const T> from, detail::moe_chunk c, matrix_view<T> to, context& ctx) {
    for_rows<B, accumulator_t<T>>(ctx, c.rows, to.cols, [=] TIGON_FN(auto row) {
      row.map(reads(vector_view<const T>{from.row(c.token(row.i)), row.cols}), writes(to), [](auto v) { return v; });
    });
  }
};

template <>
struct kernel<op::moe_scatter, backends::generic> {
  template <class>
  using saved = no_state;

  /// to[token of pair i] += weight of pair i * from[i], or += from[i] without weights: row after row. Pairs of one
  /// token follow each other, and belong to the worker of the first.
  template <backend B, element A, element R>
  static void forward(matrix_view<const A> from, detail::moe_chunk c, matrix_view<const R> weights, matrix_view<A> to,
                      context& ctx) {
    for_rows<B, A>(ctx, c.rows, to.cols, [=] TIGON_FN(auto row) {
      const std::size_t token = c.token(row.i);
      if (row.i != 0 && c.token(row.i - 1) == token) return;
      const vector_view<A> sum{to.row(token), row.cols};
      for (std::size_t i = row.i; i < c.rows && c.token(i) == token; ++i) {
        const A w = weights.data == nullptr ? A(1) : static_cast<A>(weights.row(token)[c.choice(i)]);
        row.map(reads(vector_view<const A>(sum), vector_view<const A>{from.row(i), row.cols}), writes(sum),
                [=](auto s, auto v) { return fma(v, decltype(v)(w), s); });
      }
    });
  }

  /// dweights of pair i = p[i] . a[i] + more[i];   p[i] *= w, and weighted[i] = w a[i], which may be a. more may be
  /// null.
  template <backend B, element T, element R>
  static void backward(matrix_view<accumulator_t<T>> p, matrix_view<const accumulator_t<T>> a, matrix_view<T> weighted,
                       detail::moe_chunk c, matrix_view<const R> weights, matrix_view<R> dweights,
                       const accumulator_t<T>* more, context& ctx) {
    using A = accumulator_t<T>;
    for_rows<B, A>(ctx, c.rows, p.cols, [=] TIGON_FN(auto row) {
      const std::size_t token = c.token(row.i), choice = c.choice(row.i);
      const A w = static_cast<A>(weights.row(token)[choice]);
      if (dweights.data != nullptr) {
        const A sum = row.sum(reads(p, a), [](auto v, auto act) { return v * act; });
        if (row.first()) dweights.row(token)[choice] = static_cast<R>(more != nullptr ? sum + more[row.i] : sum);
      }
      row.map(reads(cached{p, dweights.data != nullptr}, a), writes(p, weighted), [=](auto v, auto act) {
        const decltype(v) factor(w);
        return pack{v * factor, act * factor};
      });
    });
  }
  /// weighted[i] = w a[i] alone.
  template <backend B, element T, element R>
  static void backward(matrix_view<const accumulator_t<T>> a, matrix_view<T> weighted, detail::moe_chunk c,
                       matrix_view<const R> weights, context& ctx) {
    using A = accumulator_t<T>;
    for_rows<B, A>(ctx, c.rows, a.cols, [=] TIGON_FN(auto row) {
      const A w = static_cast<A>(weights.row(c.token(row.i))[c.choice(row.i)]);
      row.map(reads(a), writes(weighted), [=](auto act) { return act * decltype(act)(w); });
    });
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_MOE_GATHER_SCATTER_HPP
