// The contract of the concept `executor`: which tasks run, what happens when one throws, and threads that do not start.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <tigon/core/executor.hpp>

#include <chrono>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>

#include "support/scarcity.hpp"

namespace {

using namespace tigon::test;
using tigon::executor_ref, tigon::serial_executor, tigon::thread_pool;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
// Rounds of the tests that look for races, which the thread sanitizer makes slow.
constexpr int rounds = sanitized ? 400 : 1000;

struct oops {
  std::size_t task;
};

/// check(name, executor) for one of each kind and size.
void each_executor(const std::function<void(std::string, executor_ref)>& check) {
  serial_executor alone;
  check("serial", alone);
  for (const std::size_t workers : {0u, 1u, 2u, 3u, 8u}) {
    thread_pool pool(workers);
    check("thread_pool of " + std::to_string(workers), pool);
#if defined(_OPENMP)
    tigon::openmp_executor omp(workers);
    check("openmp of " + std::to_string(workers), omp);
#endif
  }
}

/// What is wrong with a run() of so many tasks in which nothing throws; empty if nothing is.
std::string fault_of_run(executor_ref e, std::size_t tasks) {
  std::vector<std::atomic<int>> calls(tasks), at_once(e.workers());
  std::atomic<bool> strange = false, shared = false;
  e.run(tasks, [&](std::size_t task, std::size_t worker) {
    if (task >= tasks || worker >= at_once.size()) {
      strange = true;
      return;
    }
    if (at_once[worker]++ != 0) shared = true;
    ++calls[task];
    --at_once[worker];
  });
  if (strange) return "a task or a worker out of range";
  if (shared) return "two tasks at a time with one worker";
  for (const auto& n : calls)
    if (n != 1) return "a task that ran " + std::to_string(n) + " times";
  return "";
}

TEST(executor, runs_every_task_once) {
  each_executor([](const std::string& name, executor_ref e) {
    EXPECT_GE(e.workers(), 1u);
    for (const std::size_t tasks : {0u, 1u, 2u, 7u, 1000u})
      EXPECT_EQ(fault_of_run(e, tasks), "") << name << ", " << tasks;
  });
}

TEST(executor, throws_what_a_task_throws_and_stays_usable) {
  each_executor([](const std::string& name, executor_ref e) {
    for (const std::size_t tasks : {1u, 2u, 50u})
      for (const std::size_t bad : {std::size_t{0}, tasks / 2, tasks - 1}) {
        std::atomic<std::size_t> begun = 0, ended = 0;
        bool caught = false;
        {
          std::vector<int> own(64, 1);  // gone when run() has thrown
          try {
            e.run(tasks, [&](std::size_t task, std::size_t) {
              ++begun;
              if (task == bad) throw oops{task};
              ended += static_cast<std::size_t>(own[task]);
            });
          } catch (const oops& thrown) {
            caught = thrown.task == bad;
          }
        }
        EXPECT_TRUE(caught) << name;
        const std::size_t at_return = begun;
        EXPECT_EQ(at_return, ended + 1) << name << ": not every task that began has ended";
        EXPECT_EQ(fault_of_run(e, 100), "") << name;
        EXPECT_EQ(begun, at_return) << name << ": a task began after run() had thrown";
      }
  });
}

TEST(executor, throws_one_of_what_all_tasks_throw) {
  each_executor([](const std::string& name, executor_ref e) {
    for (int round = 0; round < rounds / 20; ++round) {
      try {
        e.run(20, [](std::size_t task, std::size_t) { throw std::runtime_error("task " + std::to_string(task)); });
        FAIL() << name;
      } catch (const std::runtime_error& thrown) {
        EXPECT_EQ(std::string(thrown.what()).substr(0, 5), "task ") << name;
      }
      EXPECT_EQ(fault_of_run(e, 10), "") << name;
    }
  });
}

TEST(executor, begins_no_task_after_one_has_thrown) {
  each_executor([](const std::string& name, executor_ref e) {
    constexpr std::size_t tasks = 100000;
    std::atomic<std::size_t> begun = 0;
    std::atomic<bool> throwing = false;
    const auto fn = [&](std::size_t task, std::size_t) {
      ++begun;
      if (task == 0) {
        throwing = true;
        throw oops{task};
      }
      while (!throwing) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    EXPECT_THROW(e.run(tasks, fn), oops) << name;
    EXPECT_LT(begun, tasks / 2) << name;
  });
}

TEST(executor, runs_inside_its_own_tasks) {
  each_executor([](const std::string& name, executor_ref e) {
    std::vector<std::string> faults(20);
    e.run(faults.size(), [&](std::size_t task, std::size_t) { faults[task] = fault_of_run(e, 30); });
    for (const std::string& fault : faults) EXPECT_EQ(fault, "") << name;
    const auto inner = [&](std::size_t task, std::size_t) {
      if (task == 3) throw oops{task};
    };
    EXPECT_THROW(e.run(20, [&](std::size_t, std::size_t) { e.run(5, inner); }), oops) << name;
    EXPECT_EQ(fault_of_run(e, 100), "") << name;
  });
}

TEST(thread_pool, serves_several_callers) {
  thread_pool pool(3), other(2);
  std::vector<std::string> faults(4);
  std::vector<std::thread> callers;
  for (std::size_t k = 0; k < faults.size(); ++k)
    callers.emplace_back([&, k] {
      for (int round = 0; round < rounds && faults[k].empty(); ++round) {
        faults[k] = fault_of_run(pool, 1 + static_cast<std::size_t>(round) % 20);
        try {
          // Each pool's tasks use the other one.
          other.run(4, [&](std::size_t task, std::size_t) {
            pool.run(3, [&](std::size_t t, std::size_t) {
              if (round % 3 == 0 && task == 1 && t == 2) throw oops{k};
            });
          });
          if (round % 3 == 0) faults[k] = "nothing was thrown";
        } catch (const oops& thrown) {
          if (thrown.task != k) faults[k] = "thrown by another caller's task";
        }
      }
    });
  for (std::thread& caller : callers) caller.join();
  for (const std::string& fault : faults) EXPECT_EQ(fault, "");
}

TEST(thread_pool, ends_right_after_a_run) {
  for (int round = 0; round < rounds; ++round) {
    std::atomic<std::size_t> sum = 0;
    {
      thread_pool pool(1 + static_cast<std::size_t>(round) % 5);
      const auto add = [&](std::size_t task, std::size_t) {
        sum += task;
        if (round % 4 == 1 && task == 5) throw oops{task};
      };
      if (round % 4 == 1)
        EXPECT_THROW(pool.run(10, add), oops);
      else if (round % 4 != 2)
        pool.run(10, add);
    }
    EXPECT_TRUE(round % 4 != 0 || sum == 45) << sum;
  }
}

// Tasks that wait for one another: as many threads come as there are tasks, whether they sleep or are about to.
TEST(thread_pool, wakes_a_thread_for_every_task) {
  for (const std::size_t workers : {2u, 3u, 9u}) {
    thread_pool pool(workers);
    for (int round = 0; round < rounds / 10; ++round) {
      const std::size_t tasks = 2 + static_cast<std::size_t>(round) % (workers - 1);
      std::atomic<std::size_t> here = 0;
      std::vector<std::atomic<int>> by(workers);
      pool.run(tasks, [&](std::size_t, std::size_t worker) {
        ++by[worker];
        for (++here; here < tasks;) std::this_thread::yield();
      });
      for (const auto& n : by) EXPECT_LE(n, 1);
      // From none to several times what threads look for work before they sleep.
      std::this_thread::sleep_for(std::chrono::microseconds(round % 8 * 20));
    }
  }
}

double processor_seconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

TEST(thread_pool, sleeps_when_there_is_nothing_to_do) {
  for (const std::size_t workers : {tigon::detail::processors(), 4 * tigon::detail::processors()}) {
    thread_pool pool(std::max<std::size_t>(workers, 2));
    EXPECT_EQ(fault_of_run(pool, 100), "");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const double before = processor_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_LT(processor_seconds() - before, 0.02) << workers;
    EXPECT_EQ(fault_of_run(pool, 100), "");
  }
}

// A run() waits for those threads alone that take part: a single long task holds up no other caller's runs.
TEST(thread_pool, that_is_busy_leaves_callers_to_themselves) {
  thread_pool pool(3);
  std::atomic<bool> inside = false, done = false;
  std::thread caller([&] {
    pool.run(2, [&](std::size_t task, std::size_t) {
      if (task != 0) return;
      inside = true;
      while (!done) std::this_thread::yield();
    });
  });
  while (!inside) std::this_thread::yield();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(fault_of_run(pool, 20), "");
  done = true;
  caller.join();
}

TEST(thread_pool, that_cannot_start_all_threads_starts_none) {
  const std::size_t before = running_threads();
  for (long started = 0; started < 6; ++started) {
    const limited limit(threads_left, started);
    try {
      thread_pool pool(7);
      FAIL() << started;
    } catch (const std::system_error& e) {
      EXPECT_EQ(e.code(), std::errc::resource_unavailable_try_again);
      const std::string sentence =
          "tigon: thread_pool: the system starts only " + std::to_string(started) + " of 6 threads: ";
      EXPECT_EQ(std::string(e.what()).substr(0, sentence.size()), sentence);
    }
    EXPECT_TRUE(threads_are_gone(before)) << started;
  }
  EXPECT_THROW(thread_pool{std::numeric_limits<std::size_t>::max()}, std::system_error);
  thread_pool pool(7);
  EXPECT_EQ(fault_of_run(pool, 100), "");
}

TEST(thread_pool, without_memory_starts_no_thread) {
  if (!memory_can_run_out) GTEST_SKIP();
  const std::size_t before = running_threads();
  long failures = 0;
  for (bool made = false; !made; ++failures) {
    ASSERT_LT(failures, 100);
    try {
      const limited limit(memory_left, failures);
      thread_pool pool(4);
      made = true;
    } catch (const std::bad_alloc&) {
    }
    EXPECT_TRUE(threads_are_gone(before)) << failures;
  }
  EXPECT_GT(failures, 3);  // each thread needs memory
}

// The real thing, in a program of its own: address space for some of the stacks.
TEST(thread_pool, says_that_the_system_has_no_more_threads) {
  if (sanitized) GTEST_SKIP() << "a sanitizer needs more address space than any limit";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto make = [] {
    alarm(60);  // a pool that hangs
    const rlimit limit{rlim_t{600} << 20, rlim_t{600} << 20};
    setrlimit(RLIMIT_AS, &limit);
    try {
      thread_pool pool(1000);
    } catch (const std::system_error& e) {
      _exit(e.code() == std::errc::resource_unavailable_try_again ? 42 : 1);
    }
    _exit(0);
  };
  EXPECT_EXIT(make(), testing::ExitedWithCode(42), "");
}

#if defined(_OPENMP)
TEST(openmp_executor, keeps_workers_below_their_number) {
  EXPECT_EQ(tigon::openmp_executor(0).workers(), 1u);
  EXPECT_EQ(tigon::openmp_executor(std::numeric_limits<std::size_t>::max()).workers(), std::size_t{INT_MAX});
  const int levels = omp_get_max_active_levels(), dynamic = omp_get_dynamic();
  for (const std::size_t workers : {std::size_t{2}, std::size_t{5}, std::size_t{1} << 32}) {
    tigon::openmp_executor e(workers);
    std::atomic<bool> below = true;
    const auto inner = [&](std::size_t, std::size_t worker) {
      if (worker >= e.workers()) below = false;
    };
    for (const int nested : {1, 3})
      for (const int adjust : {0, 1}) {
        omp_set_max_active_levels(nested);
        omp_set_dynamic(adjust);
        e.run(20, [&](std::size_t, std::size_t worker) {
          inner(0, worker);
          e.run(20, inner);
        });
      }
    EXPECT_TRUE(below) << workers;
  }
  omp_set_max_active_levels(levels);
  omp_set_dynamic(dynamic);
}
#endif

}  // namespace
