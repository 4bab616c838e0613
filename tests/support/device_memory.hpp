// Memory of a device that a test plays: the host reaches it while it is filled and read, and where a kernel runs. With
// TIGON_TESTS_ON_GPU it is a GPU's.
#ifndef TIGON_TESTS_SUPPORT_DEVICE_MEMORY_HPP
#define TIGON_TESTS_SUPPORT_DEVICE_MEMORY_HPP

#if !defined(TIGON_TESTS_ON_GPU)
#include <sys/mman.h>
#endif

#include <cstddef>
#include <stdexcept>

namespace tigon::test {

class device_memory {
 public:
  static constexpr std::size_t bytes = std::size_t{64} << 20;

  static device_memory& instance() {
    static device_memory one;
    return one;
  }
  void* take(std::size_t n) {
    void* const p = base_ + used_;
    used_ += (n + 255) / 256 * 256;
    if (used_ > bytes) throw std::runtime_error("the test has no more memory of the device");
    return p;
  }
  /// What was taken last is free again.
  void give(void* p, std::size_t n) {
    if (static_cast<std::byte*>(p) + (n + 255) / 256 * 256 == base_ + used_) used_ -= (n + 255) / 256 * 256;
  }
  void clear() { used_ = 0; }
  bool reachable() const { return reachable_; }
#if defined(TIGON_TESTS_ON_GPU)
  void reachable(bool is) {
    reachable_ = is;
    if (is && !captures && cudaDeviceSynchronize() != cudaSuccess) throw std::runtime_error("the device has failed");
  }
  bool captures = false;  ///< a call is captured, and does nothing yet

 private:
  device_memory() {
    if (cudaMallocManaged(reinterpret_cast<void**>(&base_), bytes) != cudaSuccess)
      throw std::runtime_error("the device has no memory");
  }
#else
  void reachable(bool is) {
    reachable_ = is;
    mprotect(base_, bytes, is ? PROT_READ | PROT_WRITE : PROT_NONE);
  }

 private:
  device_memory()
      : base_(
            static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
  }
#endif
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
  bool reachable_ = true;
};

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_DEVICE_MEMORY_HPP
