// Arrays of other libraries, given by a pointer, extents and strides, as views. Nothing is copied.
//
// This is what interop/dlpack.hpp, interop/mdspan.hpp and a C interface have in common. The words:
//   axis      a dimension of the array, counted from 0; the last one is the innermost
//   extent    its length
//   stride    the distance of neighbours along it, in elements; that of an axis of one element is not read
#ifndef TIGON_INTEROP_STRIDED_HPP
#define TIGON_INTEROP_STRIDED_HPP

#include <tigon/core/error.hpp>
#include <tigon/core/views.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace tigon::interop {

/// Which axes of an array are the heads of attention. An array of three axes is one sequence, without `batch`.
enum class heads_axes {
  heads_first,   ///< [batch, heads, seq_len, head_dim], as PyTorch's attention has them
  tokens_first,  ///< [batch, seq_len, heads, head_dim], as a projection leaves them
};

/// An array of elements of type T, with any number of axes. strides == nullptr: no gaps, the last axis innermost.
template <class T>
struct strided_array {
  T* data = nullptr;
  std::size_t rank = 0;
  const std::int64_t* shape = nullptr;
  const std::int64_t* strides = nullptr;
};

/// Who asks, for errors: a function, and what it calls the array.
struct array_names {
  std::string_view function, array = "array";
};

}  // namespace tigon::interop

namespace tigon::interop_detail {
inline namespace TIGON_ABI {

using interop::array_names;
using interop::heads_axes;

/// An array without its element type, so that its checks are compiled once.
struct axes {
  const void* data;
  std::size_t element, alignment, rank;
  const std::int64_t* shape;
  const std::int64_t* strides;
  array_names names;
  bool read_only;

  [[noreturn]] TIGON_NOINLINE void refuse(error_code code, const std::string& came, const std::string& expected) const {
    detail::fail_argument(code, names.function, names.array, came, expected);
  }
  TIGON_NOINLINE std::string shape_text() const {
    std::string text = "[";
    for (std::size_t k = 0; k < rank; ++k) text += (k == 0 ? "" : ", ") + std::to_string(shape[k]);
    return text + "]";
  }
  [[noreturn]] TIGON_NOINLINE void refuse_stride(std::size_t axis, const std::string& expected) const {
    refuse(error_code::stride, "of stride " + std::to_string(stride(axis)) + " along axis " + std::to_string(axis),
           expected);
  }

  static constexpr std::size_t most = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

  std::size_t extent(std::size_t axis) const { return static_cast<std::size_t>(shape[axis]); }

  /// The product of the extents of axes [first, end). Their elements have to fit into memory.
  TIGON_NOINLINE std::size_t product(std::size_t first, std::size_t end) const {
    std::size_t n = 1;
    for (std::size_t k = first; k < end; ++k)
      if (shape[k] == 0) return 0;
    for (std::size_t k = first; k < end; ++k)
      if (__builtin_mul_overflow(n, extent(k), &n) || n > most / element)
        refuse(error_code::shape, "of shape " + shape_text(), "no more elements than memory has");
    return n;
  }

  std::int64_t stride(std::size_t axis) const {
    if (strides != nullptr) return strides[axis];
    std::int64_t n = 1;
    for (std::size_t k = axis + 1; k < rank; ++k) n *= shape[k];
    return n;
  }

  /// A stride that a view can hold: from 0 on, and its axis ends where an address still exists.
  TIGON_NOINLINE std::size_t outer_stride(std::size_t axis) const {
    const std::int64_t s = stride(axis);
    if (s < 0) refuse_stride(axis, "at least 0: no view goes backwards; copy the array");
    std::size_t reach;
    if (__builtin_mul_overflow(static_cast<std::size_t>(s), extent(axis) - 1, &reach) || reach > most / element)
      refuse_stride(axis, "no more elements than memory has");
    return static_cast<std::size_t>(s);
  }

  /// Extents, and memory behind them. Returns the number of elements.
  TIGON_NOINLINE std::size_t check() const {
    if (rank != 0 && shape == nullptr) refuse(error_code::shape, "without a shape", "an extent for every axis");
    for (std::size_t k = 0; k < rank; ++k)
      if (shape[k] < 0) refuse(error_code::shape, "of shape " + shape_text(), "extents of at least 0");
    const std::size_t n = product(0, rank);
    if (n == 0) return 0;
    if (data == nullptr) refuse(error_code::shape, "a null pointer", "elements of shape " + shape_text());
    if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0)
      refuse(error_code::argument, "at an address that is no multiple of " + std::to_string(alignment),
             "elements that are aligned for their type; copy the array");
    return n;
  }

  /// The innermost axis has no gaps.
  void expect_adjacent() const {
    if (shape[rank - 1] > 1 && stride(rank - 1) != 1)
      refuse_stride(rank - 1, "1: the elements of a row are adjacent; copy the array");
  }
};

/// The elements of all axes, without gaps.
TIGON_NOINLINE inline std::size_t size_of(const axes& a) {
  const std::size_t n = a.check();
  std::int64_t next = 1;
  for (std::size_t k = a.rank; n != 0 && k-- > 0;) {
    if (a.shape[k] == 1) continue;
    if (a.stride(k) != next) a.refuse_stride(k, std::to_string(next) + ": elements without gaps; copy the array");
    next *= a.shape[k];
  }
  return n;
}

struct matrix_extents {
  std::size_t rows, cols, row_stride;
};

/// The last axis is the columns; the others are rows, at one distance from each other. That is 0 where all rows are
/// one.
TIGON_NOINLINE inline matrix_extents matrix_of(const axes& a) {
  if (a.rank < 2)
    a.refuse(error_code::shape, "of rank " + std::to_string(a.rank), "at least 2: rows and, innermost, columns");
  const std::size_t n = a.check();
  matrix_extents m{a.product(0, a.rank - 1), a.extent(a.rank - 1), 0};
  m.row_stride = m.cols;
  if (n == 0) return m;
  a.expect_adjacent();
  std::size_t rows = 1;
  for (std::size_t k = a.rank - 1; k-- > 0;) {
    if (a.shape[k] == 1) continue;
    const std::size_t s = a.outer_stride(k);
    if (rows == 1) {
      if (s < m.cols && !(s == 0 && a.read_only))
        a.refuse_stride(k, "at least its " + std::to_string(m.cols) + " columns; copy the array");
      m.row_stride = s;
    } else if (std::size_t next; __builtin_mul_overflow(m.row_stride, rows, &next) || s != next) {
      a.refuse_stride(k, std::to_string(m.row_stride * rows) + ", so that all rows have one distance; copy the array");
    }
    rows *= a.extent(k);
  }
  return m;
}

struct heads_extents {
  std::size_t batch, heads, seq_len, head_dim, batch_stride, head_stride, seq_stride;
};

/// Whether elements overlap is for the public functions to find out: queries and keys may be cut out of one buffer in
/// many ways.
TIGON_NOINLINE inline heads_extents heads_of(const axes& a, heads_axes order) {
  if (a.rank != 3 && a.rank != 4)
    a.refuse(error_code::shape, "of rank " + std::to_string(a.rank), "4, or 3 for one sequence");
  const std::size_t n = a.check(), last = a.rank - 1;
  const std::size_t heads = order == heads_axes::heads_first ? last - 2 : last - 1, tokens = 2 * last - 3 - heads;
  heads_extents h{a.rank == 4 ? a.extent(0) : 1, a.extent(heads), a.extent(tokens), a.extent(last), 0, 0, 0};
  if (n == 0) return h;
  a.expect_adjacent();
  const auto of = [&](std::size_t axis) { return a.shape[axis] == 1 ? h.head_dim : a.outer_stride(axis); };
  h.batch_stride = a.rank == 4 ? of(0) : n;
  h.head_stride = of(heads);
  h.seq_stride = of(tokens);
  return h;
}

template <class T>
axes axes_of(const interop::strided_array<T>& a, const array_names& names) {
  return {a.data, sizeof(T), alignof(T), a.rank, a.shape, a.strides, names, std::is_const_v<T>};
}

/// Types of elements, and those of token ids, positions and quantised numbers.
template <class T>
concept array_element = element<T> || std::same_as<T, std::int8_t> || std::same_as<T, std::uint8_t> ||
                        std::same_as<T, std::int32_t> || std::same_as<T, std::int64_t>;

}  // namespace TIGON_ABI
}  // namespace tigon::interop_detail

namespace tigon::interop {
inline namespace TIGON_ABI {

/// The elements of an array without gaps, of any number of axes; none is one element.
///
/// Throws     (this function and those below) tigon::error: shape (a negative extent, a rank that does not fit, a null
///            pointer, more elements than memory has), stride (a stride that the view cannot hold: negative, not 1
///            along the innermost axis, below the width of a row, or leading axes that are not rows of one distance; 0
///            is taken of const elements, where all rows are one, as NumPy and PyTorch expand an array),
///            argument (an address that is not aligned for T).
/// Edges      an array without elements may have any pointer and strides. Strides of axes of one element are not read.
template <class T>
std::span<T> as_span(const strided_array<T>& a, const array_names& names = {"as_span"}) {
  return {a.data, interop_detail::size_of(interop_detail::axes_of(a, names))};
}

/// The array as a matrix: the last axis is its columns, all others together its rows, as [batch, seq_len, hidden] is
/// for a layer. Rows may have gaps between them, the same everywhere.
template <class T>
matrix_view<T> as_matrix(const strided_array<T>& a, const array_names& names = {"as_matrix"}) {
  const interop_detail::matrix_extents m = interop_detail::matrix_of(interop_detail::axes_of(a, names));
  return {a.data, m.rows, m.cols, m.row_stride};
}

/// The array as heads of attention, of any strides but that of the innermost axis, which is 1; also 0 for heads,
/// sequences or tokens that are all one, which an operator reads and does not write.
template <class T>
heads_view<T> as_heads(const strided_array<T>& a, heads_axes order = heads_axes::heads_first,
                       const array_names& names = {"as_heads"}) {
  const interop_detail::heads_extents h = interop_detail::heads_of(interop_detail::axes_of(a, names), order);
  return {a.data, h.batch, h.heads, h.seq_len, h.head_dim, h.batch_stride, h.head_stride, h.seq_stride};
}

}  // namespace TIGON_ABI
}  // namespace tigon::interop

#endif  // TIGON_INTEROP_STRIDED_HPP
