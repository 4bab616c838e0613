// What the rotary operators share: the rotation of a pair, the loop over the heads of a token, and the checks of public
// functions.
#ifndef TIGON_OPS_ROTARY_ROTATION_HPP
#define TIGON_OPS_ROTARY_ROTATION_HPP

#include <tigon/backend/caches.hpp>
#include <tigon/backend/operator.hpp>
#include <tigon/rows/row.hpp>

namespace tigon {

/// All columns of a head, however many they are.
inline constexpr std::size_t whole_head = ~std::size_t{0};

/// Which columns of a head are rotated, where not all of them are.
enum class rotary_columns { first, last };

/// What is a pair of r rotated columns.
enum class rotary_pairs {
  halves,      ///< (j, j + r/2): Llama and most others
  neighbours,  ///< (2j, 2j + 1): the original paper, DeepSeek, GLM, Cohere
};

}  // namespace tigon

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Output: a head, or some columns of one, anywhere in an output of `bytes` bytes.
template <class T>
struct row_at {
  T* data;
  std::size_t bytes;
  TIGON_INLINE rows_of<T> as_output() const { return {{data, 1, 0, 0}, bytes}; }
};

/// fn(from, to) for every head of token s of sequence b: those of q, then those of k. The next token's heads are
/// prefetched: hardware prefetchers do not predict the addresses of a head that is read in two parts, or in part.
template <class B, class T, class F>
TIGON_INLINE void for_heads_of_token(heads_view<const T> q, heads_view<const T> k, heads_view<T> q_out,
                                     heads_view<T> k_out, std::size_t b, std::size_t s, F fn) {
  for (const bool of_q : {true, false}) {
    const heads_view<const T> in = of_q ? q : k;
    const heads_view<T> out = of_q ? q_out : k_out;
    const std::size_t bytes = out.batch * out.heads * out.seq_len * out.head_dim * sizeof(T);
    const std::size_t next = s + 1 < in.seq_len ? in.seq_stride : 0;
    for (std::size_t h = 0; h < in.heads; ++h) {
      const T* from = in.at(b, h, s);
      prefetch<B>(in_vector<T>{from + next, in.head_dim});
      fn(from, row_at<T>{out.at(b, h, s), bytes});
    }
  }
}

/// (u + i v) (c + i z): one product and one fused multiply-add for each part.
struct rotation {
  template <class V>
  TIGON_INLINE pack<V, 2> operator()(V u, V v, V c, V z) const {
    return {{fnma(v, z, u * c), fma(u, z, v * c)}};
  }
};

/// The pairs (j, j + half) of one head, times c[j] + i sign z[j].
template <class Row, class X, class T, class Table, class A>
TIGON_INLINE void turn_halves(Row row, const X* from, row_at<T> to, std::size_t half, Table c, Table z, A sign) {
  row.part(0, half).map(reads(in_vector<X>{from, half}, in_vector<X>{from + half, half}, c, z),
                        writes(to, row_at<T>{to.data + half, to.bytes}),
                        [=](auto u, auto v, auto cv, auto zv) { return rotation()(u, v, cv, zv * sign); });
}

/// The pairs (2j, 2j + 1) of one head, times c[j] + i sign z[j].
template <class Row, class X, class T, class Table, class A>
TIGON_INLINE void turn_pairs(Row row, const X* from, row_at<T> to, std::size_t half, Table c, Table z, A sign) {
  // Views of one row, so wherever the worker is, it is this one; `bytes` decides whether outputs go past the caches.
  const matrix_view<const X> in(from, 0, 2 * half, 0);
  const matrix_view<T> out(to.data, to.bytes / std::max<std::size_t>(2 * half * sizeof(T), 1), 2 * half, 0);
  row.part(0, half).map(reads(pair_column<0>(in), pair_column<1>(in), c, z), writes(pair_columns<T>{out}),
                        [=](auto u, auto v, auto cv, auto zv) { return rotation()(u, v, cv, zv * sign); });
}

/// The columns of a head that are rotated, and how they are paired.
struct rotated_part {
  std::size_t first, count;
  rotary_pairs pairs;

  rotated_part(std::size_t head_dim, std::size_t rotary_dim, rotary_columns columns, rotary_pairs by)
      : first(0), count(std::min(rotary_dim, head_dim)), pairs(by) {
    if (columns == rotary_columns::last) first = head_dim - count;
  }
  std::size_t half() const { return count / 2; }

  /// Rotates them in one head, by c[j] + i sign z[j]; they are paired by P.
  template <rotary_pairs P, class Row, class X, class T, class Table, class A>
  TIGON_INLINE void turn(Row row, const X* from, row_at<T> to, Table c, Table z, A sign) const {
    if constexpr (P == rotary_pairs::halves)
      turn_halves(row, from + first, row_at<T>{to.data + first, to.bytes}, half(), c, z, sign);
    else
      turn_pairs(row, from + first, row_at<T>{to.data + first, to.bytes}, half(), c, z, sign);
  }
};

/// The pairs (2j, 2j + 1) of one head, times f[2j] + i sign f[2j + 1].
template <class B, class Row, class T, class U, class A>
TIGON_INLINE void turn_neighbours(Row row, const T* from, row_at<T> to, std::size_t head_dim, const U* f, A sign) {
  using V = simd::vec<typename B::engine, A>;
  if constexpr (V::size > 1) {
    // Both parts at once, with the partner of every lane beside it.
    row.part(0, head_dim)
        .map(reads(in_vector<T>{from, head_dim}, in_vector<U>{f, head_dim}), writes(to), [=](auto v, auto fv) {
          const auto z = dup_odd(fv) * (V::pair_signs() * sign);
          return fma(swap_pairs(v), z, v * dup_even(fv));
        });
  } else {
    // One lane holds half a pair: each pair is a row of one column.
    for (std::size_t j = 0; j < head_dim; j += 2)
      row.part(0, 1).map(reads(in_vector<T>{from + j, 1}, in_vector<T>{from + j + 1, 1}, in_vector<U>{f + j, 1},
                               in_vector<U>{f + j + 1, 1}),
                         writes(row_at<T>{to.data + j, to.bytes}, row_at<T>{to.data + j + 1, to.bytes}),
                         [=](auto u, auto v, auto cv, auto zv) { return rotation()(u, v, cv, zv * sign); });
  }
}

template <class U>
struct rotary_tables {
  matrix_view<const U> cos, sin;
};

/// Declares the number of rotated columns, and returns it.
inline std::size_t declare_rotary_dim(const arguments& args, std::size_t head_dim, std::size_t rotary_dim) {
  const bool whole = rotary_dim == whole_head;
  const std::size_t turned = whole ? head_dim : rotary_dim;
  args.that(turned % 2 == 0, error_code::shape, whole ? "head_dim of q" : "rotary_dim", "odd", "an even number");
  args.that(turned <= head_dim, error_code::argument, "rotary_dim", "above head_dim", "at most head_dim");
  return turned;
}

/// Declares tables for all sequences, or for each.
template <class U>
void declare_rotary_tables(arguments& args, rotary_tables<U> tables, std::size_t batch, std::size_t seq_len,
                           std::size_t turned, bool whole) {
  const matrix_view<const U> cos = tables.cos, sin = tables.sin;
  args.that(cos.cols >= turned / 2, error_code::shape, "cos",
            whole ? "narrower than head_dim / 2" : "narrower than rotary_dim / 2",
            whole ? "at least head_dim / 2 columns" : "at least rotary_dim / 2 columns");
  const std::size_t rows = cos.rows == batch * seq_len ? batch * seq_len : seq_len;
  args.in("cos", cos, rows, cos.cols);
  args.in("sin", sin, rows, cos.cols);
}

/// Declares q, k and where they go.
template <class T>
void declare_rotated(arguments& args, in_heads<T> q, in_heads<T> k, heads_view<T> q_out, heads_view<T> k_out) {
  const heads_shape of_q{q.batch, q.heads, q.seq_len, q.head_dim}, of_k{q.batch, k.heads, q.seq_len, q.head_dim};
  args.in("q", q, of_q);
  args.in("k", k, of_k);
  args.out("k_out", k_out, of_k).may_be("k");
  args.out("q_out", q_out, of_q).may_be("q");
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ROTARY_ROTATION_HPP
