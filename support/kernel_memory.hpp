// Memory in which the kernels of the programs' backend work: the host's, or with backend cuda a GPU's. The host reads
// and writes the latter by copies alone, in the order of CUDA's default stream.
#ifndef EXAMPLE_SUPPORT_KERNEL_MEMORY_HPP
#define EXAMPLE_SUPPORT_KERNEL_MEMORY_HPP

#include <tigon/backend/select.hpp>
#include <tigon/core/context.hpp>

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>
#include <utility>
#include <vector>

#if defined(TIGON_DEVICE_CODE) || defined(TIGON_CUDA_MODEL)
#define EXAMPLE_ON_DEVICE
#endif

namespace example {

/// Whether the host reads what kernels write.
inline constexpr bool on_host = tigon::host_memory<tigon::default_backend>;

#if defined(EXAMPLE_ON_DEVICE)
namespace device {
inline void expect(cudaError_t error, const char* what) { tigon::gpu::expect_success(error, what); }
inline void* take(std::size_t bytes) {
  const tigon::memory_source source = tigon::gpu::memory(nullptr);
  void* const p = source.take(source.self, bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
inline void give(void* p) {
  if (p != nullptr) (void)cudaFreeAsync(p, nullptr);
}
inline void copy_in(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) expect(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, nullptr), "a copy to the device");
}
/// Waits for what is in the stream.
inline void copy_out(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  expect(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, nullptr), "a copy from the device");
  expect(cudaStreamSynchronize(nullptr), "the device reports");
}
inline void clear(void* p, std::size_t bytes) {
  if (bytes != 0) expect(cudaMemsetAsync(p, 0, bytes, nullptr), "memory of the device");
}
}  // namespace device

/// As std::vector, in the memory of the device. Its elements are the kernels' alone.
template <class T>
class device_vector {
 public:
  device_vector() = default;
  /// Zeros.
  explicit device_vector(std::size_t size) : data_(static_cast<T*>(device::take(size * sizeof(T)))), size_(size) {
    device::clear(data_, size * sizeof(T));
  }
  device_vector(device_vector&& other) noexcept { swap(other); }
  device_vector& operator=(device_vector&& other) noexcept {
    device_vector(std::move(other)).swap(*this);
    return *this;
  }
  ~device_vector() { device::give(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  void swap(device_vector& other) noexcept { std::swap(data_, other.data_), std::swap(size_, other.size_); }

  T* data_ = nullptr;
  std::size_t size_ = 0;
};
template <class T>
using kernel_vector = device_vector<T>;

inline tigon::workspace kernel_workspace() { return tigon::workspace(tigon::gpu::memory(nullptr)); }
inline tigon::device_queue kernel_queue() { return tigon::gpu::queue(nullptr); }

/// Puts values of the host where kernels read them.
template <class T>
void set_for_kernels(T* to, std::span<const T> from) {
  device::copy_in(to, from.data(), from.size_bytes());
}
/// A copy of what kernels wrote.
template <class T>
std::vector<T> copy_of(std::span<const T> from) {
  std::vector<T> to(from.size());
  device::copy_out(to.data(), from.data(), from.size_bytes());
  return to;
}
template <class T>
kernel_vector<T> for_kernels(const std::vector<T>& from) {
  kernel_vector<T> to(from.size());
  set_for_kernels(to.data(), std::span(from));
  return to;
}
/// What kernels wrote, as the host reads it; `copy` is where that has to be.
template <class T>
std::span<const T> for_host(const kernel_vector<T>& from, std::vector<T>& copy) {
  copy = copy_of(std::span<const T>(from));
  return copy;
}

/// Lists of the host, one after the other, where kernels read them.
template <class T>
class list_for_kernels {
 public:
  std::span<const T> of(std::span<const T> list) {
    if (list.size() > memory_.size()) memory_ = kernel_vector<T>(list.size());
    set_for_kernels(memory_.data(), list);
    return {memory_.data(), list.size()};
  }

 private:
  kernel_vector<T> memory_;
};
#else
template <class T>
using kernel_vector = std::vector<T>;

inline tigon::workspace kernel_workspace() { return tigon::workspace(); }
inline tigon::device_queue kernel_queue() { return {}; }

template <class T>
void set_for_kernels(T* to, std::span<const T> from) {
  std::copy(from.begin(), from.end(), to);
}
template <class T>
std::vector<T> copy_of(std::span<const T> from) {
  return {from.begin(), from.end()};
}
template <class T>
kernel_vector<T> for_kernels(std::vector<T> from) {
  return from;
}
template <class T>
std::span<const T> for_host(const kernel_vector<T>& from, std::vector<T>&) {
  return from;
}
template <class T>
struct list_for_kernels {
  std::span<const T> of(std::span<const T> list) { return list; }
};
#endif

/// Numbers that are f32 on the host and S where kernels read them.
template <tigon::element S>
kernel_vector<S> floats_for_kernels(std::vector<float> from) {
  if constexpr (std::same_as<S, float>)
    return for_kernels(std::move(from));
  else
    return for_kernels(std::vector<S>(from.begin(), from.end()));
}
/// `copy` is where they have to be.
template <tigon::element S>
std::span<const float> floats_for_host(const kernel_vector<S>& from, std::vector<float>& copy) {
  if constexpr (std::same_as<S, float>) {
    return for_host(from, copy);
  } else {
    const std::vector<S> of = copy_of(std::span<const S>(from));
    copy.assign(of.begin(), of.end());
    return copy;
  }
}

}  // namespace example
#endif
