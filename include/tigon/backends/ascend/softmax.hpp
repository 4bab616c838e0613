// Softmax: short rows several at a time; where a row has several blocks its exponentials are made twice, because they
// cannot stay.
#ifndef TIGON_BACKENDS_ASCEND_SOFTMAX_HPP
#define TIGON_BACKENDS_ASCEND_SOFTMAX_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/softmax.hpp>

namespace tigon {

template <>
struct kernel<op::softmax, backends::ascend> : ub::kernel_on_tiles<op::softmax> {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_SOFTMAX_HPP
