// The promise that results do not depend on who computes them.
#ifndef TIGON_TESTS_SUPPORT_THREADS_HPP
#define TIGON_TESTS_SUPPORT_THREADS_HPP

#include <gtest/gtest.h>

#include <cstddef>
#include <tigon/core/context.hpp>
#include <vector>

namespace tigon::test {

/// run(ctx) computes everything anew and returns bits_of(all outputs): the same for 1, 2, 3 and 7 threads.
template <class Run>
testing::AssertionResult same_bits_for_any_threads(Run&& run) {
  const auto with = [&](std::size_t threads) -> std::vector<std::byte> {
    thread_pool pool(threads);
    workspace scratch;
    context ctx(pool, scratch);
    return run(ctx);
  };
  const std::vector<std::byte> one = with(1);
  if (one.empty()) return testing::AssertionFailure() << "nothing was compared";
  for (const std::size_t threads : {2u, 3u, 7u})
    if (with(threads) != one) return testing::AssertionFailure() << "other bits with " << threads << " threads";
  return testing::AssertionSuccess();
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_THREADS_HPP
