#ifndef EXAMPLE_SUPPORT_MEMORY_HPP
#define EXAMPLE_SUPPORT_MEMORY_HPP

#include <unistd.h>
#include <tigon/core/views.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <utility>

#include "kernel_memory.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace example {

/// Refuses more than the machine has, as an allocation does. The system may give memory out that it does not have, and
/// end the program when it is used. A device refuses by itself.
inline void check_memory(double bytes) {
  if (!on_host) return;
  const double pages = static_cast<double>(sysconf(_SC_PHYS_PAGES)), page = static_cast<double>(sysconf(_SC_PAGESIZE));
  if (pages > 0 && bytes > pages * page) throw std::bad_alloc();
}

/// Large blocks lie on huge pages where the system has them, for either model alike.
struct block_delete {
  std::size_t alignment = 0;
  void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{alignment}); }
};
using memory_block = std::unique_ptr<std::byte, block_delete>;

inline memory_block allocate_block(std::size_t bytes) {
  constexpr std::size_t huge = std::size_t{2} << 20, line = 64;
  const std::size_t alignment = bytes >= huge ? huge : line;
  const std::size_t rounded = (std::max(bytes, line) + alignment - 1) / alignment * alignment;
  memory_block block(static_cast<std::byte*>(::operator new(rounded, std::align_val_t{alignment})), {alignment});
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (alignment == huge) (void)::madvise(block.get(), rounded, MADV_HUGEPAGE);
#endif
  return block;
}

inline void allocate(memory_block& to, std::size_t bytes) { to = allocate_block(bytes); }
inline std::byte* address(const memory_block& of) { return of.get(); }
#if defined(EXAMPLE_ON_DEVICE)
using kernel_block = kernel_vector<std::byte>;
inline void allocate(kernel_block& to, std::size_t bytes) { to = kernel_block(bytes); }
inline std::byte* address(kernel_block& of) { return of.data(); }
#else
using kernel_block = memory_block;
#endif

/// One block for kernels, given out from front to back. It is laid out twice: first without memory, to learn the size.
class arena {
 public:
  template <class T>
  T* take(std::size_t count) {
    const std::size_t at = used_;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    std::byte* const first = address(block_);
    return first != nullptr ? reinterpret_cast<T*>(first + at) : nullptr;
  }
  template <class T>
  tigon::matrix_view<T> matrix(std::size_t rows, std::size_t cols) {
    return {take<T>(rows * cols), rows, cols};
  }
  /// From byte `at` on, whether that is taken or not: for numbers that come when others are no longer needed.
  template <class T>
  T* take_at(std::size_t at, std::size_t count) {
    const std::size_t used = std::exchange(used_, at);
    T* const first = take<T>(count);
    used_ = std::max(used_, used);
    return first;
  }
  /// Allocates what has been taken and starts again from the front.
  void allocate() {
    example::allocate(block_, used_);
    used_ = 0;
  }
  /// Taken so far.
  std::size_t bytes() const { return used_; }

 private:
  kernel_block block_;
  std::size_t used_ = 0;
};

/// Blocks that are kept when they come back and given out again, as the allocators of frameworks do.
class memory_pool {
 public:
  memory_block take(std::size_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    const auto kept = kept_.find(bytes);
    if (kept == kept_.end()) return allocate_block(bytes);
    memory_block block = std::move(kept->second);
    kept_.erase(kept);
    return block;
  }
  void give_back(memory_block block, std::size_t bytes) {
    live_ -= bytes;
    kept_.emplace(bytes, std::move(block));
  }
  /// Most bytes in use at one time; blocks that are merely kept do not count.
  std::size_t peak() const { return peak_; }

 private:
  std::multimap<std::size_t, memory_block> kept_;
  std::size_t live_ = 0, peak_ = 0;
};

/// A matrix of its own in a pool, there as long as the object is.
template <class T>
class tensor {
 public:
  tensor() = default;
  tensor(memory_pool& pool, std::size_t rows, std::size_t cols)
      : pool_(&pool), rows_(rows), cols_(cols), block_(pool.take(bytes())) {}
  tensor(tensor&& other) noexcept { swap(other); }
  tensor& operator=(tensor&& other) noexcept {
    tensor(std::move(other)).swap(*this);
    return *this;
  }
  ~tensor() {
    if (block_) pool_->give_back(std::move(block_), bytes());
  }

  T* data() const { return reinterpret_cast<T*>(block_.get()); }
  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }
  tigon::matrix_view<T> view() const { return {data(), rows_, cols_}; }
  /// The same elements in rows of another width.
  tigon::matrix_view<T> view(std::size_t cols) const { return {data(), rows_ * cols_ / cols, cols}; }
  tigon::vector_view<T> vector() const { return {data(), rows_ * cols_}; }

 private:
  std::size_t bytes() const { return rows_ * cols_ * sizeof(T); }
  void swap(tensor& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(rows_, other.rows_);
    std::swap(cols_, other.cols_);
    std::swap(block_, other.block_);
  }

  memory_pool* pool_ = nullptr;
  std::size_t rows_ = 0, cols_ = 0;
  memory_block block_;
};

}  // namespace example
#endif
