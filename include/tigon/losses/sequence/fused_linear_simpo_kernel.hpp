// The generic kernel of fused_linear_simpo.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_SIMPO_KERNEL_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_SIMPO_KERNEL_HPP

#include <tigon/losses/sequence/fused_linear_cpo_kernel.hpp>
#include <tigon/losses/sequence/fused_linear_simpo_options.hpp>

namespace tigon {

template <>
struct kernel<op::fused_linear_simpo, backends::generic> : detail::pair_kernel {};

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_SIMPO_KERNEL_HPP
