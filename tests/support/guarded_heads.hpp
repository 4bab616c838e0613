// Heads in guarded memory, in either layout and with padded strides; values go in and out as [batch, heads, seq_len,
// d].
#ifndef TIGON_TESTS_SUPPORT_GUARDED_HEADS_HPP
#define TIGON_TESTS_SUPPORT_GUARDED_HEADS_HPP

#include "guarded.hpp"

namespace tigon::test {

/// tokens: [batch, seq_len, heads, d], heads: [batch, heads, seq_len, d].
enum class layout { tokens, heads };

struct heads_shape {
  std::size_t batch, heads, seq_len, d;
  layout in = layout::tokens;
  std::size_t padding = 0;  ///< added to every stride
};

template <class T>
class guarded_heads {
 public:
  TIGON_TEST_NOINLINE explicit guarded_heads(heads_shape s, guard side = guard::behind)
      : view_(strides(s)), size_(count() == 0 ? 0 : offset(count() - 1) + 1), buffer_(size_, side) {
    view_.data = buffer_.data();
  }

  heads_view<T> view() { return view_; }
  operator heads_view<const T>() const { return view_; }
  std::size_t count() const { return view_.batch * view_.heads * view_.seq_len * view_.head_dim; }
  T& operator[](std::size_t value) { return buffer_[offset(value)]; }
  std::span<const std::byte> bytes() const { return buffer_.bytes(); }
  void clear() { buffer_.clear(); }
  bool untouched() const { return buffer_.untouched(); }
  TIGON_TEST_NOINLINE void assign(const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) (*this)[i] = from_f64<T>(values[i]);
  }
  TIGON_TEST_NOINLINE std::vector<double> f64() const {
    std::vector<double> out(count());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = to_f64(buffer_[offset(i)]);
    return out;
  }
  TIGON_TEST_NOINLINE bool padding_intact() const {
    std::vector<bool> owned(size_);
    for (std::size_t i = 0; i < count(); ++i) owned[offset(i)] = true;
    for (std::size_t i = 0; i < size_ * sizeof(T); ++i)
      if (!owned[i / sizeof(T)] && bytes()[i] != std::byte{canary<T>}) return false;
    return true;
  }

 private:
  static heads_view<T> strides(heads_shape s) {
    const std::size_t inner = s.d + s.padding;
    heads_view<T> out(nullptr, s.batch, s.heads, s.seq_len, s.d, 0, inner, inner);
    if (s.in == layout::tokens) {
      out.seq_stride = s.heads * inner + s.padding;
      out.batch_stride = s.seq_len * out.seq_stride;
    } else {
      out.head_stride = s.seq_len * inner + s.padding;
      out.batch_stride = s.heads * out.head_stride;
    }
    return out;
  }
  std::size_t offset(std::size_t value) const {
    const std::size_t row = value / view_.head_dim, head = row / view_.seq_len;
    return head / view_.heads * view_.batch_stride + head % view_.heads * view_.head_stride +
           row % view_.seq_len * view_.seq_stride + value % view_.head_dim;
  }

  heads_view<T> view_;
  std::size_t size_;
  guarded<T> buffer_;
};

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_GUARDED_HEADS_HPP
