// What sparsemax is made of: the excess over a threshold, and tiles of lines along an axis that is not the last.
#ifndef TIGON_OPS_SOFTMAX_AXIS_LINES_HPP
#define TIGON_OPS_SOFTMAX_AXIS_LINES_HPP

#include <tigon/core/division.hpp>
#include <tigon/ops/softmax/axis.hpp>
#include <tigon/rows/row.hpp>

#include <algorithm>
#include <cstddef>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// How far v lies above high + low, and whether it does.
template <class V, class L>
TIGON_INLINE pack<V, 2> excess(V v, L high, L low) {
  const V none(0), over = v - high - low;
  return {{max(none, over), select(over > none, V(1), none)}};
}

/// Of eight vectors, lane by lane: nothing goes across lanes.
inline constexpr auto largest_of_eight = [](auto a, auto b, auto c, auto d, auto e, auto f, auto g, auto h) {
  return max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h)));
};

/// Columns [first, first + count) of o, as rows: line `from` of the axis and what follows it.
template <class T>
TIGON_INLINE rows_of<T> lines_from(axis_view<T> v, std::size_t o, std::size_t from, std::size_t first,
                                   std::size_t count) {
  return {{v.line(o, from, first, count).data, v.axis - from, count, v.axis_stride},
          v.outer * v.axis * v.inner * sizeof(T)};
}

/// Tiles of an axis that is not the last: lanes are columns, about equally many in every tile.
template <class B>
struct column_tiles {
  static constexpr std::size_t most = 512;  // so that memory is read by the page

  static constexpr std::size_t width(std::size_t inner, std::size_t at_most = most) {
    const std::size_t tiles = ceil_div(inner, at_most);
    return tiles == 0 ? 0 : std::min(inner, round_up(ceil_div(inner, tiles), 64));
  }
  static constexpr std::size_t count(std::size_t inner, std::size_t width) {
    return width == 0 ? 0 : ceil_div(inner, width);
  }
  /// Columns for which the largest of every eight elements stay in L2.
  static constexpr std::size_t width_of_tops(std::size_t axis, std::size_t inner) {
    return width(inner, std::clamp<std::size_t>((std::size_t{1} << 20) / axis / 64 * 64, 64, most));
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_SOFTMAX_AXIS_LINES_HPP
