// Who runs tasks. A task is a number; the work behind it depends on shapes alone, never on who runs it.
#ifndef TIGON_CORE_EXECUTOR_HPP
#define TIGON_CORE_EXECUTOR_HPP

#include <tigon/config.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace tigon {

/// A reference to a callable `fn(task, worker)`; lives no longer than the call it is passed to.
class task_ref {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, task_ref>)
  TIGON_INLINE task_ref(F&& fn)  // NOLINT: converts on purpose
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(fn)))),
        call_([](void* object, std::size_t task, std::size_t worker) {
          (*static_cast<std::remove_reference_t<F>*>(object))(task, worker);
        }) {}

  TIGON_INLINE void operator()(std::size_t task, std::size_t worker) const { call_(object_, task, worker); }

 private:
  void* object_;
  void (*call_)(void*, std::size_t, std::size_t);
};

/// What an executor is: `workers()`, at least 1, at most that many tasks at once, `run(tasks, fn)` calls fn(task,
/// worker) once for every task in [0, tasks), with worker in [0, workers()), no two calls at a time with one worker;
/// returns when all are done.
///
/// A task may throw. Tasks that have begun then finish, no other one begins, and run() throws on its caller what was
/// thrown first, when nobody uses fn any more. The executor stays as usable as before; what the tasks wrote stays
/// written.
template <class E>
concept executor = requires(E& e, std::size_t n, task_ref fn) {
  { e.workers() } -> std::convertible_to<std::size_t>;
  e.run(n, fn);
};

/// A non-owning reference to any executor.
class executor_ref {
 public:
  template <executor E>
    requires(!std::is_same_v<std::remove_cvref_t<E>, executor_ref>)
  TIGON_TAGGED TIGON_INLINE executor_ref(E& e)  // NOLINT: converts on purpose
      : object_(&e),
        workers_([](void* object) -> std::size_t { return static_cast<E*>(object)->workers(); }),
        run_([](void* object, std::size_t tasks, task_ref fn) { static_cast<E*>(object)->run(tasks, fn); }) {}

  TIGON_INLINE std::size_t workers() const { return workers_(object_); }
  TIGON_INLINE void run(std::size_t tasks, task_ref fn) const { run_(object_, tasks, fn); }

 private:
  void* object_;
  std::size_t (*workers_)(void*);
  void (*run_)(void*, std::size_t, task_ref);
};

/// Runs every task on the calling thread, in order.
struct serial_executor {
  TIGON_INLINE std::size_t workers() const { return 1; }
  TIGON_INLINE void run(std::size_t tasks, task_ref fn) const {
    for (std::size_t task = 0; task < tasks; ++task) fn(task, 0);
  }
};

TIGON_TAGGED inline executor_ref serial() {
  static serial_executor instance;
  return instance;
}

namespace detail {

/// The first exception of several threads: kept, and thrown again by the thread that joins or waits for them.
class first_exception {
 public:
  TIGON_TAGGED first_exception() {}
  TIGON_TAGGED ~first_exception() {}

  /// Calls fn() and catches what it throws. Returns whether fn returned.
  template <class F>
  TIGON_TAGGED TIGON_HOST_INLINE bool attempt(F&& fn) {
#if defined(__cpp_exceptions)
    try {
      fn();
    } catch (...) {
      if (!any_.exchange(true, std::memory_order_acq_rel)) what_ = std::current_exception();
      return false;
    }
#else
    fn();
#endif
    return true;
  }

  /// Something was thrown.
  TIGON_INLINE bool any() const { return any_.load(std::memory_order_relaxed); }

  /// Throws the exception and forgets it; called when no attempt() is under way.
  TIGON_TAGGED void rethrow() {
#if defined(__cpp_exceptions)
    if (any()) {
      any_.store(false, std::memory_order_relaxed);
      std::rethrow_exception(std::exchange(what_, nullptr));
    }
#endif
  }

 private:
  std::atomic<bool> any_{false};
  std::exception_ptr what_;
};

/// Processors that this process may run on.
TIGON_TAGGED inline std::size_t processors() {
#if defined(__linux__)
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) == 0) return static_cast<std::size_t>(std::max(1, CPU_COUNT(&mine)));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

/// Tells the processor that this thread looks at memory in a loop.
TIGON_INLINE void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Starts start(0), ... start(count - 1), each on a thread that is added to `threads`. Throws std::system_error, in a
/// sentence of `who`, where one cannot be started; the caller then ends and joins those that are there.
template <class Start>
TIGON_TAGGED void start_threads([[maybe_unused]] const char* who, std::vector<std::thread>& threads, std::size_t count,
                                Start start) {
#if defined(__cpp_exceptions)
  try {
    if (count > threads.max_size())
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
#endif
    threads.reserve(count);  // from here on, only the start of a thread can fail
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back([start, i] { start(i); });
#if defined(__cpp_exceptions)
  } catch (const std::system_error& e) {
    throw std::system_error(e.code(), "tigon: " + std::string(who) + ": the system starts only " +
                                          std::to_string(threads.size()) + " of " + std::to_string(count) + " threads");
  }
#endif
}

}  // namespace detail

/// Threads of our own, started once. The calling thread works too, as worker 0. A run() that begins while another one
/// is under way, in one of its tasks or on another thread, executes its tasks on its caller, as worker 0 of its own.
///
/// Threads without work look for the next run() for some microseconds before they sleep; where there are more workers
/// than processors they sleep at once. A run() locks nothing, wakes at most as many threads as it has tasks,
/// and waits for those alone that have taken part.
class thread_pool {
 public:
  /// 0 is one worker. Throws std::system_error where the system does not start so many threads, std::bad_alloc where
  /// memory is short; those that had started have ended then.
  TIGON_TAGGED explicit thread_pool(std::size_t workers) : thread_pool() {  // whose destructor therefore runs
    if (workers <= 1) return;
    if (workers <= detail::processors()) spin_ = std::chrono::microseconds(30);
    detail::start_threads("thread_pool", threads_, workers - 1, [this](std::size_t i) { serve(i + 1); });
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  TIGON_TAGGED ~thread_pool() {
    stop_.store(true);
    round_.fetch_add(1);
    round_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  TIGON_INLINE std::size_t workers() const { return threads_.size() + 1; }

  TIGON_TAGGED void run(std::size_t tasks, task_ref fn) {
    if (tasks <= 1 || threads_.empty() || running_.exchange(true, std::memory_order_acquire)) return alone(tasks, fn);
    job now(fn, tasks);
    job_ = &now;
    left_.store(false, std::memory_order_relaxed);
    door_.store(open, std::memory_order_release);
    round_.fetch_add(1);
    wake(tasks - 1);
    take(now, 0);
    // Nobody else enters. If some are inside, the last of them says when it has left.
    if (door_.fetch_and(~open, std::memory_order_acq_rel) != open)
      if (!spin([this] { return !left_.load(std::memory_order_acquire); }))
        left_.wait(false, std::memory_order_acquire);
    running_.store(false, std::memory_order_release);
    now.failure.rethrow();
  }

 private:
  /// One run(), on the stack of its caller.
  struct alignas(64) job {
    const task_ref fn;
    const std::size_t tasks;
    alignas(64) std::atomic<std::size_t> next{0};
    detail::first_exception failure;

    TIGON_TAGGED job(task_ref f, std::size_t n) : fn(f), tasks(n) {}
    TIGON_TAGGED ~job() {}
  };
  /// Of door_: a thread may enter. The other bits count those that are inside, and may use the job.
  static constexpr std::uint32_t open = std::uint32_t{1} << 31;

  TIGON_TAGGED thread_pool() {}

  TIGON_TAGGED static void alone(std::size_t tasks, const task_ref& fn) {
    for (std::size_t task = 0; task < tasks; ++task) fn(task, 0);
  }
  TIGON_TAGGED static void take(job& now, std::size_t worker) {
    const task_ref fn = now.fn;
    const std::size_t tasks = now.tasks;
    const bool finished = now.failure.attempt([&] {
      for (std::size_t task; (task = now.next.fetch_add(1, std::memory_order_relaxed)) < tasks;) fn(task, worker);
    });
    if (!finished) now.next.store(tasks, std::memory_order_relaxed);  // no other task begins
  }

  /// Wakes sleepers, so that `wanted` threads come. A thread that is awake looks at round_ once more before it sleeps.
  TIGON_TAGGED void wake(std::size_t wanted) {
    const std::size_t asleep = sleepers_.load(), awake = threads_.size() - std::min(asleep, threads_.size());
    if (wanted <= awake) return;
    if (2 * (wanted - awake) >= asleep) return round_.notify_all();
    for (std::size_t i = awake; i < wanted; ++i) round_.notify_one();
  }

  /// Looks until waiting() is false, and returns true; false where that takes longer than it pays to look.
  template <class Waiting>
  TIGON_TAGGED TIGON_INLINE bool spin(Waiting waiting) const {
    using clock = std::chrono::steady_clock;
    for (const auto end = clock::now() + spin_;;) {
      for (int i = 0; i < 16; ++i, detail::pause())
        if (!waiting()) return true;
      if (clock::now() >= end) return false;
    }
  }

  TIGON_TAGGED void serve(std::size_t worker) {
    for (std::uint32_t seen = 0;;) {
      if (!spin([&] { return round_.load(std::memory_order_acquire) == seen; })) {
        sleepers_.fetch_add(1);
        round_.wait(seen);
        sleepers_.fetch_sub(1);
      }
      seen = round_.load();
      if (stop_.load()) return;
      std::uint32_t state = door_.load(std::memory_order_relaxed);
      while ((state & open) != 0 && !door_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) {
      }
      if ((state & open) == 0) continue;  // that run() is over
      take(*job_, worker);
      if (door_.fetch_sub(1, std::memory_order_acq_rel) == 1) {  // closed, and nobody is inside
        left_.store(true, std::memory_order_release);
        left_.notify_one();
      }
    }
  }

  std::vector<std::thread> threads_;
  std::chrono::nanoseconds spin_{0};
  job* job_ = nullptr;  ///< written while nobody may enter and nobody is inside
  std::atomic<bool> running_{false}, stop_{false};
  alignas(64) std::atomic<std::uint32_t> round_{0};  ///< number of the last run()
  alignas(64) std::atomic<std::uint32_t> door_{0};
  alignas(64) std::atomic<std::size_t> sleepers_{0};
  alignas(64) std::atomic<bool> left_{false};
};

#if defined(_OPENMP)
/// OpenMP's own threads; only where the program is compiled with OpenMP. In a parallel region, and so in a task of
/// another run(), they are as many as OpenMP's settings for nested regions allow: one, unless these are changed. Where
/// one cannot be started, OpenMP's runtime ends the program.
class openmp_executor {
 public:
  /// 0 is one worker; more than INT_MAX, which OpenMP cannot count, are INT_MAX.
  TIGON_TAGGED explicit openmp_executor(std::size_t workers = static_cast<std::size_t>(omp_get_max_threads()))
      : workers_(std::clamp<std::size_t>(workers, 1, INT_MAX)),
        processors_(static_cast<std::size_t>(std::max(1, omp_get_num_procs()))) {}
  TIGON_INLINE std::size_t workers() const { return workers_; }
  TIGON_TAGGED void run(std::size_t tasks, task_ref fn) const {
    // One size of team for all runs, because changing it ends and starts threads; no thousands for a few tasks.
    const int team = static_cast<int>(std::min(workers_, std::max(tasks, processors_)));
    detail::first_exception failure;  // none may leave the parallel region
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
    for (std::size_t task = 0; task < tasks; ++task)
      if (!failure.any()) failure.attempt([&] { fn(task, static_cast<std::size_t>(omp_get_thread_num())); });
    failure.rethrow();
  }

 private:
  std::size_t workers_, processors_;
};
#endif

}  // namespace tigon

#endif  // TIGON_CORE_EXECUTOR_HPP
