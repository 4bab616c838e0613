// Non-owning views: a matrix is a pointer, two extents and the distance between rows in elements.
#ifndef TIGON_CORE_VIEWS_HPP
#define TIGON_CORE_VIEWS_HPP

#include <tigon/core/element.hpp>

#include <cstddef>
#include <initializer_list>
#include <span>
#include <type_traits>

namespace tigon {

namespace detail {

/// What has elements, and neither rows nor columns: a std::vector, an array, a span.
template <class R>
concept range_of_elements = requires(R& r) { std::span(r); };

template <class R>
using element_of_range = std::remove_pointer_t<decltype(std::span(std::declval<R&>()).data())>;

/// A range where a view takes the address of its first element. An array converts to that address.
template <class R>
concept range_for_pointer = range_of_elements<R> && !std::is_array_v<std::remove_reference_t<R>> &&
                            !std::is_convertible_v<R, const element_of_range<R>*>;

template <class U>
concept listed_for_pointer = element<U> || std::is_arithmetic_v<U>;

template <class>
inline constexpr bool is_pointer_of_view = false;

}  // namespace detail

/// `rows` x `cols` elements; row i begins at data + i * row_stride. Columns are adjacent. `data` may be null where
/// there are no elements: then rows and parts of the view begin there, too.
template <class T>
struct matrix_view {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::size_t row_stride = 0;

  constexpr matrix_view() = default;
  constexpr TIGON_INLINE matrix_view(T* d, std::size_t r, std::size_t c) : data(d), rows(r), cols(c), row_stride(c) {}
  constexpr TIGON_INLINE matrix_view(T* d, std::size_t r, std::size_t c, std::size_t stride)
      : data(d), rows(r), cols(c), row_stride(stride) {}
  /// A range or a list in the place of a pointer is refused by a sentence.
  template <detail::range_for_pointer R>
  constexpr matrix_view(R&&, std::size_t, std::size_t, std::size_t = 0) {
    static_assert(detail::is_pointer_of_view<R>,
                  "tigon: matrix_view takes a pointer to the first element; expected "
                  "tigon::matrix_view(v.data(), rows, cols), not the vector or another range v itself");
  }
  template <detail::range_for_pointer R>
  constexpr explicit matrix_view(R&& v, std::size_t r = 0) : matrix_view(v, r, 0) {}
  template <detail::listed_for_pointer U>
  constexpr matrix_view(std::initializer_list<U>, std::size_t, std::size_t, std::size_t = 0) {
    static_assert(detail::is_pointer_of_view<U>,
                  "tigon: matrix_view takes a pointer to the first element; expected "
                  "tigon::matrix_view(v.data(), rows, cols), not a list of elements, which nobody owns");
  }

  /// A view that may write converts to one that may not.
  constexpr TIGON_INLINE operator matrix_view<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {data, rows, cols, row_stride};
  }

  constexpr TIGON_INLINE T* row(std::size_t i) const { return cols == 0 ? data : data + i * row_stride; }

  /// Rows [first, first + count).
  constexpr TIGON_INLINE matrix_view rows_from(std::size_t first, std::size_t count) const {
    return {row(first), count, cols, row_stride};
  }
  /// Columns [first, first + count), for example the gate half of a fused gate-up buffer.
  constexpr TIGON_INLINE matrix_view cols_from(std::size_t first, std::size_t count) const {
    return {rows == 0 ? data : data + first, rows, count, row_stride};
  }
};

template <detail::range_for_pointer R>
matrix_view(R&&, std::size_t, std::size_t, std::size_t = 0) -> matrix_view<detail::element_of_range<R>>;
template <detail::range_for_pointer R>
explicit matrix_view(R&&, std::size_t = 0) -> matrix_view<detail::element_of_range<R>>;
template <detail::listed_for_pointer U>
matrix_view(std::initializer_list<U>, std::size_t, std::size_t, std::size_t = 0) -> matrix_view<U>;

template <class T>
struct vector_view {
  T* data = nullptr;
  std::size_t size = 0;

  constexpr TIGON_INLINE operator vector_view<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {data, size};
  }
  constexpr TIGON_INLINE explicit operator bool() const { return data != nullptr; }
};

/// Heads of attention: element (b, h, s, j) at data + b * batch_stride + h * head_stride + s * seq_stride + j. `data`
/// may be null where there are no elements, as in a matrix.
template <class T>
struct heads_view {
  T* data = nullptr;
  std::size_t batch = 0, heads = 0, seq_len = 0, head_dim = 0;
  std::size_t batch_stride = 0, head_stride = 0, seq_stride = 0;

  constexpr heads_view() = default;
  constexpr TIGON_INLINE heads_view(T* d, std::size_t b, std::size_t h, std::size_t s, std::size_t n, std::size_t bs,
                                    std::size_t hs, std::size_t ss)
      : data(d), batch(b), heads(h), seq_len(s), head_dim(n), batch_stride(bs), head_stride(hs), seq_stride(ss) {}

  /// The heads of a token lie together, as a projection leaves them: [batch, seq_len, heads, head_dim].
  static constexpr TIGON_INLINE heads_view of_tokens(T* d, std::size_t b, std::size_t s, std::size_t h, std::size_t n) {
    return {d, b, h, s, n, s * h * n, n, h * n};
  }
  /// The tokens of a head lie together: [batch, heads, seq_len, head_dim].
  static constexpr TIGON_INLINE heads_view of_heads(T* d, std::size_t b, std::size_t h, std::size_t s, std::size_t n) {
    return {d, b, h, s, n, h * s * n, s * n, n};
  }

  constexpr TIGON_INLINE operator heads_view<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {data, batch, heads, seq_len, head_dim, batch_stride, head_stride, seq_stride};
  }

  constexpr TIGON_INLINE T* at(std::size_t b, std::size_t h, std::size_t s) const {
    return head_dim == 0 ? data : data + b * batch_stride + h * head_stride + s * seq_stride;
  }
  /// One head of one sequence, a row a token.
  constexpr TIGON_INLINE matrix_view<T> head(std::size_t b, std::size_t h) const {
    return {seq_len == 0 ? data : at(b, h, 0), seq_len, head_dim, seq_stride};
  }
};

template <class T>
using in_heads = std::type_identity_t<heads_view<const T>>;

/// An input: the element type is deduced from the outputs, and a writable view converts.
template <class T>
using in_matrix = std::type_identity_t<matrix_view<const T>>;

template <class T>
using in_vector = vector_view<const T>;

/// Stands for a parameter that is not there: `rms_norm_forward(x, absent, y, rstd)`.
struct absent_t {};
inline constexpr absent_t absent{};

namespace detail {

template <class R>
struct vector_element {
  using type = std::remove_cv_t<std::remove_pointer_t<decltype(std::span(std::declval<R&>()).data())>>;
};

}  // namespace detail

/// Contiguous range of elements (std::vector, std::array, std::span, built-in array) or `absent`.
template <class R>
concept parameter = std::same_as<std::remove_cvref_t<R>, absent_t> ||
                    (requires(R& r) { std::span(r); } && element<typename detail::vector_element<R>::type>);

/// The view of a parameter that is read. `absent` becomes an empty view of elements of type T.
template <class T, class R>
constexpr TIGON_INLINE auto as_in_vector(const R& range) {
  if constexpr (std::same_as<R, absent_t>) {
    return in_vector<T>{};
  } else {
    const std::span s(range);
    return in_vector<std::remove_const_t<std::remove_pointer_t<decltype(s.data())>>>{s.data(), s.size()};
  }
}

/// The view of a parameter gradient that is written.
template <class T, class R>
constexpr TIGON_INLINE auto as_out_vector(R&& range) {
  if constexpr (std::same_as<std::remove_cvref_t<R>, absent_t>) {
    return vector_view<T>{};
  } else {
    const std::span s(range);
    static_assert(!std::is_const_v<std::remove_pointer_t<decltype(s.data())>>,
                  "tigon: a gradient is written; pass a range of non-const elements");
    return vector_view<std::remove_pointer_t<decltype(s.data())>>{s.data(), s.size()};
  }
}

/// A vector as a matrix of one row.
template <class T>
constexpr TIGON_INLINE matrix_view<T> as_row(vector_view<T> v) {
  return {v.data, 1, v.size};
}
template <class T>
constexpr TIGON_INLINE matrix_view<T> as_row(std::span<T> v) {
  return {v.data(), 1, v.size()};
}

}  // namespace tigon

#endif  // TIGON_CORE_VIEWS_HPP
