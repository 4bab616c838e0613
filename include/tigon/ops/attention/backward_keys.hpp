// Attention backward: a block of keys, and the sums of dk and dv.
#ifndef TIGON_OPS_ATTENTION_BACKWARD_KEYS_HPP
#define TIGON_OPS_ATTENTION_BACKWARD_KEYS_HPP

#include <tigon/gemm/chunk_sums.hpp>
#include <tigon/ops/attention/backward_rows.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// A block of keys: its operands, and the sums of dk and dv.
template <class B, element T>
class backward_keys {
 public:
  using A = accumulator_t<T>;
  using extents = tile_extents<B>;
  using sums = chunk_sums<row_backend<B>, A>;
  static constexpr std::size_t many = static_cast<std::size_t>(-1);  ///< tiles of rows, for which sums have totals

  /// Of keys of d columns and values of e.
  static std::size_t bytes(std::size_t d, std::size_t e) {
    std::size_t all = packed_keys<B, A, T>::bytes(d);
    for (const std::size_t cols : {d, e})
      all += key_tiles<B, T>::bytes(cols) + packed_keys<B, T, T>::bytes(cols) +
             sums::bytes(workspace::product(extents::keys, cols), many, false);
    return all;
  }
  backward_keys(workspace::frame& frame, const backward_inputs<T>& in, std::size_t batch, std::size_t head,
                std::size_t tiles)
      : keys_(frame, in.k.head(batch, head)),
        values_(frame, in.v.head(batch, head)),
        scored_k_(frame, in.q.head_dim, transpose::yes),
        scored_v_(frame, in.v.head_dim, transpose::yes),
        summed_k_(frame, in.q.head_dim, transpose::no),
        dk_(frame, extents::keys * in.q.head_dim, tiles, false),
        dv_(frame, extents::keys * in.v.head_dim, tiles, false) {}

  /// The sums that begin are of those outputs that have memory.
  void begin(std::size_t first, std::size_t count, const backward_inputs<T>& in, bool sums_dk, bool sums_dv) {
    first_ = first, count_ = count, n_ = extents::padded_keys(count), begun_ = false, packed_ = false;
    sums_dk_ = sums_dk, sums_dv_ = sums_dv;
    dk_.begin(count, in.k.head_dim, {}, false), dv_.begin(count, in.v.head_dim, {}, false);
  }
  bool begun() const { return begun_; }

  /// Adds the shares of these rows to dk and dv. `dq` becomes theirs of this block of keys, unless it has no memory.
  void add(backward_rows<B, T>& rows, key_range seen, matrix_view<A> dq, context& own) {
    const std::size_t n = std::min(n_, extents::padded_keys(std::min(extents::keys, seen.end - first_)));
    gemm_operand<T> k{}, v{}, plain_k{};
    if (n == n_) {
      if (!packed_) pack(own);
      k = k_, v = v_, plain_k = plain_k_;
    } else {
      k = plain_k = {keys_.at(first_, n)}, v = {values_.at(first_, n)};
    }
    rows.scores(first_, n, k, v, own);
    if (sums_dk_) {
      const auto [dk, more] = dk_.next(own);
      rows.dk(wide(dk, n, more), more, own);
    }
    if (sums_dv_) {
      const auto [dv, more] = dv_.next(own);
      rows.dv(wide(dv, n, more), more, own);
    }
    if (dq.data != nullptr) rows.dq(plain_k, dq, false, own);
    begun_ = true;
  }

  /// dk and dv (+)= the sums; those that were not begun are not touched.
  void finish(heads_view<T> dk, heads_view<T> dv, std::size_t batch, std::size_t head, bool add, context& own) {
    if (sums_dk_) finish(dk_, dk.head(batch, head), add, own);
    if (sums_dv_) finish(dv_, dv.head(batch, head), add, own);
  }

 private:
  void pack(context& own) {
    const auto k = keys_.at(first_, n_), v = values_.at(first_, n_);
    k_ = scored_k_.pack(k, own), v_ = scored_v_.pack(v, own), plain_k_ = summed_k_.pack(k, own), packed_ = true;
  }
  void finish(sums& of, matrix_view<T> head, bool add, context& own) {
    const matrix_view<T> to = head.rows_from(first_, count_);
    if (begun_)
      of.finish(to, add, own);
    else if (!add)
      clear_matrix<row_backend<B>>(to, own);
  }
  /// The first n of the block's padded rows; the others become 0 before anything is added to them.
  matrix_view<A> wide(matrix_view<A> sum, std::size_t n, bool more) const {
    sum.rows = n_;
    if (!more)
      for (std::size_t j = n; j < n_; ++j) std::fill_n(sum.row(j), sum.cols, A(0));
    return sum.rows_from(0, n);
  }

  key_tiles<B, T> keys_, values_;
  packed_keys<B, T, T> scored_k_, scored_v_;
  packed_keys<B, A, T> summed_k_;
  sums dk_, dv_;
  gemm_operand<T> k_{}, v_{}, plain_k_{};
  std::size_t first_ = 0, count_ = 0, n_ = 0;
  bool begun_ = false, packed_ = false, sums_dk_ = true, sums_dv_ = true;
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_BACKWARD_KEYS_HPP
