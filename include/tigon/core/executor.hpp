// Who runs tasks. A task is a number; the work behind it depends on shapes alone, never on who runs it.
#ifndef TIGON_CORE_EXECUTOR_HPP
#define TIGON_CORE_EXECUTOR_HPP

#include <tigon/config.hpp>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

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

/// What an executor is: `workers()` at most that many tasks at once, `run(tasks, fn)` calls fn(task, worker) once for
/// every task in [0, tasks), with worker in [0, workers()), no two calls at a time with one worker; returns when all
/// are done.
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

/// Runs every task on the calling thread.
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

/// Threads of our own, started once. The calling thread works too, as worker 0. One caller at a time.
class thread_pool {
 public:
  TIGON_TAGGED explicit thread_pool(std::size_t workers) {
    for (std::size_t worker = 1; worker < workers; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  TIGON_TAGGED ~thread_pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  TIGON_INLINE std::size_t workers() const { return threads_.size() + 1; }

  TIGON_TAGGED void run(std::size_t tasks, task_ref fn) {
    if (tasks <= 1 || threads_.empty()) {
      for (std::size_t task = 0; task < tasks; ++task) fn(task, 0);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      fn_ = &fn;
      tasks_ = tasks;
      next_.store(0, std::memory_order_relaxed);
      busy_ = threads_.size();
      ++round_;
    }
    wake_.notify_all();
    take(fn, tasks, 0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  TIGON_TAGGED void take(const task_ref& fn, std::size_t tasks, std::size_t worker) {
    for (std::size_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks;) fn(task, worker);
  }
  TIGON_TAGGED void serve(std::size_t worker) {
    std::size_t seen = 0;
    for (;;) {
      const task_ref* fn = nullptr;
      std::size_t tasks = 0;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || round_ != seen; });
        if (stop_) return;
        seen = round_;
        fn = fn_;
        tasks = tasks_;
      }
      take(*fn, tasks, worker);
      const std::lock_guard lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const task_ref* fn_ = nullptr;
  std::size_t tasks_ = 0, busy_ = 0, round_ = 0;
  std::atomic<std::size_t> next_{0};
  bool stop_ = false;
};

#if defined(_OPENMP)
/// OpenMP's own threads; only where the program is compiled with OpenMP.
class openmp_executor {
 public:
  TIGON_TAGGED explicit openmp_executor(std::size_t workers = static_cast<std::size_t>(omp_get_max_threads()))
      : workers_(workers) {}
  TIGON_INLINE std::size_t workers() const { return workers_; }
  TIGON_TAGGED void run(std::size_t tasks, task_ref fn) const {
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(workers_))
    for (std::ptrdiff_t task = 0; task < static_cast<std::ptrdiff_t>(tasks); ++task)
      fn(static_cast<std::size_t>(task), static_cast<std::size_t>(omp_get_thread_num()));
  }

 private:
  std::size_t workers_;
};
#endif

}  // namespace tigon

#endif  // TIGON_CORE_EXECUTOR_HPP
