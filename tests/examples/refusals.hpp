// Sentences with which the readers of the example programs refuse what they are given.
#ifndef TIGON_TESTS_EXAMPLES_REFUSALS_HPP
#define TIGON_TESTS_EXAMPLES_REFUSALS_HPP

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace tigon::test {

/// The sentence of a refusal, "" without one.
inline std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_EXAMPLES_REFUSALS_HPP
