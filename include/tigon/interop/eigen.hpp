// Views of Eigen's matrices, and Eigen::Map of views. Nothing is copied.
//
//   Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> x(tokens, hidden), y(tokens, hidden);
//   tigon::rms_norm_forward(tigon::interop::matrix_from_eigen(x), w, tigon::interop::matrix_from_eigen(y), rstd);
//   float largest = tigon::interop::to_eigen(view).cwiseAbs().maxCoeff();
//
// Eigen's matrices are column-major unless they say otherwise: their rows are not adjacent in memory, so they are no
// matrix_view. matrix_from_eigen refuses them when the program is compiled; transposed_from_eigen is the view of their
// transpose, which has rows.
#ifndef TIGON_INTEROP_EIGEN_HPP
#define TIGON_INTEROP_EIGEN_HPP

#include <tigon/interop/strided.hpp>

#if !__has_include(<Eigen/Core>)
#error \
    "tigon: interop/eigen.hpp needs <Eigen/Core>; install libeigen3-dev (vcpkg eigen3, Conan eigen) and add its include directory (-isystem /usr/include/eigen3)"
#include <the_error_above_ends_compilation>
#endif
#include <Eigen/Core>
#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "tigon: Eigen 3.4 or newer is needed"
#include <the_error_above_ends_compilation>
#endif

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace tigon::interop_detail {
inline namespace TIGON_ABI {

template <class D>
void dense(const Eigen::DenseBase<D>&);
template <class D>
void plain(const Eigen::PlainObjectBase<D>&);

/// True for a matrix, map, reference or block whose elements lie in memory and live on; M as a forwarding reference
/// deduces it.
template <class M>
consteval bool is_eigen() {
  using bare = std::remove_cvref_t<M>;
  constexpr bool is_dense = requires(const bare& m) { interop_detail::dense(m); };
  constexpr bool is_plain = requires(const bare& m) { interop_detail::plain(m); };
  static_assert(is_dense, "tigon: this is no matrix of Eigen");
  if constexpr (is_dense) {
    static_assert((static_cast<unsigned>(bare::Flags) & static_cast<unsigned>(Eigen::DirectAccessBit)) != 0,
                  "tigon: an expression has no memory; view the matrix that it is assigned to");
    static_assert(std::is_lvalue_reference_v<M> || !is_plain,
                  "tigon: a temporary matrix is gone before its view is used; give it a name");
    static_assert(array_element<typename bare::Scalar>,
                  "tigon: a matrix of Eigen is viewed as float, double, tigon::bfloat16, tigon::float16 or integers; "
                  "Eigen::half and Eigen::bfloat16 are other types");
    static_assert(static_cast<int>(bare::InnerStrideAtCompileTime) == 1 ||
                      static_cast<int>(bare::InnerStrideAtCompileTime) == Eigen::Dynamic,
                  "tigon: the elements of a row have gaps between them; copy the matrix");
  }
  return true;
}

/// The element as the matrix hands it out: const where that is const.
template <class M>
using element_in = std::remove_pointer_t<decltype(std::declval<M&>().data())>;

/// `rows` vectors of `cols` elements, as strided.hpp checks them.
template <class M>
auto rows_of(M& m, Eigen::Index rows, Eigen::Index cols, const array_names& names) {
  const std::int64_t shape[] = {rows, cols}, strides[] = {m.outerStride(), m.innerStride()};
  return interop::as_matrix(interop::strided_array<element_in<M>>{m.data(), 2, shape, strides}, names);
}

template <class T>
using row_major = Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using column = Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, 1>;
template <class T, class M>
using with_const_of = std::conditional_t<std::is_const_v<T>, const M, M>;

}  // namespace TIGON_ABI
}  // namespace tigon::interop_detail

namespace tigon::interop {
inline namespace TIGON_ABI {

/// The rows of a row-major Eigen::Matrix, Map, Ref or Block, which may have gaps between them (an outer stride).
///
/// Types      float, double, tigon::bfloat16, tigon::float16, std::int8_t, std::uint8_t, std::int32_t or std::int64_t;
///            a const matrix gives a view of const elements. Column-major matrices, expressions, temporaries and other
///            types do not compile, with a sentence.
/// Throws     tigon::error: stride (an inner stride that is known at run time only, and is not 1; rows that overlap).
template <class M>
auto matrix_from_eigen(M&& matrix, std::string_view name = "matrix") {
  static_assert(interop_detail::is_eigen<M>());
  static_assert(
      std::remove_cvref_t<M>::IsRowMajor,
      "tigon: a column-major matrix has no rows of adjacent elements; declare it Eigen::RowMajor, or view its "
      "transpose by transposed_from_eigen");
  return interop_detail::rows_of(matrix, matrix.rows(), matrix.cols(), {"matrix_from_eigen", name});
}

/// The transpose of a column-major matrix: its columns are the rows of the view. Everything else as matrix_from_eigen.
template <class M>
auto transposed_from_eigen(M&& matrix, std::string_view name = "matrix") {
  static_assert(interop_detail::is_eigen<M>());
  static_assert(
      !std::remove_cvref_t<M>::IsRowMajor,
      "tigon: the transpose of a row-major matrix has no rows of adjacent elements; view the matrix itself by "
      "matrix_from_eigen");
  return interop_detail::rows_of(matrix, matrix.cols(), matrix.rows(), {"transposed_from_eigen", name});
}

/// The elements of a vector of Eigen, a matrix with one column or one row by its type, without gaps.
template <class V>
auto span_from_eigen(V&& vector, std::string_view name = "vector") {
  static_assert(interop_detail::is_eigen<V>());
  static_assert(std::remove_cvref_t<V>::IsVectorAtCompileTime,
                "tigon: a vector has one column or one row by its type, as Eigen::VectorXf has");
  using T = interop_detail::element_in<std::remove_reference_t<V>>;
  const std::int64_t size = vector.size(), stride = vector.innerStride();
  return as_span(strided_array<T>{vector.data(), 1, &size, &stride}, {"span_from_eigen", name});
}

/// A view as a Map, whose elements are const where those of the view are.
template <class T>
auto to_eigen(matrix_view<T> m) {
  using map = Eigen::Map<interop_detail::with_const_of<T, interop_detail::row_major<T>>, Eigen::Unaligned,
                         Eigen::OuterStride<>>;
  const auto index = [](std::size_t n) { return static_cast<Eigen::Index>(n); };
  return map(m.data, index(m.rows), index(m.cols), Eigen::OuterStride<>(index(m.row_stride)));
}
template <class T>
auto to_eigen(std::span<T> s) {
  using map = Eigen::Map<interop_detail::with_const_of<T, interop_detail::column<T>>>;
  return map(s.data(), static_cast<Eigen::Index>(s.size()));
}
template <class T>
auto to_eigen(vector_view<T> v) {
  return to_eigen(std::span<T>(v.data, v.size));
}

}  // namespace TIGON_ABI
}  // namespace tigon::interop

#endif  // TIGON_INTEROP_EIGEN_HPP
