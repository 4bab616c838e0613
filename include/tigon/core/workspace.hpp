// Scratch memory with a high-water mark.
#ifndef TIGON_CORE_WORKSPACE_HPP
#define TIGON_CORE_WORKSPACE_HPP

#include <tigon/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string_view>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tigon {

/// Memory for a workspace that is not of the heap: that of a device, or of another library. take(self, bytes) returns
/// null where there is no more; give(self, memory, bytes) is called with what take() returned, when the workspace ends
/// or grows. What a device still uses then is the business of give(): it may wait, or order the return behind the
/// device's work.
struct memory_source {
  void* (*take)(void* self, std::size_t bytes);
  void (*give)(void* self, void* memory, std::size_t bytes);
  void* self = nullptr;
};

/// A stack of scratch memory. An owning workspace grows at a public function, before the operator's first write, and
/// keeps what it has; one over the caller's bytes, which may begin at any address, never grows, and a public function
/// that needs more throws. Kernels take, never allocate. Sizes are counted by bytes_for(), in functions that tell them
/// beforehand, in used() and in high_water() alike.
class workspace {
 public:
  /// Alignment of everything that take() returns: a cache line, and the widest vector.
  static constexpr std::size_t alignment = 64;
  /// More than any memory has. Products of extents stop here, and sums of up to 200 such sizes do not wrap.
  static constexpr std::size_t most_bytes = std::size_t{1} << (sizeof(std::size_t) >= 8 ? 56 : 31);

  workspace() = default;
  TIGON_TAGGED explicit workspace(std::span<std::byte> fixed)
      : base_(fixed.data()), capacity_(std::min(fixed.size(), most_bytes - 1)), fixed_(true) {}
  /// Owning, with memory of this source instead of the heap's.
  TIGON_TAGGED explicit workspace(memory_source source) : source_(source) {}
  workspace(const workspace&) = delete;
  workspace& operator=(const workspace&) = delete;
  TIGON_TAGGED ~workspace() { release(); }

  /// The product of so many extents; most_bytes where it is larger than that.
  template <class... Extent>
  static constexpr TIGON_INLINE std::size_t product(Extent... extents) {
    const std::size_t all[] = {static_cast<std::size_t>(extents)...};
    std::size_t result = 1;
    bool none = false, over = false;
    for (const std::size_t n : all) {
      none = none || n == 0;
      over = __builtin_mul_overflow(result, n, &result) || over;
    }
    return none ? 0 : over ? most_bytes : std::min(result, std::size_t{most_bytes});
  }
  /// Bytes that an array of T takes here, of as many elements as the product of the extents: whole cache lines, and one
  /// more, in which the array finds its alignment wherever the memory begins. 0 for no elements; never above
  /// most_bytes, which expect() refuses.
  template <class T, class... Extent>
  static constexpr TIGON_INLINE std::size_t bytes_for(Extent... extents) {
    const std::size_t bytes = product(sizeof(T), extents...);
    return bytes == 0 ? 0
                      : std::min((bytes + alignment - 1) / alignment * alignment + alignment, std::size_t{most_bytes});
  }
  /// The same less that line, for an array that another one follows: the last one has the line for all.
  template <class T, class... Extent>
  static constexpr TIGON_INLINE std::size_t bytes_before(Extent... extents) {
    const std::size_t bytes = bytes_for<T>(extents...);
    return bytes == 0 || bytes == most_bytes ? bytes : bytes - alignment;
  }
  /// `count`, or the next number of T after which another array is aligned where the one before it is.
  template <class T>
  static constexpr TIGON_INLINE std::size_t padded(std::size_t count) {
    return (product(sizeof(T), count) + alignment - 1) / alignment * alignment / sizeof(T);
  }

  /// Makes `bytes` available above what is in use. Throws error_code::workspace where that is not possible: the
  /// caller's bytes are too few, or the system has no more. An owning workspace that finds no memory holds none then.
  TIGON_TAGGED void expect(std::string_view op, std::size_t bytes) {
    if (bytes <= capacity_ - used_) return;
    if (fixed_ || bytes >= most_bytes) fail(op, bytes);
    if (used_ != 0)
      detail::fail(error_code::state, "tigon: " + std::string(op) +
                                          ": workspace is in use and cannot grow; expected the outer operator to have "
                                          "asked for enough");
    release();
    if (!allocate(bytes)) fail(op, bytes);
  }

  TIGON_INLINE std::size_t capacity() const { return capacity_; }
  TIGON_INLINE std::size_t used() const { return used_; }
  /// Most bytes in use at one time since the last reset.
  TIGON_INLINE std::size_t high_water() const { return high_water_; }
  TIGON_INLINE void reset_high_water() { high_water_ = used_; }

  /// Takes memory and gives it back, in stack order.
  class frame {
   public:
    TIGON_INLINE explicit frame(workspace& ws) : ws_(ws), mark_(ws.used_) {}
    frame(const frame&) = delete;
    frame& operator=(const frame&) = delete;
    TIGON_INLINE ~frame() { ws_.used_ = mark_; }

    /// Uninitialised array of `count` T, aligned to `alignment`; the public function has reserved it with expect().
    template <class T>
    TIGON_TAGGED T* take(std::size_t count) {
      return take_bytes<T>(bytes_for<T>(count));
    }
    /// The same of bytes_before(): another array follows.
    template <class T>
    TIGON_TAGGED T* take_before(std::size_t count) {
      return take_bytes<T>(bytes_before<T>(count));
    }

   private:
    template <class T>
    TIGON_TAGGED T* take_bytes(std::size_t bytes) {
      if (bytes > ws_.capacity_ - ws_.used_) ws_.expect("workspace", bytes);
      std::byte* p = ws_.base_ + ws_.used_;
      if (bytes != 0) p += (alignment - reinterpret_cast<std::uintptr_t>(p) % alignment) % alignment;
      ws_.used_ += bytes;
      ws_.high_water_ = std::max(ws_.high_water_, ws_.used_);
      return reinterpret_cast<T*>(p);
    }

    workspace& ws_;
    std::size_t mark_;
  };

 private:
  /// Whether the system had so many.
  TIGON_TAGGED bool allocate(std::size_t bytes) {
    if (source_.take != nullptr) {
      base_ = static_cast<std::byte*>(source_.take(source_.self, bytes));
      capacity_ = base_ == nullptr ? 0 : bytes;
      return base_ != nullptr;
    }
    // Large scratch sits on huge pages where the system has them: a first touch is six times cheaper.
    const std::size_t huge = std::size_t{2} << 20;
    align_ = bytes >= huge ? huge : alignment;
    const std::size_t rounded = (bytes + align_ - 1) / align_ * align_;
    base_ = static_cast<std::byte*>(::operator new(rounded, std::align_val_t{align_}, std::nothrow));
    if (base_ == nullptr) return false;
    capacity_ = rounded;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (align_ == huge) (void)::madvise(base_, rounded, MADV_HUGEPAGE);
#endif
    return true;
  }
  [[noreturn]] TIGON_TAGGED void fail(std::string_view op, std::size_t bytes) const {
    detail::fail_argument(
        error_code::workspace, op, "workspace",
        "of " + std::to_string(capacity_ - used_) + " free bytes" + (fixed_ ? "" : ", and memory has no more"),
        std::to_string(bytes));
  }
  TIGON_TAGGED void release() {
    if (!fixed_ && base_ != nullptr && source_.give != nullptr)
      source_.give(source_.self, base_, capacity_);
    else if (!fixed_ && base_ != nullptr)
      ::operator delete(base_, std::align_val_t{align_});
    base_ = nullptr;
    capacity_ = 0;
  }

  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0, used_ = 0, high_water_ = 0, align_ = alignment;
  bool fixed_ = false;
  memory_source source_{};
};

}  // namespace tigon

#endif  // TIGON_CORE_WORKSPACE_HPP
