// Derivatives of a reference that complex numbers cannot pass through (absolute values, sorting, tables).
#ifndef TIGON_TESTS_SUPPORT_CENTRAL_DIFFERENCE_HPP
#define TIGON_TESTS_SUPPORT_CENTRAL_DIFFERENCE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "probes.hpp"

namespace tigon::test {

/// df/dx at the probed entries, to fourth order. With f64 and f of order one the error is about 1e-11; f takes
/// std::vector<double>. Entries within two steps of a kink give nonsense: draw inputs that keep away from it.
template <class F>
std::vector<double> central_difference(F&& f, const std::vector<double>& x, const std::vector<std::size_t>& probes) {
  std::vector<double> z = x, out;
  for (const std::size_t i : probes) {
    const double step = 1e-3 * std::max(1.0, std::abs(x[i]));
    const auto at = [&](double shift) {
      z[i] = x[i] + shift;
      return f(z);
    };
    out.push_back((8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step));
    z[i] = x[i];
  }
  return out;
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_CENTRAL_DIFFERENCE_HPP
