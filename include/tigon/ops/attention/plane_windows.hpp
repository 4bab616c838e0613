// Convolution over a plane whose upper triangle is 0: what a tap reads, and how rows are laid out so that it reads a
// line.
#ifndef TIGON_OPS_ATTENTION_PLANE_WINDOWS_HPP
#define TIGON_OPS_ATTENTION_PLANE_WINDOWS_HPP

#include <tigon/core/division.hpp>
#include <tigon/core/workspace.hpp>
#include <tigon/ops/attention/tap_sums.hpp>

#include <algorithm>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// One axis: output place i reads the input places stride * i + dilation * u - padding, u = 0, ..., taps - 1.
struct convolution_axis {
  std::size_t in, taps, stride, padding, dilation;

  /// From the first place that an output reads to the last.
  constexpr std::size_t span() const { return workspace::product(dilation, std::max<std::size_t>(taps, 1) - 1); }
  /// Places of the output.
  constexpr std::size_t out() const {
    const std::size_t padded = std::min(in, std::size_t{workspace::most_bytes}) + 2 * padding;
    return padded <= span() ? 0 : (padded - span() - 1) / stride + 1;
  }
  /// dilation * u = stride * steps(u) + remainder(u). Every period() taps the remainders are the same again.
  constexpr std::size_t steps(std::size_t u) const { return dilation * u / stride; }
  constexpr std::size_t remainder(std::size_t u) const { return dilation * u % stride; }
  constexpr std::size_t period() const {
    std::size_t divisor = stride;
    for (std::size_t rest = dilation; rest != 0;) {
      const std::size_t next = divisor % rest;
      divisor = rest, rest = next;
    }
    return stride / divisor;
  }
  constexpr std::size_t remainders() const { return std::min(taps, period()); }
  /// steps(taps - 1).
  constexpr std::size_t reach() const { return span() / stride; }
};

/// Rows in scratch memory that a block of results reads, of each channel. A row is one line or, where the stride of the
/// columns leaves out some, several: every stride-th column, from each remainder on that a tap has.
///
///   rows lie close:  results share them;  row of result r and tap u: r * by_row + u * by_tap
///   rows lie apart:  every result and tap has its own
struct window_layout {
  std::size_t by_row, by_tap, rows, phases, tile, width;  ///< columns at a time; numbers of a line
  bool shared;

  constexpr std::size_t line() const { return phases * width; }
  constexpr std::size_t channel() const { return rows * line(); }
  constexpr std::size_t elements(std::size_t channels) const {
    return workspace::product(channels, rows, phases, width);
  }
};

/// Columns that are computed at a time, so that what they read stays in L2: a multiple of tap_vectors vectors.
template <class V>
constexpr std::size_t tile_columns(std::size_t columns, std::size_t lines) {
  constexpr std::size_t step = tap_vectors * V::size, most = 1024, least = 256, cached = std::size_t{1} << 16;
  std::size_t tile = most;
  while (tile > least && workspace::product(tile, lines) > cached) tile /= 2;
  return columns < tile ? round_up(columns, step) : tile;
}

/// Numbers of a line of so many columns.
template <class V>
constexpr std::size_t line_width(std::size_t tile, std::size_t reach) {
  return workspace::padded<typename V::value_type>(tile + reach);
}

/// Windows of the convolution: what `block` rows of its output read of its input, `tile` columns at a time.
template <class V>
constexpr window_layout windows_of_input(convolution_axis rows, convolution_axis cols, std::size_t block,
                                         std::size_t inputs) {
  const std::size_t close = workspace::product(block - 1, rows.stride) + rows.span() + 1,
                    apart = workspace::product(block, rows.taps);
  window_layout of{rows.stride, rows.dilation, close, cols.remainders(), 0, 0, true};
  if (close > apart) of.by_row = rows.taps, of.by_tap = 1, of.rows = apart, of.shared = false;
  of.tile = tile_columns<V>(cols.out(), workspace::product(inputs, of.rows, of.phases));
  of.width = line_width<V>(of.tile, cols.reach());
  return of;
}

/// Windows of its transpose: what `block` rows of the gradient of the input read of that of the output.
template <class V>
constexpr window_layout windows_of_output(convolution_axis rows, convolution_axis cols, std::size_t block,
                                          std::size_t outputs) {
  const std::size_t close = ceil_div(block - 1, rows.stride) + 1 + rows.reach(),
                    apart = workspace::product(block, rows.taps);
  window_layout of{1, 1, close, 1, 0, 0, true};
  if (close > apart) of.by_row = rows.taps, of.rows = apart, of.shared = false;
  of.tile = tile_columns<V>(cols.in / cols.stride + 1, workspace::product(outputs, of.rows));
  of.width = line_width<V>(of.tile, cols.reach());
  return of;
}

/// The weights of a group as the inner loops take them, [tap][channel], and where each tap's line begins.
template <class A>
struct packed_taps {
  std::size_t* offset;
  A* weight;
  std::size_t count;  ///< taps of a group

  TIGON_INLINE tap_list<A> of(std::size_t group, std::size_t channels, const A* x) const {
    return {x, offset, weight + group * count * channels, channels, count};
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_PLANE_WINDOWS_HPP
