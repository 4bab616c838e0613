// Views of std::mdspan, and mdspans of views. Nothing is copied.
//
// <mdspan> itself is not needed: the functions are templates over its interface, so they also take the reference
// implementation of the Kokkos project (namespace Kokkos or std::experimental) where the library has none, under C++20.
//
//   std::mdspan x(data, batch, seq_len, hidden);
//   tigon::rms_norm_forward(tigon::interop::matrix_from_mdspan(x), w, y, rstd);
#ifndef TIGON_INTEROP_MDSPAN_HPP
#define TIGON_INTEROP_MDSPAN_HPP

#include <tigon/interop/strided.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#if defined(__has_include) && __cplusplus > 202002L
#if __has_include(<mdspan>)
#include <mdspan>
#endif
#endif

namespace tigon::interop_detail {
inline namespace TIGON_ABI {

template <class M>
concept has_mdspan_interface = requires(const M& m) {
  typename M::element_type;
  typename M::extents_type;
  typename M::mapping_type;
  M::rank();
  m.extent(0);
  m.stride(0);
  m.data_handle();
};

template <class M>
consteval bool is_mdspan() {
  static_assert(has_mdspan_interface<M>, "tigon: this is no std::mdspan, nor has it the interface of one");
  static_assert(
      std::is_same_v<std::remove_cvref_t<decltype(std::declval<const M&>().data_handle())>, typename M::element_type*>,
      "tigon: an mdspan is viewed where its accessor is the default one: plain elements behind a pointer");
  static_assert(array_element<std::remove_const_t<typename M::element_type>>,
                "tigon: an mdspan is viewed as float, double, bfloat16, float16, int8, uint8, int32 or int64");
  static_assert(M::mapping_type::is_always_strided(),
                "tigon: an mdspan is viewed where its layout is strided: layout_right, layout_left or layout_stride");
  return true;
}

/// Extents and strides of an mdspan, as numbers of one type.
template <class M>
struct mdspan_axes {
  static constexpr std::size_t rank = M::rank();
  std::array<std::int64_t, rank == 0 ? 1 : rank> shape{}, strides{};
  typename M::element_type* data;

  explicit mdspan_axes(const M& m) : data(m.data_handle()) {
    static_assert(is_mdspan<M>());
    if constexpr (rank != 0)  // without axes, m.stride() does not compile
      for (std::size_t k = 0; k < rank; ++k) {
        shape[k] = static_cast<std::int64_t>(m.extent(k));
        strides[k] = static_cast<std::int64_t>(m.stride(k));
      }
  }
  interop::strided_array<typename M::element_type> array() const { return {data, rank, shape.data(), strides.data()}; }
};

/// An mdspan of type M of these extents and strides.
template <class M, class T, std::size_t Rank>
M make_mdspan(T* data, const std::array<std::size_t, Rank>& shape, const std::array<std::size_t, Rank>& strides) {
  static_assert(is_mdspan<M>());
  static_assert(M::rank() == Rank, "tigon: an mdspan has 1 axis for a vector, 2 for a matrix, 4 for heads");
  static_assert(std::is_same_v<typename M::element_type, T> || std::is_same_v<typename M::element_type, const T>,
                "tigon: an mdspan of a view has its elements, or const ones");
  using extents = typename M::extents_type;
  using index = typename extents::index_type;
  using mapping = typename M::mapping_type;
  const auto refuse = [](std::size_t axis, const std::string& came, const std::string& expected) {
    detail::fail_argument(error_code::stride, "to_mdspan", "view", came + " along axis " + std::to_string(axis),
                          expected);
  };
  const std::string as_type = ", as the type of the mdspan says";
  bool any = true;
  for (std::size_t k = 0; k < Rank; ++k) any = any && shape[k] != 0;
  std::array<index, Rank> lengths{}, steps{};
  for (std::size_t k = 0; k < Rank; ++k) {
    if (shape[k] > static_cast<std::size_t>(std::numeric_limits<index>::max()) ||
        strides[k] > static_cast<std::size_t>(std::numeric_limits<index>::max()))
      detail::fail_argument(error_code::shape, "to_mdspan", "view",
                            "of extent " + std::to_string(shape[k]) + " and stride " + std::to_string(strides[k]),
                            "numbers of the mdspan's index type");
    if (const auto fixed = extents::static_extent(k);
        fixed != std::numeric_limits<std::size_t>::max() && fixed != shape[k])
      refuse(k, "of extent " + std::to_string(shape[k]), std::to_string(fixed) + as_type);
    if (strides[k] == 0 && shape[k] > 1 && any)
      refuse(k, "of stride 0", "elements of their own, as every mdspan has; copy the view");
    lengths[k] = static_cast<index>(shape[k]);
    steps[k] = static_cast<index>(strides[k]);
  }
  if constexpr (std::is_constructible_v<mapping, extents, std::array<index, Rank>>) {
    return M(data, mapping(extents(lengths), steps));
  } else {
    const M m(data, mapping(extents(lengths)));
    for (std::size_t k = 0; any && k < Rank; ++k)
      if (shape[k] > 1 && static_cast<std::size_t>(m.stride(k)) != strides[k])
        refuse(k, "of stride " + std::to_string(strides[k]),
               std::to_string(static_cast<std::size_t>(m.stride(k))) + as_type);
    return m;
  }
}

}  // namespace TIGON_ABI
}  // namespace tigon::interop_detail

namespace tigon::interop {
inline namespace TIGON_ABI {

/// Views of an mdspan: its elements without gaps, a matrix, or heads of attention. Which axes become what, and which
/// strides a view can hold: as_span, as_matrix and as_heads of interop/strided.hpp. layout_right and layout_stride are
/// taken; of layout_left only what has no two axes of more than one element, because its innermost axis is the first.
///
/// Types      elements float, double, bfloat16, float16, std::int8_t, std::uint8_t, std::int32_t or std::int64_t, const
///            or not; the default accessor; any extents and index type. Another accessor or layout does not compile.
/// Throws     tigon::error, with `name` for the mdspan: what strided.hpp throws.
template <class M>
auto span_from_mdspan(const M& mdspan, std::string_view name = "mdspan") {
  return as_span(interop_detail::mdspan_axes<M>(mdspan).array(), {"span_from_mdspan", name});
}
template <class M>
auto matrix_from_mdspan(const M& mdspan, std::string_view name = "mdspan") {
  return as_matrix(interop_detail::mdspan_axes<M>(mdspan).array(), {"matrix_from_mdspan", name});
}
template <class M>
auto heads_from_mdspan(const M& mdspan, heads_axes order = heads_axes::heads_first, std::string_view name = "mdspan") {
  return as_heads(interop_detail::mdspan_axes<M>(mdspan).array(), order, {"heads_from_mdspan", name});
}

/// An mdspan of type M of a view: of one axis for a vector, of two for a matrix, of four, [batch, heads, seq_len,
/// head_dim], for heads. With a layout that takes strides (layout_stride) it has those of the view; with another one,
/// and with extents that are part of the type, the view has to be as the type says.
///
/// Throws     tigon::error: stride (the view is not as the type says; a stride of 0, which no mdspan has), shape (an
///            extent or stride beyond index_type).
template <class M, class T>
M to_mdspan(std::span<T> s) {
  return interop_detail::make_mdspan<M, T, 1>(s.data(), {s.size()}, {1});
}
template <class M, class T>
M to_mdspan(vector_view<T> v) {
  return interop_detail::make_mdspan<M, T, 1>(v.data, {v.size}, {1});
}
template <class M, class T>
M to_mdspan(matrix_view<T> m) {
  return interop_detail::make_mdspan<M, T, 2>(m.data, {m.rows, m.cols}, {m.row_stride, 1});
}
template <class M, class T>
M to_mdspan(heads_view<T> h) {
  return interop_detail::make_mdspan<M, T, 4>(h.data, {h.batch, h.heads, h.seq_len, h.head_dim},
                                              {h.batch_stride, h.head_stride, h.seq_stride, 1});
}

#if defined(__cpp_lib_mdspan)
/// The same with the library's own type, of the view's strides.
template <class T>
auto to_mdspan(matrix_view<T> m) {
  return to_mdspan<std::mdspan<T, std::dextents<std::size_t, 2>, std::layout_stride>>(m);
}
template <class T>
auto to_mdspan(heads_view<T> h) {
  return to_mdspan<std::mdspan<T, std::dextents<std::size_t, 4>, std::layout_stride>>(h);
}
#endif

}  // namespace TIGON_ABI
}  // namespace tigon::interop

#endif  // TIGON_INTEROP_MDSPAN_HPP
