// The tag and options of swiglu.
#ifndef TIGON_OPS_GATE_SWIGLU_OPTIONS_HPP
#define TIGON_OPS_GATE_SWIGLU_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

namespace op {
struct swiglu {
  static constexpr std::string_view name = "swiglu";
};
}  // namespace op

/// The contract is in ops/swiglu.hpp.
struct swiglu_options {
  double gate_multiplier = 1;
  double down_multiplier = 1;
  bool round_gate = false;  ///< the gate is rounded to the storage type before the product, as frameworks do
  double limit = std::numeric_limits<double>::infinity();  ///< of the gate and of |up|; no gradient passes beyond
  double slope = 1;                                        ///< of the sigmoid's argument; 1.702 is close to GELU
  double up_offset = 0;                                    ///< added to up; gpt-oss: limit 7, slope 1.702, up_offset 1
};

}  // namespace tigon

#endif  // TIGON_OPS_GATE_SWIGLU_OPTIONS_HPP
