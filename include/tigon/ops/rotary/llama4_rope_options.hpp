// The tag, options and operands of llama4_rope.
#ifndef TIGON_OPS_ROTARY_LLAMA4_ROPE_OPTIONS_HPP
#define TIGON_OPS_ROTARY_LLAMA4_ROPE_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/rotary/rotation.hpp>

namespace tigon {

namespace op {
struct llama4_rope {
  static constexpr std::string_view name = "llama4_rope";
};
}  // namespace op

/// Whether all sequences have the positions of one table, or each its own.
enum class rotary_table { shared, per_sequence };

/// The contract is in ops/llama4_rope.hpp.
struct llama4_rope_options {
  rotary_table freqs = rotary_table::shared;
};

}  // namespace tigon

#endif  // TIGON_OPS_ROTARY_LLAMA4_ROPE_OPTIONS_HPP
