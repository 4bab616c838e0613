// A GPU on a CPU: what the headers of backend cuda need of CUDA, for a C++ compiler. A kernel's blocks run one after
// the other, and of a block every thread of the GPU: as a fiber, which switches at barriers and shuffles, or, with
// TIGON_CUDA_MODEL_THREADS, as a thread of the system, so that ThreadSanitizer sees a barrier that is missing. A block
// whose threads wait for one that has left, or at different barriers, ends the program. To be included before any
// header of tigon.
#ifndef TIGON_TESTS_CUDA_MODEL_HPP
#define TIGON_TESTS_CUDA_MODEL_HPP

#define TIGON_CUDA_MODEL 1

#include <ucontext.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

struct alignas(8) uint2 {
  std::uint32_t x, y;
};
struct alignas(16) uint4 {
  std::uint32_t x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// Of CUDA's runtime.
enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation };
using cudaStream_t = void*;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "an error"; }
inline cudaError_t reported = cudaSuccess;  // what the device reports, set by a test

namespace cuda_model {
// What the host asked for: memory of the device, copies of it to the host, and that the device is done.
inline std::atomic<unsigned> allocations = 0, reads = 0, waits = 0;
}  // namespace cuda_model

inline cudaError_t cudaMallocAsync(void** p, std::size_t bytes, cudaStream_t) {
  ++cuda_model::allocations;
  *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
enum { cudaHostAllocPortable, cudaHostAllocMapped };
inline cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) { return cudaMallocAsync(p, bytes, nullptr); }
inline cudaError_t cudaFreeAsync(void* p, cudaStream_t) {
  std::free(p);
  return cudaSuccess;
}
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  if (kind == cudaMemcpyDeviceToHost) ++cuda_model::reads;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

namespace cuda_model {

/// Where a thread of the GPU is.
struct position {
  dim3 thread, block, block_size, grid_size;
  unsigned flat() const { return thread.x + block_size.x * (thread.y + block_size.y * thread.z); }
};

/// What a kernel is run without, to see that the model notices.
enum class lacking { nothing, barriers };
inline lacking without = lacking::nothing;
/// Called before and after a kernel: what the host may not touch is within reach between them.
inline void (*before_kernel)() = nullptr;
inline void (*after_kernel)() = nullptr;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "cuda_model: %s\n", what);
  std::abort();
}

#if defined(TIGON_CUDA_MODEL_THREADS)
inline thread_local position here;
class block {
 public:
  explicit block(unsigned threads) : threads_(threads), slots_(2 * threads), turn_(threads) {}
  // The threads of a mask of a warp, or with warp ~0u all, have come here.
  void meet(unsigned warp, unsigned mask) {
    std::barrier<>* barrier;
    {
      const std::lock_guard lock(mutex_);
      auto& at = barriers_[{warp, mask}];
      if (at == nullptr) at = std::make_unique<std::barrier<>>(warp == ~0u ? threads_ : __builtin_popcount(mask));
      barrier = at.get();
    }
    barrier->arrive_and_wait();
  }
  template <class Run>
  void run(Run run_thread) {
    std::vector<std::thread> all;
    for (unsigned t = 0; t < threads_; ++t) all.emplace_back([=] { run_thread(t); });
    for (std::thread& t : all) t.join();
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<unsigned, unsigned>, std::unique_ptr<std::barrier<>>> barriers_;

#else
inline position here;
class block {
 public:
  explicit block(unsigned threads) : threads_(threads), slots_(2 * threads), turn_(threads) {}
  void meet(unsigned warp, unsigned mask) {
    meeting& m = meetings_[{warp, mask}];
    m.waiting.push_back(now_);
    const unsigned all = warp == ~0u ? threads_ : static_cast<unsigned>(__builtin_popcount(mask));
    if (m.waiting.size() < all) return next();
    for (const unsigned t : m.waiting)
      if (t != now_) ready_.push_back(t);
    m.waiting.clear();
  }
  template <class Run>
  void run(Run run_thread) {
    constexpr std::size_t stack_bytes = std::size_t{256} << 10;
    static std::vector<std::unique_ptr<std::byte[]>> stacks;
    while (stacks.size() < threads_) stacks.emplace_back(new std::byte[stack_bytes]);
    fibers_.resize(threads_);
    body_ = [](void* p, unsigned t) { (*static_cast<Run*>(p))(t); };
    argument_ = &run_thread;
    for (unsigned t = 0; t < threads_; ++t) {
      getcontext(&fibers_[t].context);
      fibers_[t].context.uc_stack.ss_sp = stacks[t].get();
      fibers_[t].context.uc_stack.ss_size = stack_bytes;
      fibers_[t].context.uc_link = nullptr;
      current() = this;
      makecontext(&fibers_[t].context, reinterpret_cast<void (*)()>(&begin), 0);
      ready_.push_back(t);
    }
    left_ = threads_;
    now_ = ready_.front(), ready_.pop_front();
    swapcontext(&host_, &fibers_[now_].context);
  }

 private:
  struct fiber {
    ucontext_t context;
    position at;
  };
  struct meeting {
    std::vector<unsigned> waiting;
  };
  static block*& current() {
    static block* b = nullptr;
    return b;
  }
  static void begin() {
    block& b = *current();
    b.body_(b.argument_, b.now_);
    if (--b.left_ == 0) setcontext(&b.host_);
    b.next();
  }
  // The next fiber that can go on.
  void next() {
    if (ready_.empty()) fail("the threads of a block wait for one that does not come");
    fiber& from = fibers_[now_];
    from.at = here;
    now_ = ready_.front(), ready_.pop_front();
    here = fibers_[now_].at;
    swapcontext(&from.context, &fibers_[now_].context);
    here = fibers_[now_].at;
  }

  std::map<std::pair<unsigned, unsigned>, meeting> meetings_;
  std::vector<fiber> fibers_;
  std::deque<unsigned> ready_;
  ucontext_t host_;
  unsigned now_ = 0, left_ = 0;
  void (*body_)(void*, unsigned) = nullptr;
  void* argument_ = nullptr;
#endif

 public:
  /// v of the thread whose lane differs by `by`: two slots a thread, so that one is read while the other is written.
  template <class A>
  A shuffled(unsigned mask, A v, unsigned by) {
    static_assert(sizeof(A) <= sizeof(double));
    const unsigned me = here.flat(), lane = me % 32, turn = turn_[me]++ % 2;
    if ((mask >> lane & 1) == 0 || (mask >> (lane ^ by) & 1) == 0)
      fail("a shuffle names a lane that is not in its mask");
    std::memcpy(&slots_[2 * me + turn], &v, sizeof v);
    meet(me / 32, mask);
    A other;
    std::memcpy(&other, &slots_[2 * (me ^ by) + turn], sizeof other);
    return other;
  }
  void sync() {
    if (without != lacking::barriers) meet(~0u, ~0u);
  }
  /// Whether it is true of any thread.
  int sync_or(bool is) {
    meet(~0u, ~0u);
    const unsigned me = here.flat();
    if (me == 0) any_ = 0;
    meet(~0u, ~0u);
    if (is) any_ = 1;
    meet(~0u, ~0u);
    return any_;
  }

 private:
  unsigned threads_;
  std::vector<double> slots_;
  std::vector<unsigned> turn_;
  std::atomic<int> any_{0};
};
inline block* of_here = nullptr;
/// Held while a kernel runs.
inline std::mutex& busy() {
  static std::mutex one;
  return one;
}
/// A GPU runs blocks in any order; the model from the first or from the last.
inline bool last_block_first = false;
/// How often a host has waited for the device.

/// kernel<<<grid, threads, 0, stream>>>(argument...). One at a time, whatever thread of the system starts it.
template <class... Parameter, class... Argument>
void launch(cudaStream_t, void (*kernel)(Parameter...), dim3 grid, dim3 threads, Argument... argument) {
  const std::lock_guard lock(busy());
  if (before_kernel != nullptr) before_kernel();
  const unsigned n = threads.x * threads.y * threads.z;
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  if (n == 0 || n > 1024 || blocks == 0) fail("a launch of no blocks, or of blocks that no GPU has");
  for (std::size_t turn = 0; turn < blocks; ++turn) {
    const std::size_t at = last_block_first ? blocks - 1 - turn : turn;
    const dim3 place(static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y),
                     static_cast<unsigned>(at / grid.x / grid.y));
    block b(n);
    of_here = &b;
    b.run([=](unsigned t) {
      here = {dim3(t % threads.x, t / threads.x % threads.y, t / (threads.x * threads.y)), place, threads, grid};
      kernel(static_cast<Parameter>(argument)...);
    });
  }
  if (after_kernel != nullptr) after_kernel();
}

}  // namespace cuda_model

inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  ++cuda_model::waits;
  return reported;
}
#define threadIdx cuda_model::here.thread
#define blockIdx cuda_model::here.block
#define blockDim cuda_model::here.block_size
#define gridDim cuda_model::here.grid_size
inline void __syncthreads() { cuda_model::of_here->sync(); }
inline int __syncthreads_or(int is) { return cuda_model::of_here->sync_or(is != 0); }
template <class A>
A atomicAdd(A* p, A more) {
  return std::atomic_ref<A>(*p).fetch_add(more, std::memory_order_relaxed);
}
template <class A>
A __shfl_xor_sync(unsigned mask, A v, unsigned by) {
  return cuda_model::of_here->shuffled(mask, v, by);
}

#endif  // TIGON_TESTS_CUDA_MODEL_HPP
