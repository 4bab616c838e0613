// Hyper-connections: the streams of a token in blocks of columns, which stay in the buffer for all of its sums.
#ifndef TIGON_BACKENDS_ASCEND_HYPER_CONNECTIONS_HPP
#define TIGON_BACKENDS_ASCEND_HYPER_CONNECTIONS_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/mhc_post_res.hpp>
#include <tigon/ops/mhc_pre.hpp>

namespace tigon {

template <>
struct kernel<op::mhc_pre, backends::ascend> : ub::kernel_of_row_parts_on_tiles<op::mhc_pre> {};

template <>
struct kernel<op::mhc_post_res, backends::ascend> : ub::kernel_of_row_parts_on_tiles<op::mhc_post_res> {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_HYPER_CONNECTIONS_HPP
