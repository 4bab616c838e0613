// The arguments of a public function, declared once: which pairs of them may not overlap follows from the declarations.
//
//   arguments args("rms_norm_backward");
//   args.at_least_one("cols", x.cols);
//   args.in("x", x);                                            // a matrix of any shape, with memory behind it
//   args.in("dy", dy, x.rows, x.cols);                          // a matrix of this shape
//   args.optional_in("w", weight, x.cols);                      // a vector of this size, or absent
//   args.in("rstd", rstd, x.rows);
//   args.out("dx", dx, x.rows, x.cols).may_be("dy", "x");       // works in place on either
//   args.out("dw", dweight, weight.size);
//   args.finite<accumulator_t<T>>("offset", opt.offset);
//   args.check();
//
// A declaration checks shape, stride and memory at once and throws; check() then takes every output with every other
// argument. The two share no element, unless may_be() allows the output to be that argument: then both have the same
// elements at the same indices, or share none. Inputs may overlap one another. An argument that is absent, or has no
// elements, overlaps nothing. Inputs may have strides of 0, outputs may not. So shape errors come before alias errors,
// and both before the first write.
//
// may_be() takes names that were declared before, so inputs come first; any other name throws in every call. Of two
// outputs the error names the later one first. Names are kept by reference until check() has returned.
#ifndef TIGON_CORE_ARGUMENTS_HPP
#define TIGON_CORE_ARGUMENTS_HPP

#include <tigon/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tigon {
namespace detail {
inline namespace TIGON_ABI {

/// A contiguous range without its element type.
struct vector_extent {
  const void* data;
  std::size_t size, element;

  template <class T>
  vector_extent(vector_view<T> v) : data(v.data), size(v.size), element(sizeof(T)) {}
  template <class T, std::size_t N>
  vector_extent(std::span<T, N> v) : data(v.data()), size(v.size()), element(sizeof(T)) {}
};

struct heads_shape {
  std::size_t batch, heads, seq_len, head_dim;
};

/// A declared argument. Its bytes are in [begin, end); nothing overlaps begin == end == 0. Plain members, so that those
/// which are not declared cost nothing.
struct argument {
  const void* data;
  std::size_t batch, heads, rows, cols, batch_stride, head_stride, row_stride, element;  // of a matrix: without heads
  std::uintptr_t begin, end;
  const char* name;
  std::size_t name_size;
  std::uint32_t may_be;  // bit k: argument k
  bool is_output, is_heads;

  std::string_view name_view() const { return {name, name_size}; }
  heads_extent view() const {
    const auto* bytes = static_cast<const char*>(data);
    heads_extent v(is_heads
                       ? heads_view<const char>(bytes, batch, heads, rows, cols, batch_stride, head_stride, row_stride)
                       : heads_view<const char>(bytes, 1, 1, rows, cols, 0, 0, row_stride));
    v.element = element;
    return v;
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

inline namespace TIGON_ABI {

/// The arguments of a public function: declarations of those in memory, and the checks of `expects` for the others.
/// Costs nothing when TIGON_CHECKS is 0.
class arguments : public expects {
 public:
  static constexpr std::size_t most = 28;

  explicit arguments(std::string_view op) : expects(op) {}
  arguments(const arguments&) = delete;
  arguments& operator=(const arguments&) = delete;

  /// A matrix of any shape: a row stride no smaller than its width, or 0 in an input, and memory behind its elements.
  arguments& in(std::string_view name, const detail::extent& m) { return add(false, name, m, m.rows, m.cols); }
  arguments& out(std::string_view name, const detail::extent& m) { return add(true, name, m, m.rows, m.cols); }

  /// A matrix of rows x cols elements.
  arguments& in(std::string_view name, const detail::extent& m, std::size_t rows, std::size_t cols) {
    return add(false, name, m, rows, cols);
  }
  arguments& out(std::string_view name, const detail::extent& m, std::size_t rows, std::size_t cols) {
    return add(true, name, m, rows, cols);
  }
  /// The same, or a null pointer of any shape.
  arguments& optional_in(std::string_view name, const detail::extent& m, std::size_t rows, std::size_t cols) {
    return m.data != nullptr ? add(false, name, m, rows, cols) : absent(false, name);
  }
  arguments& optional_out(std::string_view name, const detail::extent& m, std::size_t rows, std::size_t cols) {
    return m.data != nullptr ? add(true, name, m, rows, cols) : absent(true, name);
  }

  /// A vector or span of any size.
  arguments& in(std::string_view name, const detail::vector_extent& v) { return add(false, name, v, v.size); }
  arguments& out(std::string_view name, const detail::vector_extent& v) { return add(true, name, v, v.size); }

  /// A vector or span of `size` elements.
  arguments& in(std::string_view name, const detail::vector_extent& v, std::size_t size) {
    return add(false, name, v, size);
  }
  arguments& out(std::string_view name, const detail::vector_extent& v, std::size_t size) {
    return add(true, name, v, size);
  }
  /// The same, or a null pointer.
  arguments& optional_in(std::string_view name, const detail::vector_extent& v, std::size_t size) {
    return v.data != nullptr ? add(false, name, v, size) : absent(false, name);
  }
  arguments& optional_out(std::string_view name, const detail::vector_extent& v, std::size_t size) {
    return v.data != nullptr ? add(true, name, v, size) : absent(true, name);
  }

  /// Heads of this shape, no two elements of which share an address but along an input's axes of stride 0.
  arguments& in(std::string_view name, const detail::heads_extent& h, const detail::heads_shape& shape) {
    return add(false, name, h, shape);
  }
  arguments& out(std::string_view name, const detail::heads_extent& h, const detail::heads_shape& shape) {
    return add(true, name, h, shape);
  }

  /// The output that was declared last may have the elements of these arguments, which have its shape.
  arguments& may_be(std::string_view a) { return allow(a); }
  arguments& may_be(std::string_view a, std::string_view b) { return allow(a).allow(b); }
  arguments& may_be(std::string_view a, std::string_view b, std::string_view c) { return allow(a).allow(b).allow(c); }

#if TIGON_CHECKS
  /// Every output against every other argument.
  TIGON_NOINLINE void check() const {
    for (std::size_t k = 0; k < count_; ++k) {
      const detail::argument& output = arguments_[k];
      if (!output.is_output) continue;
      for (std::size_t j = 0; j < count_; ++j) {
        const detail::argument& other = arguments_[j];
        if (output.begin >= other.end || other.begin >= output.end) continue;
        if (j < k || (j > k && !other.is_output)) check_pair(output, other, output.may_be >> j & 1);
      }
    }
  }

 private:
  static view_use use_of(bool is_output) { return is_output ? view_use::written : view_use::read; }

  TIGON_NOINLINE arguments& add(bool is_output, std::string_view name, const detail::extent& m, std::size_t rows,
                                std::size_t cols) {
    if (m.rows != rows || m.cols != cols || m.row_stride < cols || m.data == nullptr)
      matrix(name, m, rows, cols, use_of(is_output));
    return keep(is_output, name, m.data, m.rows, m.cols, m.row_stride, m.element);
  }

  TIGON_NOINLINE arguments& add(bool is_output, std::string_view name, const detail::vector_extent& v,
                                std::size_t expected) {
    if (v.size != expected) size(name, v.size, expected);
    return keep(is_output, name, v.data, 1, v.size, v.size, v.element);
  }

  TIGON_NOINLINE arguments& add(bool is_output, std::string_view name, const detail::heads_extent& h,
                                const detail::heads_shape& shape) {
    heads(name, h, shape.batch, shape.heads, shape.seq_len, shape.head_dim, use_of(is_output));
    detail::argument& a = next(is_output, name);
    if (h.empty()) return *this;
    const std::uint64_t bytes = detail::byte_layout(h).size;
    a.data = h.data, a.element = h.element, a.is_heads = true;
    a.batch = h.batch, a.heads = h.heads, a.rows = h.seq_len, a.cols = h.head_dim;
    a.batch_stride = h.batch_stride, a.head_stride = h.head_stride, a.row_stride = h.seq_stride;
    a.begin = bytes < detail::most_bytes ? reinterpret_cast<std::uintptr_t>(h.data) : 0;
    a.end = bytes < detail::most_bytes ? a.begin + bytes : ~std::uintptr_t{0};
    return *this;
  }

  /// Where a size could make the end pass 64 bits, the exact test decides each pair.
  TIGON_INLINE arguments& keep(bool is_output, std::string_view name, const void* data, std::size_t rows,
                               std::size_t cols, std::size_t row_stride, std::size_t element) {
    detail::argument& a = next(is_output, name);
    if (rows == 0 || cols == 0) return *this;
    const bool exact = (rows | row_stride | cols) >> 30 == 0;
    a.data = data, a.rows = rows, a.cols = cols, a.row_stride = row_stride, a.element = element;
    a.begin = exact ? reinterpret_cast<std::uintptr_t>(data) : 0;
    a.end = exact ? a.begin + ((rows - 1) * row_stride + cols) * element : ~std::uintptr_t{0};
    return *this;
  }

  TIGON_NOINLINE arguments& absent(bool is_output, std::string_view name) {
    next(is_output, name);
    return *this;
  }

  TIGON_INLINE detail::argument& next(bool is_output, std::string_view name) {
    if (count_ == most) that(false, error_code::state, name, "one argument too many", "at most 28");
    detail::argument& a = arguments_[count_++];
    a.name = name.data(), a.name_size = name.size();
    a.begin = a.end = 0, a.may_be = 0;
    a.is_output = is_output, a.is_heads = false;
    return a;
  }

  /// Equal literals of one function have one address, as a rule.
  TIGON_NOINLINE arguments& allow(std::string_view name) {
    std::size_t k = 0;
    while (k + 1 < count_ && (arguments_[k].name != name.data() || arguments_[k].name_size != name.size())) ++k;
    if (k + 1 >= count_)
      for (k = 0; k + 1 < count_ && arguments_[k].name_view() != name;) ++k;
    if (k + 1 >= count_ || !arguments_[count_ - 1].is_output)
      that(false, error_code::state, name, "in may_be", "the name of an argument that was declared before an output");
    arguments_[count_ - 1].may_be |= std::uint32_t{1} << k;
    return *this;
  }

  TIGON_NOINLINE void check_pair(const detail::argument& a, const detail::argument& b, bool may_be) const {
    const detail::heads_extent in_a = a.view(), in_b = b.view();
    if (may_be && a.is_heads && b.is_heads) return same_or_disjoint(a.name_view(), in_a, b.name_view(), in_b);
    if (may_be && same_elements(in_a, in_b)) return;
    if (overlap(in_a, in_b))
      fail_alias(a.name_view(), b.name_view(), may_be ? "the same buffer or no common memory" : "no common memory");
  }

  std::size_t count_ = 0;
  detail::argument arguments_[most];  // those from count_ on are not initialised
#else
  void check() const {}

 private:
  template <class View, class... Sizes>
  arguments& add(bool, std::string_view, const View&, Sizes...) {
    return *this;
  }
  arguments& absent(bool, std::string_view) { return *this; }
  arguments& allow(std::string_view) { return *this; }
#endif
};

}  // namespace TIGON_ABI
}  // namespace tigon

#endif  // TIGON_CORE_ARGUMENTS_HPP
