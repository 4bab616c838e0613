// Maps of whole matrices, sums of columns, and rows that are not read.
#include <tigon/rows/matrices.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <tigon/backends/generic/backend.hpp>
#include <tigon/backends/highway/backend.hpp>
#include <vector>

#include "support/guarded.hpp"

namespace {

using namespace tigon::test;
using tigon::bfloat16, tigon::context, tigon::default_context, tigon::vector_view;

/// Whole numbers, whose sums are exact.
template <class T>
TIGON_TEST_NOINLINE guarded_matrix<T> counted(std::size_t rows, std::size_t cols, double from) {
  guarded_matrix<T> m(rows, cols, 3);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j) m(i, j) = from_f64<T>(from + static_cast<double>((3 * i + 5 * j) % 17));
  return m;
}

template <class B>
class matrices : public testing::Test {};
using backends = testing::Types<tigon::backends::generic, tigon::backends::highway>;
TYPED_TEST_SUITE(matrices, backends);

TYPED_TEST(matrices, are_converted_added_and_cleared) {
  context& ctx = default_context();
  for (const std::size_t cols : {1u, 17u, 70u}) {
    const auto from = counted<float>(5, cols, 1);
    auto to = counted<bfloat16>(5, cols, 100);
    tigon::detail::round_sums<TypeParam, float>(to.view(), from.view(), true, ctx);
    for (std::size_t i = 0; i < 5; ++i)
      for (std::size_t j = 0; j < cols; ++j) ASSERT_EQ(to_f64(to(i, j)), 99 + 2 * to_f64(from(i, j)));
    tigon::detail::convert_matrix<TypeParam>(from.view(), to.view(), ctx);
    EXPECT_EQ(to.f64(), from.f64());
    tigon::detail::clear_matrix<TypeParam>(to.view(), ctx);
    EXPECT_EQ(to.f64(), std::vector<double>(5 * cols, 0));
    EXPECT_TRUE(to.padding_intact());
  }
}

TYPED_TEST(matrices, have_sums_of_columns) {
  context& ctx = default_context();
  for (const std::size_t rows : {0u, 1u, 7u, 300u})
    for (const std::size_t cols : {1u, 17u, 1100u}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols);
      const auto x = counted<bfloat16>(rows, cols, 1);
      std::vector<float> sums(cols, 2);
      std::vector<double> expected(cols, 0);
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < cols; ++j) expected[j] += to_f64(x(i, j));
      ctx.workspace().expect("test", tigon::simd::partials_workspace<TypeParam, float>(rows, cols, 1));
      const vector_view<float> out{sums.data(), cols};
      for (const double times : {1, 2}) {
        tigon::detail::sum_columns<TypeParam>(
            x.view(), out, times == 1 ? tigon::gradient::overwrite : tigon::gradient::accumulate, ctx);
        for (std::size_t j = 0; j < cols; ++j) ASSERT_EQ(sums[j], times * expected[j]) << j;
      }
    }
}

/// y = 2 x, or the sum of x beside it
struct twice {
  template <class V>
  TIGON_INLINE V map(V x) const {
    return x + x;
  }
  template <class V>
  TIGON_INLINE V direct(V x) const {
    return x + x;
  }
  template <class V>
  TIGON_INLINE V reduce(V x) const {
    return x;
  }
  TIGON_INLINE double save(float sum) const { return static_cast<double>(sum); }
};

// Rows that are not kept hold NaN: read, it would show.
TYPED_TEST(matrices, leave_rows_that_are_not_kept) {
  context& ctx = default_context();
  for (const std::size_t cols : {1u, 17u, 70u}) {
    auto x = counted<float>(6, cols, 1);
    const std::vector<std::uint8_t> flags{1, 0, 1, 1, 0, 0};
    std::vector<double> expected, sums;
    for (std::size_t i = 0; i < 6; ++i) {
      sums.push_back(flags[i] ? 0.0 : -1.0);
      for (std::size_t j = 0; j < cols; ++j) {
        expected.push_back(flags[i] ? 2 * to_f64(x(i, j)) : 0.0);
        if (flags[i]) sums[i] += to_f64(x(i, j));
        if (!flags[i]) x(i, j) = std::numeric_limits<float>::quiet_NaN();
      }
    }
    const tigon::kept_rows kept(flags.data());
    guarded_matrix<float> y(6, cols, 2), z(6, cols, 2);
    tigon::map_rows<TypeParam>(ctx, twice(), tigon::reads(x.view()), tigon::writes(y.view()), kept);
    EXPECT_EQ(y.f64(), expected);
    std::vector<double> saved(6, -1.0);
    tigon::reduce_map<TypeParam>(ctx, twice(), tigon::reads(x.view()),
                                 tigon::reduce_writes(tigon::often_zero{z.view()}), tigon::saves(saved.data()), kept);
    EXPECT_EQ(z.f64(), expected);
    EXPECT_EQ(saved, sums);
    EXPECT_TRUE(y.padding_intact() && z.padding_intact());
  }
}

}  // namespace
