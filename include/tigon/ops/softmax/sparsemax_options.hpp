// The tag and options of sparsemax.
#ifndef TIGON_OPS_SOFTMAX_SPARSEMAX_OPTIONS_HPP
#define TIGON_OPS_SOFTMAX_SPARSEMAX_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

namespace op {
struct sparsemax {
  static constexpr std::string_view name = "sparsemax";
};
}  // namespace op

/// The contract is in ops/sparsemax.hpp.
struct sparsemax_options {};

}  // namespace tigon

#endif  // TIGON_OPS_SOFTMAX_SPARSEMAX_OPTIONS_HPP
