// The tag and options of geglu.
#ifndef TIGON_OPS_GATE_GEGLU_OPTIONS_HPP
#define TIGON_OPS_GATE_GEGLU_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/gate/geglu_program.hpp>

namespace tigon {

namespace op {
struct geglu {
  static constexpr std::string_view name = "geglu";
};
}  // namespace op

/// The contract is in ops/geglu.hpp.
struct geglu_options {
  gelu_form form = gelu_form::tanh;
  bool round_gate = false;  ///< the gate is rounded to the storage type before the product, as frameworks do
};

}  // namespace tigon

#endif  // TIGON_OPS_GATE_GEGLU_OPTIONS_HPP
