// Views of mdspans, and mdspans of views: a double with the standard's interface under C++20, and the library's own
// where it has one.
#include <tigon/interop/mdspan.hpp>

#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "support/throws.hpp"

namespace {

using namespace tigon;
using namespace tigon::interop;

constexpr std::size_t dynamic = static_cast<std::size_t>(-1);

/// As std::extents, with the members that are asked for.
template <class Index, std::size_t... E>
struct extents {
  using index_type = Index;
  std::array<Index, sizeof...(E)> lengths{};

  extents() = default;
  explicit extents(const std::array<Index, sizeof...(E)>& from) : lengths(from) {}
  static constexpr std::size_t rank() { return sizeof...(E); }
  static constexpr std::size_t static_extent(std::size_t k) {
    constexpr std::array<std::size_t, sizeof...(E)> all{E...};
    return all[k];
  }
};

struct right {
  template <class X>
  struct mapping {
    X lengths;
    explicit mapping(const X& e) : lengths(e) {}
    static constexpr bool is_always_strided() { return true; }
    typename X::index_type stride(std::size_t k) const
      requires(X::rank() > 0)
    {
      typename X::index_type n = 1;
      for (std::size_t j = k + 1; j < X::rank(); ++j) n *= lengths.lengths[j];
      return n;
    }
  };
};
struct stride {
  template <class X>
  struct mapping {
    X lengths;
    std::array<typename X::index_type, X::rank()> steps;
    mapping(const X& e, const std::array<typename X::index_type, X::rank()>& s) : lengths(e), steps(s) {}
    static constexpr bool is_always_strided() { return true; }
    typename X::index_type stride(std::size_t k) const { return steps[k]; }
  };
};

/// As std::mdspan with the default accessor.
template <class T, class X, class Layout = right>
struct mdspan {
  using element_type = T;
  using extents_type = X;
  using mapping_type = typename Layout::template mapping<X>;
  T* data;
  mapping_type map;

  mdspan(T* d, const mapping_type& m) : data(d), map(m) {}
  static constexpr std::size_t rank() { return X::rank(); }
  auto extent(std::size_t k) const { return map.lengths.lengths[k]; }
  typename X::index_type stride(std::size_t k) const { return map.stride(k); }
  T* data_handle() const { return data; }
};

template <class Index, std::size_t N>
struct any_extents;
template <class Index>
struct any_extents<Index, 1> : std::type_identity<extents<Index, dynamic>> {};
template <class Index>
struct any_extents<Index, 2> : std::type_identity<extents<Index, dynamic, dynamic>> {};
template <class Index>
struct any_extents<Index, 3> : std::type_identity<extents<Index, dynamic, dynamic, dynamic>> {};
template <class Index>
struct any_extents<Index, 4> : std::type_identity<extents<Index, dynamic, dynamic, dynamic, dynamic>> {};
template <class Index, std::size_t N>
using dims = typename any_extents<Index, N>::type;

struct of_mdspan : testing::Test {
  float memory[256] = {};

  template <class T = float, class Index = int, std::size_t N>
  mdspan<T, dims<Index, N>> plain(const Index (&shape)[N]) {
    return {memory, typename mdspan<T, dims<Index, N>>::mapping_type(dims<Index, N>(std::to_array(shape)))};
  }
  template <class T = float, class Index = int, std::size_t N>
  mdspan<T, dims<Index, N>, stride> strided(const Index (&shape)[N], const Index (&steps)[N]) {
    using M = mdspan<T, dims<Index, N>, stride>;
    return {memory, typename M::mapping_type(dims<Index, N>(std::to_array(shape)), std::to_array(steps))};
  }
};

TEST_F(of_mdspan, one_axis_is_a_span) {
  static_assert(std::is_same_v<decltype(span_from_mdspan(plain({5}))), std::span<float>>);
  EXPECT_EQ(span_from_mdspan(plain({5})).size(), 5u);
  EXPECT_EQ(span_from_mdspan(plain<const float>({5})).data(), memory);
  EXPECT_EQ(span_from_mdspan(plain({2, 3, 4})).size(), 24u);
  EXPECT_EQ(span_from_mdspan(strided({5}, {1})).size(), 5u);
  EXPECT_TRUE(span_from_mdspan(plain({0})).empty());
  using number = mdspan<float, extents<int>>;
  EXPECT_EQ(span_from_mdspan(number(memory, number::mapping_type(extents<int>()))).size(), 1u);
}

TEST_F(of_mdspan, two_axes_are_a_matrix_and_leading_axes_are_rows) {
  const matrix_view<float> m = matrix_from_mdspan(plain({3, 4}));
  EXPECT_EQ(m.data, memory);
  EXPECT_EQ(m.rows, 3u);
  EXPECT_EQ(m.cols, 4u);
  EXPECT_EQ(m.row_stride, 4u);
  EXPECT_EQ(matrix_from_mdspan(strided({3, 4}, {9, 1})).row_stride, 9u);
  const matrix_view<const float> rows = matrix_from_mdspan(plain<const float, std::size_t>({2, 3, 4}));
  EXPECT_EQ(rows.rows, 6u);
  EXPECT_EQ(rows.cols, 4u);
  EXPECT_EQ(matrix_from_mdspan(strided<const float>({3, 4}, {0, 1})).row_stride, 0u) << "rows that are all one";
  EXPECT_TIGON_ERROR(matrix_from_mdspan(strided({3, 4}, {0, 1})), stride,
                     "of stride 0 along axis 0; expected at least");
  EXPECT_EQ(matrix_from_mdspan(plain({0, 4})).rows, 0u);
  EXPECT_EQ(matrix_from_mdspan(plain({4, 0})).cols, 0u);
}

TEST_F(of_mdspan, four_axes_are_heads) {
  const heads_view<float> h = heads_from_mdspan(plain({2, 3, 4, 5}));
  EXPECT_EQ(h.at(1, 2, 3), memory + 60 + 2 * 20 + 3 * 5);
  const heads_view<float> t = heads_from_mdspan(plain({2, 3, 4, 5}), heads_axes::tokens_first);
  EXPECT_EQ(t.heads, 4u);
  EXPECT_EQ(t.at(1, 3, 2), memory + 60 + 2 * 20 + 3 * 5);
}

TEST_F(of_mdspan, refuses_with_its_name) {
  EXPECT_TIGON_ERROR(matrix_from_mdspan(plain({3}), "x"), shape,
                     "tigon: matrix_from_mdspan: x is of rank 1; expected at least 2");
  EXPECT_TIGON_ERROR(matrix_from_mdspan(strided({3, 4}, {1, 3})), stride,
                     "matrix_from_mdspan: mdspan is of stride 3 along axis 1; expected 1: the elements of a row");
  EXPECT_TIGON_ERROR(span_from_mdspan(strided({3}, {2})), stride,
                     "span_from_mdspan: mdspan is of stride 2 along axis 0");
  EXPECT_TIGON_ERROR(heads_from_mdspan(plain({3, 4})), shape, "heads_from_mdspan: mdspan is of rank 2; expected 4");
}

TEST_F(of_mdspan, a_view_becomes_one_of_any_layout) {
  using right_2 = mdspan<float, dims<int, 2>>;
  using stride_2 = mdspan<float, dims<int, 2>, stride>;
  const matrix_view<float> wide(memory, 3, 4, 9), dense(memory, 3, 4);
  const auto m = to_mdspan<stride_2>(wide);
  EXPECT_EQ(m.data_handle(), memory);
  EXPECT_EQ(m.extent(0), 3);
  EXPECT_EQ(m.stride(0), 9);
  EXPECT_EQ(matrix_from_mdspan(m).row_stride, 9u);
  EXPECT_EQ(to_mdspan<right_2>(dense).stride(0), 4);
  EXPECT_EQ(to_mdspan<right_2>(matrix_view<float>(memory, 1, 4, 9)).extent(1), 4) << "one row has no stride";
  EXPECT_EQ(to_mdspan<right_2>(matrix_view<float>(nullptr, 0, 4, 9)).extent(0), 0);
  EXPECT_EQ(to_mdspan<right_2>(matrix_view<float>(memory, 3, 0, 9)).extent(0), 3) << "no elements have no strides";
  EXPECT_TIGON_ERROR(to_mdspan<right_2>(wide), stride,
                     "tigon: to_mdspan: view is of stride 9 along axis 0; expected 4, as the type of the mdspan says");

  using fixed_cols = mdspan<const float, extents<int, dynamic, 4>, stride>;
  EXPECT_EQ(to_mdspan<fixed_cols>(wide).extent(1), 4);
  EXPECT_TIGON_ERROR(to_mdspan<fixed_cols>(matrix_view<float>(memory, 3, 5)), stride,
                     "view is of extent 5 along axis 1; expected 4, as the type");
  using narrow = mdspan<float, dims<std::int8_t, 2>, stride>;
  EXPECT_TIGON_ERROR(to_mdspan<narrow>(matrix_view<float>(memory, 3, 4, 200)), shape,
                     "of extent 3 and stride 200; expected numbers of the mdspan's index type");

  EXPECT_TIGON_ERROR(to_mdspan<stride_2>(matrix_view<float>(memory, 3, 4, 0)), stride,
                     "tigon: to_mdspan: view is of stride 0 along axis 0; expected elements of their own");
  EXPECT_EQ(to_mdspan<stride_2>(matrix_view<float>(memory, 3, 0, 0)).extent(0), 3);
  EXPECT_EQ((to_mdspan<mdspan<float, dims<int, 1>>>(vector_view<float>{memory, 7}).extent(0)), 7);
  EXPECT_EQ((to_mdspan<mdspan<const float, dims<int, 1>>>(std::span<const float>(memory)).extent(0)), 256);
  const heads_view<float> h = heads_view<float>::of_tokens(memory, 2, 3, 4, 5);
  const heads_view<float> back = heads_from_mdspan(to_mdspan<mdspan<float, dims<int, 4>, stride>>(h));
  EXPECT_EQ(back.at(1, 3, 2), h.at(1, 3, 2));
}

#if defined(__cpp_lib_mdspan)
TEST(of_std_mdspan, there_and_back) {
  std::vector<float> memory(120);
  const std::mdspan x(memory.data(), 2, 3, 4);
  const matrix_view<float> m = matrix_from_mdspan(x);
  EXPECT_EQ(m.rows, 6u);
  EXPECT_EQ(m.row_stride, 4u);
  EXPECT_EQ(to_mdspan(m.cols_from(1, 2)).stride(0), 4u);
  EXPECT_EQ((to_mdspan<std::mdspan<const float, std::dextents<int, 2>>>(m).extent(0)), 6);
  EXPECT_EQ(heads_from_mdspan(std::mdspan(memory.data(), 2, 3, 4, 5)).at(1, 2, 3), memory.data() + 115);
  EXPECT_EQ(span_from_mdspan(std::mdspan<float, std::extents<int>>(memory.data())).size(), 1u);
  const std::mdspan<float, std::dextents<int, 2>, std::layout_left> left(memory.data(), 3, 4);
  EXPECT_TIGON_ERROR(matrix_from_mdspan(left), stride, "of stride 3 along axis 1; expected 1");
}
#endif

}  // namespace
