// What group_norm's kernel is made of.
#ifndef TIGON_OPS_GROUP_NORM_PROGRAM_HPP
#define TIGON_OPS_GROUP_NORM_PROGRAM_HPP

#include <tigon/rows/reduce_map.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// dw += what a sample's channels add to it, db likewise.
struct sum_of_shares {
  template <class V>
  TIGON_INLINE pack<V, 2> map(V dw_share, V db_share, V dw, V db) const {
    return {{dw + dw_share, db + db_share}};
  }
};

/// Every size-th row of m from row k on: row g is channel k of group g. As wide as the group with its padding, by
/// which a map sees how much is written in all.
template <class T>
TIGON_INLINE matrix_view<T> channel_rows(matrix_view<T> m, std::size_t size, std::size_t k) {
  return {m.data + k * m.row_stride, m.rows / size, size * m.row_stride, size * m.row_stride};
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_GROUP_NORM_PROGRAM_HPP
