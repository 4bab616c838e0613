// The tag and options of qwen2vl_mrope.
#ifndef TIGON_OPS_ROTARY_QWEN2VL_MROPE_OPTIONS_HPP
#define TIGON_OPS_ROTARY_QWEN2VL_MROPE_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/rotary/rotation.hpp>

namespace tigon {

namespace op {
struct qwen2vl_mrope {
  static constexpr std::string_view name = "qwen2vl_mrope";
};
}  // namespace op

/// The contract is in ops/qwen2vl_mrope.hpp.
struct qwen2vl_mrope_options {
  std::array<std::size_t, 3> sections{};  ///< pairs rotated by time, by height, by width; together d/2
};

}  // namespace tigon

#endif  // TIGON_OPS_ROTARY_QWEN2VL_MROPE_OPTIONS_HPP
