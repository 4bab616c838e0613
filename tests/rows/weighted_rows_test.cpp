// weighted_rows: sums of rows a distance apart, forwards and backwards, in every column of a row.
#include <gtest/gtest.h>

#include <tigon/core/context.hpp>
#include <tigon/ops/attention/weighted_rows.hpp>
#include <tigon/rows/row.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/problem.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::reads, tigon::writes;

template <class On>
class weighted_rows : public testing::Test {};
TYPED_TEST_SUITE(weighted_rows, every_pair, names);

TYPED_TEST(weighted_rows, are_their_sum) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  constexpr std::size_t n = lanes<B, T>;
  for (const std::size_t count : {0u, 1u, 5u, 64u, 65u, 200u})
    for (const std::size_t cols : {std::size_t{1}, n, 4 * n + 3}) {
      SCOPED_TRACE(testing::Message() << count << " rows of " << cols);
      const guarded_matrix<T> x = random_matrix<T>({2 * count + 1, cols, 3}, 1);
      const guarded<A> weight = random_vector<A>(3 * count + 1, 2);
      guarded_matrix<A> y(1, cols);
      std::vector<double> want(cols);
      for (std::size_t t = 0; t < count; ++t)
        for (std::size_t j = 0; j < cols; ++j) want[j] += to_f64(weight[3 * (count - t)]) * to_f64(x(2 * t, j));
      const tigon::detail::weighted_rows<T> sum{x.view().row(0), 2 * static_cast<std::ptrdiff_t>(cols + 3),
                                                weight.data() + 3 * count, -3, count};
      tigon::for_rows<B, A>(tigon::default_context(), 1, cols, [=, to = y.view()] TIGON_FN(auto row) {
        row.map(reads(sum), writes(to), [](auto v) { return v; });
      });
      EXPECT_TRUE(close(y.f64(), want, std::same_as<A, double> ? 1e-14 : 4e-6, {.scale = 1}));
    }
}

TYPED_TEST(weighted_rows, of_all_or_a_part_of_the_columns_have_the_same_bits) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  constexpr std::size_t count = 70, cols = 40, first = 5;
  const guarded_matrix<T> x = random_matrix<T>({count, cols}, 1);
  const guarded<A> weight = random_vector<A>(count, 2);
  guarded_matrix<A> whole(1, cols), part(1, cols);
  const tigon::detail::weighted_rows<T> sum{x.view().row(0), cols, weight.data(), 1, count};
  tigon::for_rows<B, A>(tigon::default_context(), 1, cols,
                        [=, to_whole = whole.view(), to_part = part.view()] TIGON_FN(auto row) {
                          row.map(reads(sum), writes(to_whole), [](auto v) { return v; });
                          row.part(first, cols - first).map(reads(sum), writes(to_part), [](auto v) { return v; });
                        });
  for (std::size_t j = first; j < cols; ++j) ASSERT_EQ(part(0, j), whole(0, j)) << j;
}

/// Terms that a sum of one after the other would lose.
TYPED_TEST(weighted_rows, keep_their_error_over_many_rows) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  constexpr std::size_t count = 4096;
  guarded_matrix<T> x(count, 1);
  x.assign(std::vector<double>(count, 1));
  guarded<A> weight(count);
  weight.assign(std::vector<double>(count, 1.0 / 3));
  guarded_matrix<A> y(1, 1);
  const tigon::detail::weighted_rows<T> sum{x.view().data, 1, weight.data(), 1, count};
  tigon::for_rows<B, A>(tigon::default_context(), 1, 1, [=, to = y.view()] TIGON_FN(auto row) {
    row.map(reads(sum), writes(to), [](auto v) { return v; });
  });
  const double want = count * to_f64(weight[0]);
  EXPECT_NEAR(to_f64(y(0, 0)), want, want * (std::same_as<A, double> ? 4e-15 : 2e-6));
}

}  // namespace
