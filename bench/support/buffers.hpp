// Preallocated, once-touched memory that is handed out again and again. A fresh page costs more than any kernel, so
// nothing that is timed may meet one; and an op and its limit run on the same physical pages, one after the other.
#ifndef TIGON_BENCH_SUPPORT_BUFFERS_HPP
#define TIGON_BENCH_SUPPORT_BUFFERS_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

namespace tigon_bench {

/// Blocks on huge pages, all aligned to 2 MiB: arrays that are streamed together then agree in their low address
/// bits, which keeps a load from waiting for an unrelated store that only looks like its own (4 KiB aliasing).
void* acquire_block(std::size_t bytes);
void release_block(void* block) noexcept;

/// From now on every block is zeros when it is handed out, so that its contents depend on its user alone.
void clear_blocks_first();
/// Of the contents of all blocks in use; their order does not matter.
std::uint64_t digest_of_blocks();

/// Bytes that all blocks together may take from now on; to ask for more is `unsupported`. Free blocks give way first.
void limit_memory(std::size_t bytes);

/// For the life of this object, buffers are zeros that nobody touches and fills do nothing: what a case would take can
/// be asked without its time and its memory. Buffers that are made meanwhile have to end before it; one that goes
/// beyond the limit is std::bad_alloc.
class counting_scope {
 public:
  counting_scope();
  counting_scope(const counting_scope&) = delete;
  counting_scope& operator=(const counting_scope&) = delete;
  ~counting_scope();
  std::size_t peak_bytes() const;
};
bool counting();

/// Shared handle on `size()` elements, contents left over from the last user.
template <class T>
class buffer {
 public:
  buffer() = default;
  explicit buffer(std::size_t count)
      : data_(static_cast<T*>(acquire_block(count * sizeof(T))), [](T* p) { release_block(p); }), size_(count) {
    static_assert(std::is_trivially_copyable_v<T>);
  }

  T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  std::span<T> span() const { return {data(), size_}; }
  T& operator[](std::size_t i) const { return data_.get()[i]; }
  /// A parameter as the doors expect it.
  T* begin() const { return data(); }
  T* end() const { return data() + size_; }

 private:
  std::shared_ptr<T> data_;
  std::size_t size_ = 0;
};

/// Uniform in [low, high), the same for the same seed. A linear congruence is enough: only the range matters here.
template <class T>
void fill_uniform(std::span<T> values, double low, double high, std::uint64_t seed) {
  if (counting()) return;
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  const auto scale = static_cast<float>((high - low) * 0x1p-24);
  for (T& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<T>(static_cast<float>(low) + scale * static_cast<float>(state >> 40));
  }
}

template <class T>
buffer<T> uniform(std::size_t count, double low, double high, std::uint64_t seed) {
  buffer<T> b(count);
  fill_uniform(b.span(), low, high, seed);
  return b;
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_BUFFERS_HPP
