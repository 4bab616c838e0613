// GroupNorm: a group at a time, whose blocks stay in the buffer from pass to pass where they fit.
#ifndef TIGON_BACKENDS_ASCEND_GROUP_NORM_HPP
#define TIGON_BACKENDS_ASCEND_GROUP_NORM_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/group_norm.hpp>

namespace tigon {

template <>
struct kernel<op::group_norm, backends::ascend> : ub::kernel_of_rows_on_tiles<op::group_norm> {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_GROUP_NORM_HPP
