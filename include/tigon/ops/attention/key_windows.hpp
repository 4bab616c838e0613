// What neighborhood_attention works on: the window of a token, and blocks of tokens.
#ifndef TIGON_OPS_ATTENTION_KEY_WINDOWS_HPP
#define TIGON_OPS_ATTENTION_KEY_WINDOWS_HPP

#include <tigon/core/division.hpp>
#include <tigon/core/views.hpp>

#include <algorithm>
#include <cstddef>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {

/// What a token sees: `count` tokens from `first` on, one every dilation. `tap` is the m of the first.
struct neighbors {
  std::size_t tap, count, first;
};

/// A tap is an m: one of the places of a window.
struct neighborhood {
  std::size_t seq_len, taps, dilation;

  TIGON_INLINE neighbors of(std::size_t i) const {
    const std::size_t most = taps / 2, below = std::min(most, i / dilation);
    return {most - below, below + 1 + std::min(most, (seq_len - 1 - i) / dilation), i - below * dilation};
  }
  /// From a row of a head to that of the next token that is seen.
  TIGON_INLINE std::ptrdiff_t step(std::size_t row_stride) const {
    return static_cast<std::ptrdiff_t>(dilation * row_stride);
  }
  /// The token to prefetch beside token i; `seen`: of those that are seen.
  ///
  /// 1 x 4096 tokens, 8 heads of 64, f32, heads of a token side by side: forward 9.1 ms without, 6.2 with; backward
  /// 14.6 and 10.0. Tokens of a head side by side: 4.9 and 4.8, 7.3 and 6.8. Zen 4, a virtual machine, 2026-11-26.
  TIGON_INLINE std::size_t ahead(std::size_t i, bool seen) const {
    constexpr std::size_t rows = 8;
    return std::min(i + rows + (seen ? std::min(taps / 2, (seq_len - 1) / dilation) * dilation : 0), seq_len - 1);
  }
};

/// A block of tokens of one head. Heads of a block come one after the other: they may lie side by side in memory.
struct token_block {
  std::size_t batch, head, first, count;
  std::size_t query;  ///< the row of the first token in p

  template <class T>
  TIGON_INLINE matrix_view<T> of(heads_view<T> x) const {
    return x.head(batch, head).rows_from(first, count);
  }
  template <class T>
  TIGON_INLINE matrix_view<T> of(matrix_view<T> p) const {
    return p.rows_from(query, count);
  }
};
template <class B>
struct token_blocks {
  static constexpr std::size_t rows = B::attention.query_block;
  std::size_t batch, heads, seq_len, count = ceil_div(seq_len, rows);

  std::size_t size() const { return batch * heads * count; }
  token_block operator[](std::size_t task) const {
    const std::size_t h = task % heads, b = task / heads / count, first = task / heads % count * rows;
    return {b, h, first, std::min(rows, seq_len - first), (b * heads + h) * seq_len + first};
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_ATTENTION_KEY_WINDOWS_HPP
