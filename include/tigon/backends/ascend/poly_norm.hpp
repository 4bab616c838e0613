// PolyNorm: short rows several at a time, long rows in blocks of columns, twice; rows that f32 does not hold in f64.
#ifndef TIGON_BACKENDS_ASCEND_POLY_NORM_HPP
#define TIGON_BACKENDS_ASCEND_POLY_NORM_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/poly_norm.hpp>

namespace tigon {

template <>
struct kernel<op::poly_norm, backends::ascend> : ub::kernel_on_tiles<op::poly_norm> {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_POLY_NORM_HPP
