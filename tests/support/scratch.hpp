// A workspace of exactly so many bytes: what a door says that it needs must be enough, and a byte less must not be.
#ifndef TIGON_TESTS_SUPPORT_SCRATCH_HPP
#define TIGON_TESTS_SUPPORT_SCRATCH_HPP

#include <gtest/gtest.h>

#include <tigon/core/context.hpp>

#include "guarded.hpp"

namespace tigon::test {

/// call(ctx) with a fixed workspace at the address that is worst for alignment, a byte behind a cache line. It ends
/// less than a line before a page that may not be touched.
template <class Call>
void with_workspace_of(std::size_t bytes, Call&& call, std::size_t threads = 1) {
  thread_pool pool(threads);
  guarded<std::byte> memory(bytes + workspace::alignment - 1);
  workspace scratch(std::span(memory.data(), bytes));
  context ctx(pool, scratch);
  call(ctx);
  for (std::size_t i = bytes; i < memory.size(); ++i)
    EXPECT_EQ(memory[i], std::byte{canary<std::byte>}) << i - bytes << " bytes behind the workspace";
}

/// Whether call(ctx) leaves alone what lies in the workspace behind the most that it takes.
template <class Call>
testing::AssertionResult touches_what_it_takes(Call&& call) {
  guarded<std::byte> memory(std::size_t{1} << 16);
  workspace scratch(std::span(memory.data(), memory.size()));
  context ctx(serial(), scratch);
  call(ctx);
  for (std::size_t i = scratch.high_water(); i < memory.size(); ++i)
    if (memory[i] != std::byte{canary<std::byte>})
      return testing::AssertionFailure() << i - scratch.high_water() << " bytes behind " << scratch.high_water();
  return testing::AssertionSuccess();
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_SCRATCH_HPP
