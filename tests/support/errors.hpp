// Comparisons for tests. NaN and infinities have to stand in the same places, and comparing nothing is a failure.
#ifndef TIGON_TESTS_SUPPORT_ERRORS_HPP
#define TIGON_TESTS_SUPPORT_ERRORS_HPP

#include <gtest/gtest.h>

#include <tigon/core/element.hpp>

#include "measure.hpp"

namespace tigon::test {

/// One number an element type: the bounds of a contract.
struct by_type {
  double f32, bf16, f16, f64;
  template <element T>
  constexpr double of() const {
    return std::same_as<T, float> ? f32 : std::same_as<T, bfloat16> ? bf16 : std::same_as<T, float16> ? f16 : f64;
  }
};

struct comparison {
  double scale = 0;           ///< size of the terms that add up to want, where all of them cancel
  bool may_be_empty = false;  ///< comparing nothing is a mistake of the test, unless it says so
};

/// Every |got - want| is at most bound * (|want| + the root mean square of want, or the scale if that is larger): a
/// bound that stays meaningful for entries that cancel, whatever the size of the tensor's numbers.
[[gnu::noinline]] inline testing::AssertionResult close(std::span<const double> got, std::span<const double> want,
                                                        double bound, comparison with = {}) {
  if (got.size() != want.size())
    return testing::AssertionFailure() << got.size() << " values where " << want.size() << " are wanted";
  if (want.empty() && !with.may_be_empty) return testing::AssertionFailure() << "nothing was compared";

  double square = 0;
  std::size_t finite = 0;
  bound *= error_scale;
  for (const double w : want)
    if (std::isfinite(w)) square += w * w, ++finite;
  const double mean_square = finite == 0 ? 0 : square / static_cast<double>(finite);
  const double typical = std::max(with.scale, std::sqrt(mean_square));

  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    const double error = std::abs(got[i] - want[i]) / (std::abs(want[i]) + typical);
    if (!(error <= worst)) worst = std::isfinite(error) ? error : std::numeric_limits<double>::infinity(), at = i;
  }
  if (worst <= bound) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "element " << at << " of " << want.size() << " is " << got[at]
                                     << " and should be " << want[at] << ": error " << worst << ", bound " << bound
                                     << " (relative L2 error of all: " << measure(got, want).rel_l2 << ")";
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_ERRORS_HPP
