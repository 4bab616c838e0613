// swiglu and geglu, a block of the flat arrays at a time.
#ifndef TIGON_BACKENDS_ASCEND_GATES_HPP
#define TIGON_BACKENDS_ASCEND_GATES_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/swiglu.hpp>

namespace tigon {

template <>
struct kernel<op::swiglu, backends::ascend> : ub::kernel_on_tiles<op::swiglu> {};

template <>
struct kernel<op::geglu, backends::ascend> : ub::kernel_on_tiles<op::geglu> {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_GATES_HPP
