// A mixture of experts: rows of tokens to the pairs of a chunk and back, and the weights of pairs in backward.
// Products, the gate (the chip's swiglu) and the order of the pairs are kernels of their own.
#ifndef TIGON_BACKENDS_ASCEND_MOE_HPP
#define TIGON_BACKENDS_ASCEND_MOE_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/moe/gather_scatter.hpp>

namespace tigon {

template <>
struct kernel<op::moe_gather, backends::ascend> : ub::kernel_of_rows_on_tiles<op::moe_gather> {};

template <>
struct kernel<op::moe_scatter, backends::ascend> : ub::kernel_of_rows_on_tiles<op::moe_scatter> {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_MOE_HPP
