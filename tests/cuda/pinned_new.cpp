// operator new of a program whose host memory a GPU reads and writes: pinned memory, in which vectors of tests are
// arguments of doors on backend cuda. One arena, since pinning takes long.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory_resource>
#include <new>

namespace {

constexpr std::size_t arena_bytes = std::size_t{2} << 30, header = 64;
thread_local bool starting = false;  // what CUDA takes while it starts is of malloc

std::pmr::memory_resource& arena() {
  static std::pmr::synchronized_pool_resource* const pool = [] {
    void* memory = nullptr;
    starting = true;
    if (cudaMallocHost(&memory, arena_bytes) != cudaSuccess) {
      std::fputs("pinned_new: no pinned memory\n", stderr);
      std::abort();
    }
    starting = false;
    // Neither is ever destroyed: deletes of static objects come last. Their own memory is of malloc.
    auto* const buffer = new (std::malloc(sizeof(std::pmr::monotonic_buffer_resource)))
        std::pmr::monotonic_buffer_resource(memory, arena_bytes, std::pmr::null_memory_resource());
    return new (std::malloc(sizeof(std::pmr::synchronized_pool_resource)))
        std::pmr::synchronized_pool_resource({0, std::size_t{64} << 20}, buffer);
  }();
  return *pool;
}
// Before what the program gets: the bytes of all, and where they begin. No bytes: they are of malloc.
struct taken {
  std::size_t bytes, before;
};
void* take(std::size_t bytes, std::size_t alignment) {
  const std::size_t before = alignment > header ? alignment : header, all = bytes + before;
  void* const p =
      starting ? std::aligned_alloc(before, (all + before - 1) / before * before) : arena().allocate(all, before);
  void* const user = static_cast<std::byte*>(p) + before;
  static_cast<taken*>(user)[-1] = {starting ? 0 : all, before};
  return user;
}
void give(void* p) {
  if (p == nullptr) return;
  const taken of = static_cast<taken*>(p)[-1];
  void* const memory = static_cast<std::byte*>(p) - of.before;
  if (of.bytes == 0)
    std::free(memory);
  else
    arena().deallocate(memory, of.bytes, of.before);
}

}  // namespace

void* operator new(std::size_t bytes) { return take(bytes, header); }
void* operator new(std::size_t bytes, std::align_val_t a) { return take(bytes, static_cast<std::size_t>(a)); }
void operator delete(void* p) noexcept { give(p); }
void operator delete(void* p, std::size_t) noexcept { give(p); }
void operator delete(void* p, std::align_val_t) noexcept { give(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give(p); }
