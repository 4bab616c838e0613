// Frozen parameters: what a backward pass gives without some of its parameter gradients, or without all.
#ifndef TIGON_TESTS_SUPPORT_FROZEN_HPP
#define TIGON_TESTS_SUPPORT_FROZEN_HPP

#include <gtest/gtest.h>

#include <tigon/core/context.hpp>

#include <functional>
#include <string>
#include <vector>

#include "guarded.hpp"
#include "scratch.hpp"

namespace tigon::test {

/// A backward pass with parameter gradients in buffers of its own.
struct frozen_case {
  std::string name;
  /// Those of them that bit k of `given` says have memory. Outputs are cleared before.
  std::function<void(unsigned given, context&)> run;
  std::function<void()> clear;
  std::function<std::vector<std::byte>()> others;                      ///< bits of what is not a parameter's gradient
  std::vector<std::function<std::vector<std::byte>()>> of_parameters;  ///< bits of each of these
  std::function<std::size_t(parameters, const context&)> bytes;        ///< of workspace
  /// Bytes of the workspace that are no sums for parameters; all that frozen parameters may take.
  std::function<std::size_t(const context&)> bytes_without_sums = {};
  bool smaller = true;  ///< without sums for parameters less is taken; not where another pass takes as much
};

/// Of no gradient at all, each alone, and all but one: the other results have the bits of the whole pass, a gradient
/// has the same bits or is not touched, and the workspace suffices that the operator names. It has no sums then.
TIGON_TEST_NOINLINE inline void check_frozen(const frozen_case& c) {
  SCOPED_TRACE(c.name);
  const std::size_t n = c.of_parameters.size();
  const unsigned all = (1u << n) - 1;
  const auto bytes_of = [&](parameters of) {
    std::size_t bytes = 0;
    with_workspace_of(0, [&](context& ctx) { bytes = c.bytes(of, ctx); });
    return bytes;
  };
  const auto run = [&](unsigned given) {
    c.clear();
    with_workspace_of(bytes_of(trained_if(given != 0)), [&](context& ctx) { c.run(given, ctx); });
  };
  c.clear();
  std::vector<std::vector<std::byte>> untouched, wanted;
  for (const auto& gradient : c.of_parameters) untouched.push_back(gradient());
  run(all);
  const auto others = c.others();
  for (const auto& gradient : c.of_parameters) wanted.push_back(gradient());
  for (std::size_t k = 0; k < n; ++k) EXPECT_NE(wanted[k], untouched[k]) << "gradient " << k;
  std::vector<unsigned> masks{0};
  for (std::size_t k = 0; k < n && n > 1; ++k) masks.insert(masks.end(), {1u << k, all & ~(1u << k)});
  for (const unsigned given : masks) {
    run(given);
    EXPECT_EQ(c.others(), others) << "with gradients " << given;
    for (std::size_t k = 0; k < n; ++k)
      EXPECT_EQ(c.of_parameters[k](), (given >> k & 1) != 0 ? wanted[k] : untouched[k])
          << "gradient " << k << " with gradients " << given;
  }
  if (c.smaller)
    EXPECT_LT(bytes_of(parameters::frozen), bytes_of(parameters::trained));
  else
    EXPECT_LE(bytes_of(parameters::frozen), bytes_of(parameters::trained));
  if (c.bytes_without_sums)
    with_workspace_of(0, [&](context& ctx) { EXPECT_EQ(c.bytes(parameters::frozen, ctx), c.bytes_without_sums(ctx)); });
}

/// A buffer, or nothing where its bit is not set.
template <class T>
std::span<T> if_given(unsigned given, unsigned k, guarded<T>& buffer) {
  return (given >> k & 1) != 0 ? std::span<T>(buffer) : std::span<T>();
}
template <class T>
matrix_view<T> if_given(unsigned given, unsigned k, guarded_matrix<T>& buffer) {
  return (given >> k & 1) != 0 ? buffer.view() : matrix_view<T>();
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_FROZEN_HPP
