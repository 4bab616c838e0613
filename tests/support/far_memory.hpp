// Views whose rows, heads or sequences lie further apart than 32 bits count: virtual memory of which only the pages
// that are touched exist.
#ifndef TIGON_TESTS_SUPPORT_FAR_MEMORY_HPP
#define TIGON_TESTS_SUPPORT_FAR_MEMORY_HPP

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <stdexcept>

#include "guarded.hpp"
#include "guarded_heads.hpp"
#include "problem.hpp"

namespace tigon::test {

/// Elements from row to row: neither 31 nor 32 bits hold it, nor does what they leave of it, 2^31 + 40, reach a row.
inline constexpr std::size_t far = (std::size_t{3} << 31) + 40;

/// Hands out views filled with normal values, and keeps them to compare. With rows apart, the views lie in one
/// another's gaps; 682 rows of f32 have room.
class far_memory {
 public:
  static constexpr std::size_t bytes = std::size_t{1} << 44;

  /// Rows apart, or with five elements between them.
  TIGON_TEST_NOINLINE explicit far_memory(bool apart) : apart_(apart) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    map_ = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  }
  far_memory(const far_memory&) = delete;
  TIGON_TEST_NOINLINE ~far_memory() {
    if (map_ != nullptr) ::munmap(map_, bytes);
  }
  /// False where the system does not map so much: a limit on address space, overcommit_memory 2, 39-bit addresses.
  bool mapped() const { return map_ != nullptr; }
  std::byte* begin() { return map_; }
  /// The first bytes as they are, zeros: few huge pages, where the system has them, in the place of millions.
  void of_zeros(std::size_t count) { ::madvise(map_, count, MADV_HUGEPAGE); }

  template <class T>
  TIGON_TEST_NOINLINE matrix_view<T> matrix(std::size_t rows, std::size_t cols) {
    const matrix_view<T> m(next<T>(), rows, cols, apart_ ? far : cols + 5);
    const std::vector<double> values = normal_values(rows * cols, views_);
    for (std::size_t i = 0; i < rows; ++i) {
      keep(m.row(i), cols);
      std::transform(values.begin() + i * cols, values.begin() + (i + 1) * cols, m.row(i), from_f64<T>);
    }
    return m;
  }
  template <class T>
  std::span<T> vector(std::size_t size) {
    return {matrix<T>(1, size).data, size};
  }
  /// Of tokens: the tokens are apart, of heads: the heads.
  template <class T>
  TIGON_TEST_NOINLINE heads_view<T> heads(heads_shape s) {
    const bool of_tokens = s.in == layout::tokens;
    const auto rows = matrix<T>(s.batch * (of_tokens ? s.seq_len : s.heads), (of_tokens ? s.heads : s.seq_len) * s.d);
    if (of_tokens)
      return {rows.data, s.batch, s.heads, s.seq_len, s.d, s.seq_len * rows.row_stride, s.d, rows.row_stride};
    return {rows.data, s.batch, s.heads, s.seq_len, s.d, s.heads * rows.row_stride, rows.row_stride, s.d};
  }

  /// The bits of all views, inputs too.
  TIGON_TEST_NOINLINE std::vector<std::byte> bits() const {
    std::vector<std::byte> out;
    for (const auto row : rows_) out.insert(out.end(), row.begin(), row.end());
    return out;
  }

 private:
  static constexpr std::size_t room = std::size_t{1} << 18;  // of a view, or of its row

  template <class T>
  T* next() {
    return reinterpret_cast<T*>(map_ + views_++ * room);
  }
  template <class T>
  void keep(T* row, std::size_t cols) {
    const auto all = std::as_writable_bytes(std::span(row, cols));
    const std::size_t end = static_cast<std::size_t>(all.data() - map_) + all.size();
    if (end > bytes || (end - 1) % (far * sizeof(T)) / room >= views_)
      throw std::logic_error("a view of this shape has no room");
    rows_.push_back(all);
  }

  bool apart_;
  std::byte* map_;
  std::size_t views_ = 0;
  std::vector<std::span<std::byte>> rows_;
};

/// f(memory) leaves the same bits with rows near one another and with rows apart.
template <class F>
void expect_same_bits_far_apart(F f) {
  far_memory near(false), apart(true);
  if (!near.mapped() || !apart.mapped()) GTEST_SKIP() << "the system does not map 2^44 bytes of address space";
  f(near), f(apart);
  ASSERT_FALSE(near.bits().empty());
  EXPECT_TRUE(near.bits() == apart.bits()) << "rows that are further apart than 2^32 elements change the result";
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_FAR_MEMORY_HPP
