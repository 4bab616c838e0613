// Attention forward: a part of the queries, one tile of scores at a time.
#ifndef TIGON_OPS_ATTENTION_FORWARD_PART_HPP
#define TIGON_OPS_ATTENTION_FORWARD_PART_HPP

#include <tigon/ops/attention/running_softmax.hpp>

#include <limits>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// One part of the queries: all of its keys, tile by tile. A tile of keys is packed once for all tiles of rows.
template <class B, element T>
class forward_part {
 public:
  using A = accumulator_t<T>;
  using extents = tile_extents<B>;
  static constexpr std::size_t most_tiles = B::attention.query_tiles;
  static constexpr std::size_t score_stride = round_up(extents::keys, workspace::alignment / sizeof(A));

  /// Of keys of d columns and values of e.
  static std::size_t bytes(std::size_t d, std::size_t e) {
    const std::size_t sums = extents::most(e, [](std::size_t m, std::size_t n, std::size_t k) {
      return std::max(gemm_workspace<B, A, T, A>(m, k, n), gemm_packed_workspace<B, A, T, A>(m, k, n));
    });
    return running_softmax<A>::bytes(extents::part_rows, e) + workspace::bytes_for<visible_keys>(extents::part_rows) +
           workspace::bytes_for<T>(extents::part_rows, d) + workspace::bytes_for<A>(extents::rows, score_stride) +
           key_tiles<B, T>::bytes(d) + key_tiles<B, T>::bytes(e) + packed_keys<B, T, T>::bytes(d) +
           packed_keys<B, A, T>::bytes(e) + std::max(sums, score_product_bytes<B, T>(d));
  }

  forward_part(workspace::frame& frame, const query_part& part, std::size_t queries_of_tile, in_heads<T> q,
               in_heads<T> k, in_heads<T> v, const attention_options& opt)
      : part_(part),
        of_tile_(queries_of_tile),
        tiles_(ceil_div(part.queries, queries_of_tile)),
        opt_(opt),
        scale_(attention_scale(opt, q.head_dim)),
        seen_(frame.take<visible_keys>(extents::part_rows)),
        state_(frame, extents::part_rows, v.head_dim),
        q_(frame.take<T>(extents::part_rows * q.head_dim), extents::part_rows, q.head_dim),
        scores_(frame.take<A>(extents::rows * score_stride), extents::rows, extents::keys, score_stride),
        keys_(frame, k.head(part.batch, part.kv_head)),
        values_(frame, v.head(part.batch, part.kv_head)),
        packed_k_(frame, q.head_dim, transpose::yes),
        packed_v_(frame, v.head_dim, transpose::no) {
    const visibility rule{opt, k.seq_len, part.batch};
    for (std::size_t i = 0; i < part.queries; ++i) seen_[i] = rule.of(part.query + i);
    for (std::size_t t = 0; t < tiles_; ++t) {
      const query_part rows = of(t);
      gather(rows, q, q_.rows_from(t * extents::rows, extents::padded_rows(rows.rows())));
      softmax_[t] = softmax_rows<B, T>(state_.from(t * extents::rows, extents::rows), rows.rows(), part.heads,
                                       opt.sinks.empty() ? nullptr : opt.sinks.data() + part.head);
    }
  }

  void run(heads_view<T> o, std::span<A> lse, context& own) {
    const key_range seen = seen_by_any(seen_, part_.queries);
    for (std::size_t first = seen.first / extents::keys * extents::keys; first < seen.end; first += extents::keys)
      add_keys(first, extents::padded_keys(std::min(extents::keys, seen.end - first)), own);
    for (std::size_t t = 0; t < tiles_; ++t) finish(t, o, lse, own);
  }

  /// Keys [first, first + n), for every tile of rows that sees some of them: in strips where a row does not see them
  /// all.
  void add_keys(std::size_t first, std::size_t n, context& own) {
    gemm_operand<T> all_k{}, all_v{};
    for (std::size_t t = 0; t < tiles_; ++t) {
      const query_part rows = of(t);
      const visible_keys* seen = seen_ + t * of_tile_;
      const tile_kind kind = kind_of(seen, rows.queries, {first, first + n});
      if (kind == tile_kind::hidden) continue;
      softmax_[t].begin_keys(own);
      const std::size_t strip = kind == tile_kind::whole ? rows.queries : extents::strip(of_tile_, part_.heads);
      for (std::size_t q = 0; q < rows.queries; q += strip) {
        const query_part of_strip = rows.from(q, std::min(strip, rows.queries - q));
        const std::size_t end = seen_by_any(seen + q, of_strip.queries).end;
        const std::size_t keys =
            end <= first ? 0 : std::min(n, extents::padded_keys(std::min(extents::keys, end - first)));
        const tile_kind of_keys = kind_of(seen + q, of_strip.queries, {first, first + keys});
        if (of_keys == tile_kind::hidden) {
          softmax_[t].skip(q * rows.heads, of_strip.rows());
          continue;
        }
        gemm_operand<T> k{}, v{};
        if (keys == n && tiles_ > 1) {
          if (all_k.packed == nullptr)
            all_k = packed_k_.pack(keys_.at(first, n), own), all_v = packed_v_.pack(values_.at(first, n), own);
          k = all_k, v = all_v;
        } else {
          k = {keys_.at(first, keys)}, v = {values_.at(first, keys)};
        }
        add_strip(t, q, of_strip,
                  {of_keys == tile_kind::border ? seen + q : nullptr, rows.heads, {first, first + keys}}, k, v, own);
      }
      softmax_[t].end_keys();
    }
  }

  /// The strip of tile t that begins at its query `q`.
  void add_strip(std::size_t t, std::size_t q, const query_part& rows, const seen_columns& columns, gemm_operand<T> k,
                 gemm_operand<T> v, context& own) {
    const std::size_t row = q * rows.heads;
    const matrix_view<A> s(scores_.data, extents::padded_rows(rows.rows()), columns.tile.size(), score_stride);
    tile_product<B, T, T, A>(q_.rows_from(t * extents::rows + row, s.rows), k, s,
                             {.alpha = scale_, .b = transpose::yes}, own);
    const matrix_view<A> of_rows = s.rows_from(0, rows.rows());
    if (opt_.softcap != 0) cap_scores<row_backend<B>>(of_rows, static_cast<A>(opt_.softcap), own);
    if (opt_.prefix != 0) hide_between(of_rows, columns, -std::numeric_limits<A>::infinity());
    softmax_[t].add(row, s, columns, v, own);
  }

  /// o and lse of a tile of rows.
  void finish(std::size_t t, heads_view<T> o, std::span<A> lse, context& own) {
    const query_part rows = of(t);
    const matrix_view<A> sums = softmax_[t].finish(own);
    const running_softmax<A> state = state_.from(t * extents::rows, extents::rows);
    const visible_keys* seen = seen_ + t * of_tile_;
    for (std::size_t h = 0; h < rows.heads; ++h) {
      const matrix_view<T> to = rows.tensor(o, h);
      const matrix_view<A> from = rows.of_head(sums, h);
      A* to_lse = lse.data() + (rows.batch * o.heads + rows.head + h) * o.seq_len + rows.query;
      const std::size_t heads = rows.heads;
      for_rows<row_backend<B>, A>(own, to.rows, to.cols, [=] TIGON_FN(auto row) {
        const A sum = state.sum[row.i * heads + h], top = state.top[row.i * heads + h];
        const bool sees_none = sum == 0 && seen[row.i].none();
        const A inverse = sees_none ? A(0) : 1 / sum;
        row.map(reads(from), writes(to), [=](auto v) { return v * inverse; });
        if (row.first())
          to_lse[row.i] = sees_none ? top : sum == 0 ? std::numeric_limits<A>::quiet_NaN() : top + math::log(sum);
      });
    }
  }

 private:
  query_part of(std::size_t t) const {
    return part_.from(t * of_tile_, std::min(of_tile_, part_.queries - t * of_tile_));
  }

  query_part part_;
  std::size_t of_tile_, tiles_;
  const attention_options& opt_;
  double scale_;
  visible_keys* seen_;
  running_softmax<A> state_;
  matrix_view<T> q_;
  matrix_view<A> scores_;
  key_tiles<B, T> keys_, values_;
  packed_keys<B, T, T> packed_k_;
  packed_keys<B, A, T> packed_v_;
  softmax_rows<B, T> softmax_[most_tiles];
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_FORWARD_PART_HPP
