// The tag and options of relu_squared.
#ifndef TIGON_OPS_GATE_RELU_SQUARED_OPTIONS_HPP
#define TIGON_OPS_GATE_RELU_SQUARED_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

namespace op {
struct relu_squared {
  static constexpr std::string_view name = "relu_squared";
};
}  // namespace op

/// The contract is in ops/relu_squared.hpp.
struct relu_squared_options {
  bool from_y = false;  ///< backward is given y in the place of x, which nobody has to keep then
};

}  // namespace tigon

#endif  // TIGON_OPS_GATE_RELU_SQUARED_OPTIONS_HPP
