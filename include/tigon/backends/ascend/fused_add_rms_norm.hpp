// Residual addition and RMSNorm, cut as rms_norm.
#ifndef TIGON_BACKENDS_ASCEND_FUSED_ADD_RMS_NORM_HPP
#define TIGON_BACKENDS_ASCEND_FUSED_ADD_RMS_NORM_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>

namespace tigon {

template <>
struct kernel<op::fused_add_rms_norm, backends::ascend> : ub::kernel_on_tiles<op::fused_add_rms_norm> {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_FUSED_ADD_RMS_NORM_HPP
