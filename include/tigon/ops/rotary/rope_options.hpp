// The tag and options of rope.
#ifndef TIGON_OPS_ROTARY_ROPE_OPTIONS_HPP
#define TIGON_OPS_ROTARY_ROPE_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/rotary/rotation.hpp>

namespace tigon {

namespace op {
struct rope {
  static constexpr std::string_view name = "rope";
};
}  // namespace op

/// The contract is in ops/rope.hpp.
struct rope_options {
  std::size_t rotary_dim = whole_head;  ///< columns of a head that are rotated
  rotary_columns columns = rotary_columns::first;
  rotary_pairs pairs = rotary_pairs::halves;
};

}  // namespace tigon

#endif  // TIGON_OPS_ROTARY_ROPE_OPTIONS_HPP
