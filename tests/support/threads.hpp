// The promise that results do not depend on who computes them.
#ifndef TIGON_TESTS_SUPPORT_THREADS_HPP
#define TIGON_TESTS_SUPPORT_THREADS_HPP

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tigon/core/context.hpp>
#include <type_traits>
#include <vector>

#include "guarded.hpp"

namespace tigon::test {

/// Runs tasks one after the other, each worker in turn, and watches the scratch memory: within one run no byte of it
/// may be changed by two workers. On threads that would be a race, which shows in the bits only now and then.
class watching_executor {
 public:
  watching_executor(std::size_t workers, std::span<const std::byte> memory) : workers_(workers), memory_(memory) {}
  std::size_t workers() const { return workers_; }
  bool shared() const { return shared_; }

  TIGON_TEST_NOINLINE void run(std::size_t tasks, task_ref fn) {
    constexpr std::size_t page = 4096, line = 64;
    constexpr std::uint8_t nobody = 0;
    std::vector<std::byte> known(memory_.begin(), memory_.end());  // as the last task left it
    std::vector<std::uint8_t> owner(memory_.size(), nobody);
    const auto differs = [&](std::size_t first, std::size_t end) {
      return std::memcmp(&known[first], &memory_[first], end - first) != 0;
    };
    for (std::size_t task = 0; task < tasks; ++task) {
      const std::size_t worker = task % workers_;
      const auto writer = static_cast<std::uint8_t>(worker + 1);
      fn(task, worker);
      for (std::size_t at = 0; at < known.size(); at += page) {
        const std::size_t page_end = std::min(known.size(), at + page);
        if (!differs(at, page_end)) continue;
        for (std::size_t first = at; first < page_end; first += line) {
          const std::size_t end = std::min(page_end, first + line);
          if (!differs(first, end)) continue;
          for (std::size_t i = first; i < end; ++i) {
            if (known[i] == memory_[i]) continue;
            shared_ = shared_ || (owner[i] != nobody && owner[i] != writer);
            owner[i] = writer;
            known[i] = memory_[i];
          }
        }
      }
    }
  }

 private:
  std::size_t workers_;
  std::span<const std::byte> memory_;
  bool shared_ = false;
};

/// Runs tasks one after the other; one of all that it is given throws.
class failing_executor {
 public:
  struct failure {};
  static constexpr std::size_t none = std::size_t(-1);

  std::size_t workers() const { return 3; }
  std::size_t begun() const { return begun_; }
  void fail_at(std::size_t task) { begun_ = 0, fail_at_ = task; }

  TIGON_TEST_NOINLINE void run(std::size_t tasks, task_ref fn) {
    for (std::size_t task = 0; task < tasks; ++task) {
      if (begun_++ == fail_at_) throw failure{};
      fn(task, task % 3);
    }
  }

 private:
  std::size_t begun_ = 0, fail_at_ = none;
};

/// A computation without its type, so that what is asked of it is compiled once.
struct computation {
  void* of;
  std::vector<std::byte> (*compute)(void* of, context&);
  std::vector<std::byte> operator()(context& ctx) const { return compute(of, ctx); }
};

TIGON_TEST_NOINLINE inline testing::AssertionResult same_bits_for_any_threads_of(computation run) {
  std::size_t scratch_bytes = 0;
  const auto with = [&](std::size_t threads) -> std::vector<std::byte> {
    thread_pool pool(threads);
    workspace scratch;
    context ctx(pool, scratch);
    const std::vector<std::byte> bits = run(ctx);
    scratch_bytes = scratch.capacity();
    return bits;
  };
  const std::vector<std::byte> one = with(1);
  if (one.empty()) return testing::AssertionFailure() << "nothing was compared";
  for (const std::size_t threads : {2u, 7u, 3u})
    if (with(threads) != one) return testing::AssertionFailure() << "other bits with " << threads << " threads";

  guarded<std::byte> memory(scratch_bytes + workspace::alignment);
  watching_executor three(3, memory.bytes());
  workspace scratch(std::span(memory.data(), memory.size()));
  context ctx(three, scratch);
  if (run(ctx) != one) return testing::AssertionFailure() << "other bits with tasks dealt out in turn";
  if (three.shared()) return testing::AssertionFailure() << "two workers write the same scratch memory";

  failing_executor failing;
  workspace kept;
  context again(failing, kept);
  if (run(again) != one) return testing::AssertionFailure() << "other bits with 3 workers";
  const std::size_t tasks = failing.begun();
  for (const std::size_t task : {std::size_t{0}, tasks / 2, tasks - 1}) {
    if (task >= tasks) continue;
    failing.fail_at(task);
    try {
      (void)run(again);
      return testing::AssertionFailure() << "task " << task << " of " << tasks << " threw, and the call returned";
    } catch (const failing_executor::failure&) {
    }
    if (kept.used() != 0) return testing::AssertionFailure() << "scratch memory is in use after a task has thrown";
    failing.fail_at(failing_executor::none);
    if (run(again) != one) return testing::AssertionFailure() << "other bits after task " << task << " has thrown";
  }
  return testing::AssertionSuccess();
}

/// run(ctx) computes everything anew and returns bits_of(all outputs): the same for 1, 2, 3 and 7 threads, workers that
/// keep out of each other's scratch memory, and after a call in which a task has thrown.
template <class Run>
testing::AssertionResult same_bits_for_any_threads(Run&& run) {
  using made = std::remove_reference_t<Run>;
  return same_bits_for_any_threads_of(
      {const_cast<void*>(static_cast<const void*>(&run)),
       [](void* of, context& ctx) -> std::vector<std::byte> { return (*static_cast<made*>(of))(ctx); }});
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_THREADS_HPP
