// Threads and memory that run out at a chosen moment. Replaces pthread_create, operator new and operator delete of the
// program, so that one source file of it may include this.
#ifndef TIGON_TESTS_SUPPORT_SCARCITY_HPP
#define TIGON_TESTS_SUPPORT_SCARCITY_HPP

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <new>

// clang's thread sanitizer replaces operator new itself, for good.
#if defined(__clang__) && defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TIGON_TESTS_KEEP_NEW
#endif
#endif

namespace tigon::test {

#if defined(TIGON_TESTS_KEEP_NEW)
inline constexpr bool memory_can_run_out = false;
#else
inline constexpr bool memory_can_run_out = true;
#endif

inline constexpr long enough = std::numeric_limits<long>::max();
inline std::atomic<long> threads_left{enough};            ///< that can still be started
inline thread_local constinit long memory_left = enough;  ///< allocations of this thread that still succeed

/// Sets a number, and puts it back.
template <class Number>
class limited {
 public:
  limited(Number& number, long to) : number_(number) { number_ = to; }
  limited(const limited&) = delete;
  ~limited() { number_ = enough; }

 private:
  Number& number_;
};

/// Threads of this program.
inline std::size_t running_threads() {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ++n;
  return n;
}

/// Whether no more than `most` threads are left. Those that have been joined may take a moment to go.
inline bool threads_are_gone(std::size_t most) {
  for (int attempt = 0; attempt < 10000; ++attempt, usleep(1000))
    if (running_threads() <= most) return true;
  return false;
}

}  // namespace tigon::test

extern "C" {
// What a sanitizer puts in the place of pthread_create.
[[gnu::weak]] int __interceptor_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  if (tigon::test::threads_left.fetch_sub(1) <= 0) return EAGAIN;
  if (__interceptor_pthread_create != nullptr) return __interceptor_pthread_create(thread, attributes, start, argument);
  using function = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto next = reinterpret_cast<function>(dlsym(RTLD_NEXT, "pthread_create"));
  return next(thread, attributes, start, argument);
}
}

#if !defined(TIGON_TESTS_KEEP_NEW)
// Not inlined: compilers warn of a free() that they see beside another `new` expression.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* const p = tigon::test::memory_left-- > 0 ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif

#endif  // TIGON_TESTS_SUPPORT_SCARCITY_HPP
