// A workspace of exactly so many bytes: what a door says that it needs must be enough, and a byte less must not be.
#ifndef TIGON_TESTS_SUPPORT_SCRATCH_HPP
#define TIGON_TESTS_SUPPORT_SCRATCH_HPP

#include <tigon/core/context.hpp>

#include "guarded.hpp"

namespace tigon::test {

/// call(ctx) with a fixed workspace that ends at a page that may not be touched.
template <class Call>
void with_workspace_of(std::size_t bytes, Call&& call, std::size_t threads = 1) {
  thread_pool pool(threads);
  guarded<std::byte> memory(bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t skip = (workspace::alignment - address % workspace::alignment) % workspace::alignment;
  workspace scratch(std::span(memory.data(), bytes).subspan(std::min(bytes, skip)));
  context ctx(pool, scratch);
  call(ctx);
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_SCRATCH_HPP
