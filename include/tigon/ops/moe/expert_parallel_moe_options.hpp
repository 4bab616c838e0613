// The tag, options and checks of expert_parallel_moe.
#ifndef TIGON_OPS_MOE_EXPERT_PARALLEL_MOE_OPTIONS_HPP
#define TIGON_OPS_MOE_EXPERT_PARALLEL_MOE_OPTIONS_HPP

#include <tigon/comm/communicator.hpp>
#include <tigon/ops/gate/geglu_options.hpp>
#include <tigon/ops/gate/swiglu_options.hpp>
#include <tigon/ops/moe/chunk.hpp>
#include <tigon/ops/moe/moe_options.hpp>

#include <array>
#include <string>

namespace tigon {

namespace op {
struct expert_parallel_moe {
  static constexpr std::string_view name = "expert_parallel_moe";
};
}  // namespace op

/// The contract is in ops/expert_parallel_moe.hpp.
template <class Gate = mlp_gate>
using expert_parallel_moe_options_for = moe_options_for<Gate>;
using expert_parallel_moe_options = moe_options;

namespace detail {
inline namespace TIGON_ABI {
/// Element types of a call by number: of x, of the routing weights, of the experts and of their gradients.
struct moe_types {
  std::uint64_t x, weights, experts, gradients;

  template <element T, element R, element W, element G>
  static constexpr moe_types of() {
    return {element_number<T>(), element_number<R>(), element_number<W>(), element_number<G>()};
  }
};

/// A gate as numbers: which one, then its options.
using gate_numbers = std::array<double, 7>;
inline gate_numbers numbers_of_gate(mlp_gate gate) { return {0, static_cast<double>(gate)}; }
inline gate_numbers numbers_of_gate(const swiglu_options& o) {
  return {1, o.gate_multiplier, o.down_multiplier, o.round_gate ? 1.0 : 0.0, o.limit, o.slope, o.up_offset};
}
inline gate_numbers numbers_of_gate(const geglu_options& o) {
  return {2, static_cast<double>(o.form), o.round_gate ? 1.0 : 0.0};
}

/// What has to be equal on all ranks.
struct moe_record {
  std::size_t tokens, choices, experts, hidden, intermediate, chunk, index;
  std::uint64_t gradients;  ///< dx, dweights: a bit each
  moe_types types;
  gate_numbers gate;

  moe_record() = default;
  /// `most`: rows of a chunk; index_bytes: of a number of an expert.
  moe_record(moe_shape s, std::size_t most, std::size_t index_bytes, moe_types types_of, const gate_numbers& gate_of)
      : tokens(s.tokens),
        choices(s.choices),
        experts(s.experts),
        hidden(s.hidden),
        intermediate(s.intermediate),
        chunk(most),
        index(index_bytes),
        gradients(0),
        types(types_of),
        gate(gate_of) {}
  moe_record with(bool dx, bool dweights) const {
    moe_record record = *this;
    record.gradients = (dx ? 1u : 0u) + (dweights ? 2u : 0u);
    return record;
  }
};

/// The record of this rank, of T, R, W and G as in moe_types.
template <class B, element T, element R, element W, element G, token_id I, class Gate>
moe_record moe_record_of(moe_shape s, std::size_t ranks, const Gate& gate) {
  moe_shape all = s;
  all.tokens = workspace::product(ranks, s.tokens);
  return {s, chunk_rows<B, accumulator_t<T>>(all), sizeof(I), moe_types::of<T, R, W, G>(), numbers_of_gate(gate)};
}

/// The name in the number of an element type.
inline std::string element_text(std::uint64_t number) {
  std::string text;
  for (; number != 0; number >>= 8) text.insert(text.begin(), static_cast<char>(number & 0xff));
  return text;
}

inline void expect_alike(std::string_view op, std::span<const moe_record> ranks) {
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const auto same = [&](std::string_view name, auto moe_record::*field) {
      if (ranks[r].*field != ranks[0].*field)
        fail_argument(error_code::state, op, name, std::to_string(ranks[r].*field) + " on rank " + std::to_string(r),
                      std::to_string(ranks[0].*field) + ", as on rank 0");
    };
    same("tokens", &moe_record::tokens), same("k", &moe_record::choices), same("experts", &moe_record::experts);
    same("hidden", &moe_record::hidden), same("intermediate", &moe_record::intermediate);
    same("rows of a chunk", &moe_record::chunk), same("bytes of an index", &moe_record::index);
    same("the choice of dx and dweights", &moe_record::gradients);
    const auto same_type = [&](std::string_view name, auto moe_types::*field) {
      if (ranks[r].types.*field != ranks[0].types.*field)
        fail_argument(error_code::state, op, name,
                      element_text(ranks[r].types.*field) + " on rank " + std::to_string(r),
                      element_text(ranks[0].types.*field) + ", as on rank 0");
    };
    same_type("the type of x", &moe_types::x), same_type("the type of weights", &moe_types::weights);
    same_type("the type of gate_up and down", &moe_types::experts);
    same_type("the type of their gradients", &moe_types::gradients);
    if (ranks[r].gate != ranks[0].gate)
      fail_argument(error_code::state, op, "the gate", "another on rank " + std::to_string(r), "the same as on rank 0");
  }
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_MOE_EXPERT_PARALLEL_MOE_OPTIONS_HPP
