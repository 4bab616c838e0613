// The tag, options and operands of swiglu_fused.
#ifndef TIGON_OPS_GATE_SWIGLU_FUSED_OPTIONS_HPP
#define TIGON_OPS_GATE_SWIGLU_FUSED_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/gate/swiglu_options.hpp>

namespace tigon {

/// Where gate and up lie in the one buffer that a projection of both leaves.
enum class gate_layout {
  halves,       ///< the gate in the first half of the columns, up in the second (Megatron, Phi-3)
  interleaved,  ///< the gate in even columns, up in odd ones (gpt-oss)
};

namespace op {
struct swiglu_fused {
  static constexpr std::string_view name = "swiglu_fused";
};
}  // namespace op

/// The contract is in ops/swiglu_fused.hpp.
using swiglu_fused_options = swiglu_options;

}  // namespace tigon

#endif  // TIGON_OPS_GATE_SWIGLU_FUSED_OPTIONS_HPP
