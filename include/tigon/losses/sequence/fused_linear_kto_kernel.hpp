// The generic kernel of fused_linear_kto.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_KTO_KERNEL_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_KTO_KERNEL_HPP

#include <tigon/losses/sequence/fused_linear_kto_options.hpp>
#include <tigon/losses/sequence/fused_linear_unpaired_preference_kernel.hpp>

namespace tigon {

template <>
struct kernel<op::fused_linear_kto, backends::generic> : detail::unpaired_kernel {};

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_KTO_KERNEL_HPP
