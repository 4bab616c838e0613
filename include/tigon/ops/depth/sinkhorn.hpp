// Sinkhorn's iteration and the gates of hyper-connections, a token in each lane.
//
// The words. A block is as many tokens as the engine has lanes; its numbers are n x n matrices of vectors, element (o,
// i) of all of its tokens in one vector, so that sums over rows and columns need nothing across lanes. Lanes behind the
// last token hold zeros, and nothing of them is stored.
#ifndef TIGON_OPS_DEPTH_SINKHORN_HPP
#define TIGON_OPS_DEPTH_SINKHORN_HPP

#include <tigon/core/views.hpp>
#include <tigon/simd/math.hpp>
#include <tigon/simd/vec.hpp>

#include <algorithm>
#include <cstddef>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Numbers of a block: number k of every token is vector k.
template <class V>
struct mhc_block {
  using A = typename V::value_type;
  A* data;

  TIGON_INLINE V operator()(std::size_t k) const { return simd::load<V>(data + k * V::size); }
  TIGON_INLINE void put(std::size_t k, V v) const { simd::store(v, data + k * V::size); }
  TIGON_INLINE mhc_block from(std::size_t k) const { return {data + k * V::size}; }
  TIGON_INLINE A& lane(std::size_t k, std::size_t l) const { return data[k * V::size + l]; }

  /// `width` numbers a token of rows first ...; zeros without rows, and behind the last.
  TIGON_INLINE void gather(matrix_view<const A> rows, std::size_t first, std::size_t width) const {
    for (std::size_t l = 0; l < V::size; ++l)
      for (std::size_t k = 0; k < width; ++k)
        lane(k, l) = rows.data != nullptr && first + l < rows.rows ? rows.row(first + l)[k] : A(0);
  }
  TIGON_INLINE void scatter(matrix_view<A> rows, std::size_t first, std::size_t width) const {
    const std::size_t lanes = std::min<std::size_t>(V::size, rows.rows - first);
    for (std::size_t l = 0; l < lanes; ++l)
      for (std::size_t k = 0; k < width; ++k) rows.row(first + l)[k] = lane(k, l);
  }
};

/// Gathers and scatters for a row, which counts what is copied where its scratch memory is a buffer of its own.
template <class Row, class V>
TIGON_INLINE void mhc_gather(Row row, mhc_block<V> to, matrix_view<const typename V::value_type> rows,
                             std::size_t first, std::size_t width) {
  to.gather(rows, first, width);
  if constexpr (requires { row.count_in(width); })
    if (rows.data != nullptr)
      row.count_in(std::min<std::size_t>(V::size, rows.rows - first) * width * sizeof(typename V::value_type));
}
template <class Row, class V>
TIGON_INLINE void mhc_scatter(Row row, mhc_block<V> from, matrix_view<typename V::value_type> rows, std::size_t first,
                              std::size_t width) {
  from.scatter(rows, first, width);
  if constexpr (requires { row.count_out(width); })
    row.count_out(std::min<std::size_t>(V::size, rows.rows - first) * width * sizeof(typename V::value_type));
}

/// The iteration on n x n matrices: tmax column steps, and row steps between them. A step divides every number by the
/// sum of its row or column, plus eps.
template <class V>
struct mhc_sinkhorn {
  using A = typename V::value_type;
  using block = mhc_block<V>;
  std::size_t n, tmax;
  A eps;

  TIGON_INLINE std::size_t size() const { return n * n; }

  /// sum_i m[o,i] + more, of row o; and of column i.
  TIGON_INLINE V row_sum(block m, std::size_t o, A more) const {
    V sum = m(o * n);
    for (std::size_t i = 1; i < n; ++i) sum += m(o * n + i);
    return sum + V(more);
  }
  TIGON_INLINE V column_sum(block m, std::size_t i, A more) const {
    V sum = m(i);
    for (std::size_t o = 1; o < n; ++o) sum += m(o * n + i);
    return sum + V(more);
  }

  /// p = the softmax of each row of z; `to` may be z.
  TIGON_INLINE void softmax(block z, block to) const {
    for (std::size_t o = 0; o < n; ++o) {
      V most = z(o * n);
      for (std::size_t i = 1; i < n; ++i) most = max(most, z(o * n + i));
      V sum(A(0));
      for (std::size_t i = 0; i < n; ++i) {
        const V e = simd::exp(z(o * n + i) - most);
        to.put(o * n + i, e);
        sum += e;
      }
      for (std::size_t i = 0; i < n; ++i) to.put(o * n + i, to(o * n + i) / sum);
    }
  }
  /// to = p + eps with every column divided by its sum.
  TIGON_INLINE void first_step(block p, block to) const {
    for (std::size_t i = 0; i < n; ++i) {
      V sum(eps);
      for (std::size_t o = 0; o < n; ++o) sum += p(o * n + i) + V(eps);
      for (std::size_t o = 0; o < n; ++o) to.put(o * n + i, (p(o * n + i) + V(eps)) / sum);
    }
  }
  TIGON_INLINE void row_step(block m, block to) const {
    for (std::size_t o = 0; o < n; ++o) {
      const V sum = row_sum(m, o, eps);
      for (std::size_t i = 0; i < n; ++i) to.put(o * n + i, m(o * n + i) / sum);
    }
  }
  TIGON_INLINE void column_step(block m, block to) const {
    for (std::size_t i = 0; i < n; ++i) {
      const V sum = column_sum(m, i, eps);
      for (std::size_t o = 0; o < n; ++o) to.put(o * n + i, m(o * n + i) / sum);
    }
  }

  /// All steps from p on: step t in matrix t of `history`, or, if that is one matrix only, each over the one before.
  TIGON_INLINE block run(block p, block history, bool all) const {
    first_step(p, history);
    for (std::size_t t = 1; t < tmax; ++t) {
      const block next = all ? history.from(size()) : history;
      row_step(history, next);
      column_step(next, next);
      history = next;
    }
    return history;
  }

  /// g: the gradient of the last matrix in, that of the logits z out. `row` is scratch, a matrix.
  TIGON_INLINE void backward(block p, block history, block g, block row) const {
    for (std::size_t t = tmax - 1; t > 0; --t) {
      const block before = history.from((t - 1) * size());
      row_step(before, row);
      for (std::size_t i = 0; i < n; ++i) of_column(g, history.from(t * size()), i, column_sum(row, i, eps));
      for (std::size_t o = 0; o < n; ++o) of_row(g, row, o, row_sum(before, o, eps));
    }
    for (std::size_t i = 0; i < n; ++i) {
      V sum(eps);
      for (std::size_t o = 0; o < n; ++o) sum += p(o * n + i) + V(eps);
      of_column(g, history, i, sum);
    }
    for (std::size_t o = 0; o < n; ++o) {
      const V along = product_of_row(g, p, o);
      for (std::size_t i = 0; i < n; ++i) g.put(o * n + i, p(o * n + i) * (g(o * n + i) - along));
    }
  }

 private:
  TIGON_INLINE V product_of_row(block g, block m, std::size_t o) const {
    V sum(A(0));
    for (std::size_t i = 0; i < n; ++i) sum = fma(g(o * n + i), m(o * n + i), sum);
    return sum;
  }
  // Through a division of a row, or a column, whose results are m.
  TIGON_INLINE void of_row(block g, block m, std::size_t o, V sum) const {
    const V along = product_of_row(g, m, o);
    for (std::size_t i = 0; i < n; ++i) g.put(o * n + i, (g(o * n + i) - along) / sum);
  }
  TIGON_INLINE void of_column(block g, block m, std::size_t i, V sum) const {
    V along(A(0));
    for (std::size_t o = 0; o < n; ++o) along = fma(g(o * n + i), m(o * n + i), along);
    for (std::size_t o = 0; o < n; ++o) g.put(o * n + i, (g(o * n + i) - along) / sum);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_DEPTH_SINKHORN_HPP
