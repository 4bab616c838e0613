// Buffers that end, or begin, exactly at a page that may not be touched, and that know whether they were written.
#ifndef TIGON_TESTS_SUPPORT_GUARDED_HPP
#define TIGON_TESTS_SUPPORT_GUARDED_HPP

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <new>
#include <ostream>
#include <span>
#include <tigon/core/views.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace tigon::test {

// Helpers are not inlined: tests call them a thousand times over, and inlining them doubles the time to compile a test.
#define TIGON_TEST_NOINLINE [[gnu::noinline]]

/// Where the forbidden page lies: right behind the last element, or right before the first.
enum class guard { behind, before };
inline constexpr guard both_guards[] = {guard::behind, guard::before};
inline std::ostream& operator<<(std::ostream& out, guard side) {
  return out << (side == guard::behind ? "guard behind" : "guard before");
}

/// What memory holds before anybody writes it: NaN in every floating type, so that reading an output, a padding
/// element or a forgotten result shows in the numbers; an unlikely whole number in integers.
template <class T>
inline constexpr int canary = std::is_integral_v<T> ? 0x5a : 0xff;

template <class T>
double to_f64(T value) {
  if constexpr (element<T>)
    return static_cast<double>(static_cast<accumulator_t<T>>(value));
  else
    return static_cast<double>(value);
}

/// Rounds once to nearest even (the 16-bit types by way of f32: draws are rounded before they are compared).
template <class T>
T from_f64(double value) {
  if constexpr (element<T>)
    return static_cast<T>(static_cast<accumulator_t<T>>(value));
  else
    return static_cast<T>(static_cast<std::int64_t>(value));
}

/// `size` elements at the guard page, filled with the canary. A contiguous range, so it passes as a parameter.
template <class T>
class guarded {
 public:
  TIGON_TEST_NOINLINE explicit guarded(std::size_t size, guard side = guard::behind) : size_(size) {
    const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t body = (size * sizeof(T) + page - 1) / page * page;
    mapped_ = body + 2 * page;  // one forbidden page on either side; the data touch one of them
    void* memory = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    map_ = static_cast<std::byte*>(memory);
    ::mprotect(map_, page, PROT_NONE);
    ::mprotect(map_ + page + body, page, PROT_NONE);
    std::byte* first = side == guard::before ? map_ + page : map_ + page + body - size * sizeof(T);
    data_ = reinterpret_cast<T*>(first);
    clear();
  }
  guarded(std::initializer_list<double> values, guard side = guard::behind) : guarded(values.size(), side) {
    assign(std::vector<double>(values));
  }
  guarded(guarded&& other) noexcept
      : map_(std::exchange(other.map_, nullptr)), mapped_(other.mapped_), data_(other.data_), size_(other.size_) {}
  guarded& operator=(guarded&&) = delete;
  TIGON_TEST_NOINLINE ~guarded() {
    if (map_ != nullptr) ::munmap(map_, mapped_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(data_, size_)); }

  void clear() {
    if (size_ != 0) std::memset(static_cast<void*>(data_), canary<T>, size_ * sizeof(T));
  }
  TIGON_TEST_NOINLINE bool untouched() const {
    return std::ranges::all_of(bytes(), [](std::byte b) { return b == std::byte{canary<T>}; });
  }
  TIGON_TEST_NOINLINE void assign(const std::vector<double>& values) {
    std::ranges::transform(values, data_, from_f64<T>);
  }
  TIGON_TEST_NOINLINE std::vector<double> f64() const {
    std::vector<double> out(size_);
    std::ranges::transform(*this, out.begin(), to_f64<T>);
    return out;
  }

 private:
  std::byte* map_;
  std::size_t mapped_;
  T* data_;
  std::size_t size_;
};

/// A guarded matrix. The last row has no padding: it ends at the guard page, as the last row of a sub-matrix may.
template <class T>
class guarded_matrix {
 public:
  TIGON_TEST_NOINLINE guarded_matrix(std::size_t rows, std::size_t cols, std::size_t padding = 0,
                                     guard side = guard::behind)
      : rows_(rows), cols_(cols), stride_(cols + padding), buffer_(rows == 0 ? 0 : (rows - 1) * stride_ + cols, side) {}

  std::size_t rows() const { return rows_; }
  std::size_t cols() const { return cols_; }
  matrix_view<T> view() { return {buffer_.data(), rows_, cols_, stride_}; }
  matrix_view<const T> view() const { return {buffer_.data(), rows_, cols_, stride_}; }
  operator matrix_view<const T>() const { return view(); }
  T& operator()(std::size_t i, std::size_t j) { return buffer_[i * stride_ + j]; }
  const T& operator()(std::size_t i, std::size_t j) const { return buffer_[i * stride_ + j]; }
  std::span<const std::byte> bytes() const { return buffer_.bytes(); }

  void clear() { buffer_.clear(); }
  bool untouched() const { return buffer_.untouched(); }
  TIGON_TEST_NOINLINE bool padding_intact() const {
    for (std::size_t i = 0; i + 1 < rows_; ++i)
      for (const std::byte b : bytes().subspan((i * stride_ + cols_) * sizeof(T), (stride_ - cols_) * sizeof(T)))
        if (b != std::byte{canary<T>}) return false;
    return true;
  }
  /// Row-major values without padding.
  TIGON_TEST_NOINLINE void assign(const std::vector<double>& values) {
    for (std::size_t k = 0; k < values.size(); ++k) (*this)(k / cols_, k % cols_) = from_f64<T>(values[k]);
  }
  TIGON_TEST_NOINLINE std::vector<double> f64() const {
    std::vector<double> out(rows_ * cols_);
    for (std::size_t k = 0; k < out.size(); ++k) out[k] = to_f64((*this)(k / cols_, k % cols_));
    return out;
  }

 private:
  std::size_t rows_, cols_, stride_;
  guarded<T> buffer_;
};

/// The bits of several buffers, one behind the other.
template <class... Buffers>
TIGON_TEST_NOINLINE std::vector<std::byte> bits_of(const Buffers&... buffers) {
  std::vector<std::byte> out;
  (out.insert(out.end(), buffers.bytes().begin(), buffers.bytes().end()), ...);
  return out;
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_GUARDED_HPP
