// The activations of gates in f64.
#ifndef TIGON_TESTS_SUPPORT_GATE_VALUE_HPP
#define TIGON_TESTS_SUPPORT_GATE_VALUE_HPP

#include <tigon/ops/mlp/mlp_options.hpp>

#include <cmath>
#include <numbers>

namespace tigon::test {

/// act(g) and act'(g).
struct gate_value {
  double act, slope;
};
inline gate_value gate_value_of(mlp_gate gate, double g) {
  if (gate == mlp_gate::swiglu) {
    const double sigmoid = 1 / (1 + std::exp(-g));
    return {g * sigmoid, sigmoid * (1 + g * (1 - sigmoid))};
  }
  const double k = std::sqrt(2 / std::numbers::pi), t = std::tanh(k * (g + 0.044715 * g * g * g));
  return {g * (1 + t) / 2, (1 + t) / 2 + g * (1 - t * t) / 2 * k * (1 + 3 * 0.044715 * g * g)};
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_GATE_VALUE_HPP
