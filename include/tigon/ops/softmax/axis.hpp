// A tensor seen from one of its axes: what lies before it, along it and behind it.
#ifndef TIGON_OPS_SOFTMAX_AXIS_HPP
#define TIGON_OPS_SOFTMAX_AXIS_HPP

#include <tigon/core/error.hpp>

namespace tigon {

/// Element (o, a, j) at data + o * outer_stride + a * axis_stride + j.
template <class T>
struct axis_view {
  T* data = nullptr;
  std::size_t outer = 0, axis = 0, inner = 0;  ///< extents before the axis, along it, and behind it
  std::size_t outer_stride = 0, axis_stride = 0;

  constexpr axis_view() = default;
  constexpr TIGON_INLINE axis_view(T* d, std::size_t o, std::size_t a, std::size_t j)
      : axis_view(d, o, a, j, a * j, j) {}
  constexpr TIGON_INLINE axis_view(T* d, std::size_t o, std::size_t a, std::size_t j, std::size_t os, std::size_t as)
      : data(d), outer(o), axis(a), inner(j), outer_stride(os), axis_stride(as) {}
  /// The last axis: the columns of a matrix.
  constexpr TIGON_INLINE explicit axis_view(matrix_view<T> m) : axis_view(m.data, m.rows, m.cols, 1, m.row_stride, 1) {}

  constexpr TIGON_INLINE operator axis_view<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {data, outer, axis, inner, outer_stride, axis_stride};
  }

  constexpr TIGON_INLINE bool is_last() const { return inner == 1 && axis_stride == 1; }
  constexpr TIGON_INLINE matrix_view<T> rows() const { return {data, outer, axis, outer_stride}; }
  /// Columns [first, first + count) of (o, a).
  constexpr TIGON_INLINE vector_view<T> line(std::size_t o, std::size_t a, std::size_t first, std::size_t count) const {
    return {data + o * outer_stride + a * axis_stride + first, count};
  }
  constexpr TIGON_INLINE heads_view<T> heads() const {
    return {data, 1, outer, axis, inner, 0, outer_stride, axis_stride};
  }
};

template <class T>
using in_axis = std::type_identity_t<axis_view<const T>>;

namespace detail {
inline namespace TIGON_ABI {
/// Of that shape, with memory, and strides under which no two elements share an address, or of 0 in what is read.
template <class T, class U>
void expect_axis(std::string_view op, std::string_view name, axis_view<T> v, axis_view<U> like) {
#if TIGON_CHECKS
  const auto text = [](std::size_t outer, std::size_t axis, std::size_t inner) {
    return std::to_string(outer) + " x " + std::to_string(axis) + " x " + std::to_string(inner);
  };
  if (v.outer != like.outer || v.axis != like.axis || v.inner != like.inner)
    fail_argument(error_code::shape, op, name, text(v.outer, v.axis, v.inner), text(like.outer, like.axis, like.inner));
  const expects expect(op);
  expect.that(v.data != nullptr || v.outer * v.axis * v.inner == 0, error_code::shape, name, "a null pointer",
              "memory behind every element");
  expect.heads(name, v.heads(), 1, v.outer, v.axis, v.inner, std::is_const_v<T> ? view_use::read : view_use::written);
#else
  (void)op, (void)name, (void)v, (void)like;
#endif
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_SOFTMAX_AXIS_HPP
