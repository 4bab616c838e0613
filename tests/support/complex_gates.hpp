// Gates on complex numbers, for derivatives by a complex step.
#ifndef TIGON_TESTS_SUPPORT_COMPLEX_GATES_HPP
#define TIGON_TESTS_SUPPORT_COMPLEX_GATES_HPP

#include <tigon/ops/geglu.hpp>
#include <tigon/ops/swiglu.hpp>

#include <cmath>
#include <complex>
#include <numbers>

namespace tigon::test {

/// The derivative with respect to any number is the imaginary part, of a step that is too small to be seen in the real
/// one.
using number = std::complex<double>;
inline constexpr double step = 1e-100;

inline number act(const swiglu_options& o, number g, number u) {
  number z = o.gate_multiplier * g;
  if (z.real() > o.limit) z = o.limit;
  if (u.real() > o.limit) u = o.limit;
  if (u.real() < -o.limit) u = -o.limit;
  return o.down_multiplier * z / (1.0 + std::exp(-o.slope * z)) * (u + o.up_offset);
}
inline number act(const geglu_options& o, number g, number u) {
  if (o.form == gelu_form::tanh)
    return 0.5 * g * (1.0 + std::tanh(std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g))) * u;
  const double at = g.real() / std::numbers::sqrt2;
  const number erf(std::erf(at), g.imag() * std::numbers::sqrt2 * std::numbers::inv_sqrtpi * std::exp(-at * at));
  return 0.5 * g * (1.0 + erf) * u;
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_COMPLEX_GATES_HPP
