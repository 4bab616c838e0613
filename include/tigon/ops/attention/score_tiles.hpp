// What forward and backward of attention share: how queries and keys are cut, operands of tiles, and scores.
//
//   rows   queries of all heads of a group, query by query, that lie together in scratch memory
//   tile   rows by keys of scores: at most B::attention.query_rows by B::attention.key_block
//   part   rows of one task
#ifndef TIGON_OPS_ATTENTION_SCORE_TILES_HPP
#define TIGON_OPS_ATTENTION_SCORE_TILES_HPP

#include <tigon/gemm/kernel.hpp>
#include <tigon/ops/attention/visible_keys.hpp>
#include <tigon/rows/row.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Queries [query, query + queries) of the heads [head, head + heads) of one sequence, which share keys.
struct query_part {
  std::size_t batch, kv_head, head, heads, query, queries;

  std::size_t rows() const { return heads * queries; }
  /// Queries [first, first + count) of these.
  query_part from(std::size_t first, std::size_t count) const {
    return {batch, kv_head, head, heads, query + first, count};
  }
  /// The rows of head h, every heads-th, of a matrix with all of them.
  template <class A>
  matrix_view<A> of_head(matrix_view<A> all, std::size_t h) const {
    return {all.row(h), queries, all.cols, heads * all.row_stride};
  }
  template <class T>
  matrix_view<T> tensor(heads_view<T> of, std::size_t h) const {
    return of.head(batch, head + h).rows_from(query, queries);
  }
};

/// All queries, cut into parts of at most so many tiles of rows. The last queries come first: with a causal mask they
/// have most work.
struct query_parts {
  std::size_t batch, kv_heads, group, queries;  // of the problem
  std::size_t heads, of_tile, tiles;            // of a part; queries of a tile, tiles of a part

  query_parts(std::size_t batches, std::size_t heads_of_keys, std::size_t heads_of_queries, std::size_t seq_len,
              std::size_t rows_of_tile, std::size_t most_tiles)
      : batch(batches),
        kv_heads(heads_of_keys),
        group(heads_of_queries / heads_of_keys),
        queries(seq_len),
        heads(std::min(group, rows_of_tile)),
        of_tile(rows_of_tile / heads),
        tiles(most_tiles) {
    while (tiles > 1 && size() < 64) tiles /= 2;  // enough tasks for all workers, unless tiles are too few
  }

  std::size_t along() const { return ceil_div(queries, of_tile * tiles); }
  std::size_t across() const { return batch * kv_heads * ceil_div(group, heads); }
  std::size_t size() const { return along() * across(); }
  query_part operator[](std::size_t i) const {
    const std::size_t each = of_tile * tiles, first = (along() - 1 - i / across()) * each, at = i % across();
    const std::size_t parts = ceil_div(group, heads), head = at % parts * heads, kv = at / parts;
    return {kv / kv_heads,
            kv % kv_heads,
            kv % kv_heads * group + head,
            std::min(heads, group - head),
            first,
            std::min(each, queries - first)};
  }
};

/// Extents of tiles. Products have few different ones, so that their scratch memory is known: multiples of `unit`.
template <class B>
struct tile_extents {
  static constexpr std::size_t rows = B::attention.query_rows, keys = B::attention.key_block;
  static constexpr std::size_t part_rows = rows * B::attention.query_tiles;
  static_assert(rows > 0 && keys > 0 && part_rows > 0, "tigon: a tile of attention has at least one row and one key");

  static constexpr std::size_t unit = 16;
  /// Queries of a strip of a tile that sees some of its keys: a quarter of the tile, so that little is computed of what
  /// nobody sees. The rows of a strip are a multiple of `unit`.
  static constexpr std::size_t strip(std::size_t queries_of_tile, std::size_t heads) {
    return round_up(ceil_div(queries_of_tile, 4), unit / std::gcd(unit, heads));
  }
  static constexpr std::size_t padded_rows(std::size_t count) { return std::min(rows, round_up(count, unit)); }
  static constexpr std::size_t padded_keys(std::size_t count) { return std::min(keys, round_up(count, unit)); }
  /// The largest f(m, n, d) of all extents that a tile may have. It is kept for the last two d, because every call
  /// needs that of keys and that of values twice.
  template <class F>
  static std::size_t most(std::size_t d, F f) {
    static std::uint64_t last[2] = {};  // d and the bytes
    constexpr unsigned digits = 40;
    for (const std::uint64_t& of : last) {
      const std::uint64_t kept = __atomic_load_n(&of, __ATOMIC_RELAXED);
      if (kept != 0 && kept >> digits == d) return static_cast<std::size_t>(kept & ((std::uint64_t{1} << digits) - 1));
    }
    std::size_t bytes = 0;
    for (std::size_t m = 1; m <= rows; m += unit)
      for (std::size_t n = 1; n <= keys; n += unit) bytes = std::max(bytes, f(padded_rows(m), padded_keys(n), d));
    if (d >> (64 - digits) == 0 && bytes >> digits == 0) {
      __atomic_store_n(&last[1], __atomic_load_n(&last[0], __ATOMIC_RELAXED), __ATOMIC_RELAXED);
      __atomic_store_n(&last[0], std::uint64_t{d} << digits | bytes, __ATOMIC_RELAXED);
    }
    return bytes;
  }
};

/// A product of a tile, through the backend's kernel; b may be packed.
template <class B, element TA, element TB, element TC>
void tile_product(matrix_view<const TA> a, gemm_operand<TB> b, matrix_view<TC> c, gemm_options opt, context& own) {
  kernel_for<op::gemm, B>::template forward<B, TA, TB, TC>(a, b, in_vector<TC>{}, c, no_epilogue{}, opt, own);
}

template <element T>
void clear_row(matrix_view<T> m, std::size_t row) {
  for (std::size_t c = 0; c < m.cols; ++c) m.row(row)[c] = T();
}

/// `to` gets the rows of this part, and zeros behind them.
template <element T>
void gather(const query_part& part, heads_view<const T> from, matrix_view<T> to) {
  for (std::size_t h = 0; h < part.heads; ++h) {
    const matrix_view<const T> rows = part.tensor(from, h);
    const matrix_view<T> out = part.of_head(to, h);
    for (std::size_t i = 0; i < rows.rows; ++i) std::memcpy(out.row(i), rows.row(i), rows.cols * sizeof(T));
  }
  for (std::size_t r = part.rows(); r < to.rows; ++r) clear_row(to, r);
}

/// Keys or values of one head, in tiles. A tile at the end is copied, and padded with zeros; of others nothing is.
template <class B, element T>
class key_tiles {
 public:
  using extents = tile_extents<B>;

  static std::size_t bytes(std::size_t d) { return workspace::bytes_for<T>(extents::keys, d); }
  key_tiles(workspace::frame& frame, matrix_view<const T> all)
      : all_(all), copy_(frame.template take<T>(extents::keys * all.cols), extents::keys, all.cols) {}

  /// Keys [first, first + padded); at most `padded` of them exist.
  matrix_view<const T> at(std::size_t first, std::size_t padded) {
    const std::size_t there = std::min(padded, all_.rows - first);
    if (there == padded) return all_.rows_from(first, padded);
    for (std::size_t i = 0; i < there; ++i) std::memcpy(copy_.row(i), all_.row(first + i), all_.cols * sizeof(T));
    for (std::size_t i = there; i < padded; ++i) clear_row(copy_, i);
    return copy_.rows_from(0, padded);
  }

 private:
  matrix_view<const T> all_;
  matrix_view<T> copy_;
};

/// An operand of tiles of keys that is packed once for many tiles of rows: k^T for scores, or v for sums.
template <class B, element TA, element T>
class packed_keys {
 public:
  using extents = tile_extents<B>;
  using kernel_type = kernel_for<op::gemm, B>;

  static std::size_t bytes(std::size_t d) {
    return workspace::bytes_for<std::byte>(std::max(bytes_of(d, transpose::no), bytes_of(d, transpose::yes)));
  }
  packed_keys(workspace::frame& frame, std::size_t d, transpose t)
      : memory_(frame.template take<std::byte>(bytes_of(d, t))), transpose_(t) {}

  gemm_operand<T> pack(matrix_view<const T> keys, context& own) const {
    kernel_type::template pack<B, TA, T>(keys, transpose_, memory_, own);
    return {keys, memory_};
  }

 private:
  static std::size_t bytes_of(std::size_t d, transpose t) {
    return t == transpose::yes
               ? extents::most(d, [](std::size_t, std::size_t n,
                                     std::size_t k) { return kernel_type::template packed_bytes<B, TA, T>(k, n); })
               : extents::most(d, [](std::size_t, std::size_t n, std::size_t k) {
                   return kernel_type::template packed_bytes<B, TA, T>(n, k);
                 });
  }

  std::byte* memory_;
  transpose transpose_;
};

/// s = softcap * tanh(s / softcap).
template <class B, class A>
void cap_scores(matrix_view<A> s, A softcap, context& own) {
  const A inverse = 1 / softcap;
  for_rows<B, A>(own, s.rows, s.cols, [=] TIGON_FN(auto row) {
    row.map(reads(s), writes(s), [=](auto v) { return tanh(v * inverse) * softcap; });
  });
}

/// Bytes of the product of queries (or do) by keys (or values) transposed, b packed or not.
template <class B, element T>
std::size_t score_product_bytes(std::size_t d) {
  using A = accumulator_t<T>;
  return tile_extents<B>::most(d, [](std::size_t m, std::size_t n, std::size_t k) {
    return std::max(gemm_workspace<B, T, T, A>(m, n, k), gemm_packed_workspace<B, T, T, A>(m, n, k));
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_SCORE_TILES_HPP
