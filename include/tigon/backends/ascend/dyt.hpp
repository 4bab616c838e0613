// Dynamic tanh: gamma, beta and partial sums of a block of columns stay in the buffer for all rows.
#ifndef TIGON_BACKENDS_ASCEND_DYT_HPP
#define TIGON_BACKENDS_ASCEND_DYT_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/dyt.hpp>

namespace tigon {

template <>
struct kernel<op::dyt, backends::ascend> : ub::kernel_on_tiles<op::dyt> {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_DYT_HPP
