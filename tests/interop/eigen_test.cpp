// Views of Eigen's matrices, and maps of views.
#include <tigon/interop/eigen.hpp>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "support/throws.hpp"

namespace {

using namespace tigon;
using namespace tigon::interop;
using Eigen::Dynamic;
using rows_of_f32 = Eigen::Matrix<float, Dynamic, Dynamic, Eigen::RowMajor>;

/// The view has the elements of the matrix, at their own addresses.
template <class T, class M>
void expect_same(matrix_view<T> view, const M& m) {
  ASSERT_EQ(view.rows, static_cast<std::size_t>(m.rows()));
  ASSERT_EQ(view.cols, static_cast<std::size_t>(m.cols()));
  for (Eigen::Index i = 0; i < m.rows(); ++i)
    for (Eigen::Index j = 0; j < m.cols(); ++j)
      EXPECT_EQ(view.row(static_cast<std::size_t>(i)) + j, &m.coeffRef(i, j)) << i << ", " << j;
}

TEST(eigen, a_row_major_matrix_is_a_matrix) {
  rows_of_f32 m(3, 5);
  static_assert(std::is_same_v<decltype(matrix_from_eigen(m)), matrix_view<float>>);
  expect_same(matrix_from_eigen(m), m);
  const rows_of_f32& fixed = m;
  static_assert(std::is_same_v<decltype(matrix_from_eigen(fixed)), matrix_view<const float>>);
  expect_same(matrix_from_eigen(fixed), m);
  Eigen::Matrix<double, 2, 3, Eigen::RowMajor> small;
  expect_same(matrix_from_eigen(small), small);
  Eigen::Matrix<std::int64_t, Dynamic, Dynamic, Eigen::RowMajor> ids(2, 4);
  expect_same(matrix_from_eigen(ids), ids);
}

TEST(eigen, blocks_maps_and_references_have_gaps_between_rows) {
  rows_of_f32 m(4, 8);
  auto block = m.block(1, 2, 3, 5);
  expect_same(matrix_from_eigen(block), block);
  EXPECT_EQ(matrix_from_eigen(m.block(1, 2, 3, 5)).row_stride, 8u);
  EXPECT_EQ(matrix_from_eigen(m.middleRows(1, 2)).data, m.data() + 8);

  Eigen::Map<rows_of_f32, Eigen::Unaligned, Eigen::OuterStride<>> map(m.data(), 2, 5, Eigen::OuterStride<>(16));
  expect_same(matrix_from_eigen(map), map);
  EXPECT_EQ(matrix_from_eigen(map).row_stride, 16u);
  Eigen::Map<const rows_of_f32> constant(m.data(), 4, 8);
  static_assert(std::is_same_v<decltype(matrix_from_eigen(constant)), matrix_view<const float>>);
  expect_same(matrix_from_eigen(constant), m);
  Eigen::Ref<rows_of_f32> reference(block);
  expect_same(matrix_from_eigen(reference), block);
}

TEST(eigen, the_transpose_of_a_column_major_matrix_has_rows) {
  Eigen::MatrixXf m(3, 5);
  const matrix_view<float> t = transposed_from_eigen(m);
  ASSERT_EQ(t.rows, 5u);
  ASSERT_EQ(t.cols, 3u);
  for (Eigen::Index i = 0; i < 3; ++i)
    for (Eigen::Index j = 0; j < 5; ++j) EXPECT_EQ(t.row(static_cast<std::size_t>(j)) + i, &m(i, j));
  EXPECT_EQ(transposed_from_eigen(m.topRows(2)).row_stride, 3u);
}

TEST(eigen, vectors_are_spans) {
  Eigen::VectorXf column(7);
  static_assert(std::is_same_v<decltype(span_from_eigen(column)), std::span<float>>);
  EXPECT_EQ(span_from_eigen(column).data(), column.data());
  EXPECT_EQ(span_from_eigen(column).size(), 7u);
  const Eigen::RowVectorXd row = Eigen::RowVectorXd::Zero(4);
  static_assert(std::is_same_v<decltype(span_from_eigen(row)), std::span<const double>>);
  EXPECT_EQ(span_from_eigen(row).size(), 4u);
  EXPECT_EQ(span_from_eigen(column.segment(2, 3)).data(), column.data() + 2);
  rows_of_f32 m(3, 5);
  EXPECT_EQ(span_from_eigen(m.row(1)).data(), m.data() + 5);
}

TEST(eigen, matrices_without_elements) {
  rows_of_f32 none(0, 5), thin(3, 0);
  EXPECT_EQ(matrix_from_eigen(none).rows, 0u);
  EXPECT_EQ(matrix_from_eigen(none).cols, 5u);
  EXPECT_EQ(matrix_from_eigen(thin).rows, 3u);
  EXPECT_EQ(to_eigen(matrix_view<float>()).size(), 0);
}

TEST(eigen, refuses_strides_known_at_run_time) {
  using any = Eigen::Stride<Dynamic, Dynamic>;
  std::vector<float> memory(64);
  Eigen::Map<rows_of_f32, 0, any> adjacent(memory.data(), 3, 4, any(6, 1)), apart(memory.data(), 3, 4, any(12, 3));
  EXPECT_EQ(matrix_from_eigen(adjacent).row_stride, 6u);
  EXPECT_TIGON_ERROR(matrix_from_eigen(apart, "x"), stride,
                     "tigon: matrix_from_eigen: x is of stride 3 along axis 1; expected 1: the elements of a row are "
                     "adjacent");
  Eigen::Map<rows_of_f32, 0, any> same(memory.data(), 3, 4, any(0, 1));
  EXPECT_TIGON_ERROR(matrix_from_eigen(same), stride,
                     "of stride 0 along axis 0; expected at least its 4 columns; copy the array");
  for (std::size_t k = 0; k < 4; ++k) memory[k] = static_cast<float>(k + 1);
  const Eigen::Map<const rows_of_f32, 0, any> read(memory.data(), 3, 4, any(0, 1));
  EXPECT_EQ(matrix_from_eigen(read).row_stride, 0u) << "rows that are all one";
  EXPECT_EQ(to_eigen(matrix_from_eigen(read)).sum(), 30.0f);
  Eigen::Map<Eigen::VectorXf, 0, Eigen::InnerStride<>> every_other(memory.data(), 5, Eigen::InnerStride<>(2));
  EXPECT_TIGON_ERROR(span_from_eigen(every_other, "w"), stride,
                     "tigon: span_from_eigen: w is of stride 2 along axis 0; expected 1: elements without gaps");
}

TEST(eigen, a_view_is_a_map) {
  std::vector<float> memory(40);
  const matrix_view<float> view(memory.data() + 1, 3, 5, 9);
  auto map = to_eigen(view);
  expect_same(view, map);
  map.setConstant(2);
  EXPECT_EQ(memory[1 + 2 * 9 + 4], 2);
  EXPECT_EQ(memory[1 + 5], 0) << "between two rows";
  EXPECT_EQ(map.sum(), 30);
  auto constant = to_eigen(matrix_view<const float>(view));
  static_assert(!std::is_assignable_v<decltype(constant(0, 0)), float>);
  EXPECT_EQ(constant.sum(), 30);
  EXPECT_EQ(to_eigen(vector_view<float>{memory.data(), 40}).sum(), 30);
  EXPECT_EQ(to_eigen(std::span<const float>(memory)).size(), 40);
  expect_same(matrix_from_eigen(map), map);
}

}  // namespace
