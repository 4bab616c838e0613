// The tag and options of softmax.
#ifndef TIGON_OPS_SOFTMAX_SOFTMAX_OPTIONS_HPP
#define TIGON_OPS_SOFTMAX_SOFTMAX_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

namespace op {
struct softmax {
  static constexpr std::string_view name = "softmax";
};
}  // namespace op

/// The contract is in ops/softmax.hpp.
struct softmax_options {
  double scale = 1;
};

}  // namespace tigon

#endif  // TIGON_OPS_SOFTMAX_SOFTMAX_OPTIONS_HPP
