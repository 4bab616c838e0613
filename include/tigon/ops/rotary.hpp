// What the rotary operators share: the rotation of a pair, the loop over the heads of a token, and the checks of doors.
#ifndef TIGON_OPS_ROTARY_HPP
#define TIGON_OPS_ROTARY_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/rows/row.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

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
      prefetch_elements<B>(from + next, in.head_dim);
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
template <class Row, class T, class Table, class A>
TIGON_INLINE void turn_halves(Row row, const T* from, row_at<T> to, std::size_t half, Table c, Table z, A sign) {
  row.narrow(half).map(reads(in_vector<T>{from, half}, in_vector<T>{from + half, half}, c, z),
                       writes(to, row_at<T>{to.data + half, to.bytes}),
                       [=](auto u, auto v, auto cv, auto zv) { return rotation()(u, v, cv, zv * sign); });
}

/// The pairs (2j, 2j + 1) of one head, times f[2j] + i sign f[2j + 1].
template <class B, class Row, class T, class U, class A>
TIGON_INLINE void turn_neighbours(Row row, const T* from, row_at<T> to, std::size_t head_dim, const U* f, A sign) {
  using V = simd::vec<typename B::engine, A>;
  if constexpr (V::size > 1) {
    // Both parts at once, with the partner of every lane beside it.
    row.narrow(head_dim).map(reads(in_vector<T>{from, head_dim}, in_vector<U>{f, head_dim}), writes(to),
                             [=](auto v, auto fv) {
                               const auto z = dup_odd(fv) * (V::pair_signs() * sign);
                               return fma(swap_pairs(v), z, v * dup_even(fv));
                             });
  } else {
    // One lane holds half a pair: each pair is a row of one column.
    for (std::size_t j = 0; j < head_dim; j += 2)
      row.narrow(1).map(reads(in_vector<T>{from + j, 1}, in_vector<T>{from + j + 1, 1}, in_vector<U>{f + j, 1},
                              in_vector<U>{f + j + 1, 1}),
                        writes(row_at<T>{to.data + j, to.bytes}, row_at<T>{to.data + j + 1, to.bytes}),
                        [=](auto u, auto v, auto cv, auto zv) { return rotation()(u, v, cv, zv * sign); });
  }
}

template <class U>
struct rotary_tables {
  matrix_view<const U> cos, sin;
};

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

#endif  // TIGON_OPS_ROTARY_HPP
