// Derivatives of a reference by one imaginary step: nothing cancels, so the step is tiny and the result exact to f64.
#ifndef TIGON_TESTS_SUPPORT_COMPLEX_STEP_HPP
#define TIGON_TESTS_SUPPORT_COMPLEX_STEP_HPP

#include <complex>
#include <cstddef>
#include <vector>

#include "probes.hpp"

namespace tigon::test {

/// df/dx at the probed entries. f takes std::vector<std::complex<double>> and is written for any number type; where
/// it compares or takes a maximum it must look at real parts only.
template <class F>
std::vector<double> complex_step(F&& f, const std::vector<double>& x, const std::vector<std::size_t>& probes) {
  constexpr double step = 1e-30;
  std::vector<std::complex<double>> z(x.begin(), x.end());
  std::vector<double> out;
  for (const std::size_t i : probes) {
    z[i] = {x[i], step};
    out.push_back(std::imag(f(z)) / step);
    z[i] = x[i];
  }
  return out;
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_COMPLEX_STEP_HPP
