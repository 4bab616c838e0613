// The contract of include/tigon/ops/softmax.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/softmax.hpp>

#include "support/backends.hpp"
#include "support/complex_step.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

/// y by its definition, for any number type; no maximum is taken off, so it is for moderate x only.
template <class X>
std::vector<X> reference(const std::vector<X>& x, std::size_t cols, double scale) {
  std::vector<X> y;
  for (std::size_t row = 0; row < x.size(); row += cols) {
    std::conditional_t<std::same_as<X, double>, long double, X> sum = 0;
    for (std::size_t j = 0; j < cols; ++j) sum += exp(scale * x[row + j]);
    for (std::size_t j = 0; j < cols; ++j) y.push_back(exp(scale * x[row + j]) / static_cast<X>(sum));
  }
  return y;
}

/// dx by its definition, from the stored y.
std::vector<double> gradient(const std::vector<double>& dy, const std::vector<double>& y, std::size_t cols,
                             double scale) {
  std::vector<double> dx;
  for (std::size_t row = 0; row < y.size(); row += cols) {
    long double delta = 0, sum = 0;
    for (std::size_t j = 0; j < cols; ++j) delta += (long double)dy[row + j] * y[row + j], sum += y[row + j];
    delta /= sum;
    for (std::size_t j = 0; j < cols; ++j)
      dx.push_back(static_cast<double>(scale * y[row + j] * (dy[row + j] - delta)));
  }
  return dx;
}

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type forward_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
constexpr by_type gradient_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};

/// The smallest numbers of f16 are 2^-24 apart, whatever their size: what that is of 6e-4.
template <class T>
constexpr double smallest_step = std::same_as<T, tigon::float16> ? 0x1p-25 / 6e-4 : 0;

/// Every buffer at a guard page, outputs full of canaries.
template <class T>
struct problem {
  tigon::softmax_options opt;
  guarded_matrix<T> x, dy, y, dx;

  TIGON_TEST_NOINLINE explicit problem(shape s, double scale = 1, guard side = guard::behind)
      : opt{.scale = scale},
        x(random_matrix<T>(s, 1, side, {.deviation = 2})),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    tigon::softmax_forward<B>(x, to, opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    tigon::softmax_backward<B>(dy, y, to, opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(y.view(), ctx);
    backward<B>(dx.view(), ctx);
  }
};

template <class On>
class softmax : public testing::Test {};
TYPED_TEST_SUITE(softmax, every_pair, names);

TYPED_TEST(softmax, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : row_shapes<B, T>())
    for (const double scale : {1.0, 0.125, 3.0})
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", scale " << scale << ", " << side);
        problem<T> p(s, scale, side);
        p.template both_ways<B>();
        const comparison with{.scale = s.cols == 1 ? scale * 3 : 0,
                              .may_be_empty = s.rows == 0};  // one column: dx is 0
        EXPECT_TRUE(close(p.y.f64(), reference(p.x.f64(), s.cols, scale), forward_bound.of<T>(), with));
        EXPECT_TRUE(close(p.dx.f64(), gradient(p.dy.f64(), p.y.f64(), s.cols, scale), gradient_bound.of<T>(), with));
        EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
      }
}

/// Its parent with blocks so small that moderate rows have many.
template <class Parent>
struct small_blocks : Parent {
  using parent = Parent;
  static constexpr tigon::backend_info info = Parent::info;
  using overrides = tigon::op_list<>;
  static constexpr tigon::row_tuning row = [] {
    tigon::row_tuning tuning = Parent::row;
    tuning.block_cols = 256, tuning.cpu.in_place_cols = 512;
    return tuning;
  }();
};

// Rows of several blocks, each with a maximum of its own; of more columns than the most blocks of the usual width.
TYPED_TEST(softmax, wide_rows_keep_their_error) {
  using B = small_blocks<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  constexpr std::size_t block = B::row.block_cols, most = tigon::detail::part_sums<float>::most;
  for (const shape s :
       {shape{3, block - 1, 2}, {2, block + 1, 1}, {3, 3 * block + 5}, {2, 100003}, {1, most * block + 9}})
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(testing::Message() << s << ", in place " << in_place);
      problem<T> p(s, 1.5);
      // The maximum wanders, and one block in three is almost nothing.
      for (std::size_t i = 0; i < s.rows; ++i)
        for (std::size_t j = 0; j < s.cols; ++j)
          p.x(i, j) =
              from_f64<T>(to_f64(p.x(i, j)) + static_cast<double>(j / block % 5) - (j / block % 3 == 1 ? 30 : 0));
      const auto wanted = reference(p.x.f64(), s.cols, 1.5);
      if (in_place)
        p.template forward<B>(p.x.view()), p.y.assign(p.x.f64());
      else
        p.template forward<B>(p.y.view());
      EXPECT_TRUE(close(p.y.f64(), wanted, forward_bound.of<T>(), {.scale = smallest_step<T>}));
      p.template backward<B>(p.dx.view());
      EXPECT_TRUE(close(p.dx.f64(), gradient(p.dy.f64(), p.y.f64(), s.cols, 1.5), gradient_bound.of<T>(),
                        {.scale = smallest_step<T>}));
      EXPECT_TRUE(p.x.padding_intact() && p.y.padding_intact() && p.dx.padding_intact());
    }
}

// Blocks that rise by less than what they may be above their row's largest number so far, by that, and by more.
TYPED_TEST(softmax, rising_blocks_keep_their_error) {
  using B = small_blocks<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  constexpr std::size_t block = B::row.block_cols, cols = 9 * block + 3;
  for (const double step : {0.25, 1.0, 2.0, 40.0})
    for (const double scale : {1.0, 0.25}) {
      SCOPED_TRACE(testing::Message() << "step " << step << ", scale " << scale);
      problem<T> p({2, cols}, scale);
      for (std::size_t j = 0; j < cols; ++j) {
        p.x(0, j) = from_f64<T>(step * static_cast<double>(j / block) + static_cast<double>(j % 16) / 16);
        p.x(1, j) = from_f64<T>(-to_f64(p.x(0, j)));
      }
      const auto wanted = reference(p.x.f64(), cols, scale);
      p.template forward<B>(p.y.view());
      EXPECT_TRUE(close(p.y.f64(), wanted, forward_bound.of<T>(), {.scale = smallest_step<T>}));
    }
}

// What is odd in one block shows in all, and a block of only -inf is a block of zeros.
TYPED_TEST(softmax, blocks_share_what_is_odd) {
  using B = small_blocks<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  constexpr std::size_t block = B::row.block_cols, cols = 3 * block + 5;
  for (const std::size_t column : {std::size_t{3}, block + 7, cols - 1})
    for (const double bad : {nan, infinity}) {
      problem<T> p({2, cols});
      p.x(0, column) = from_f64<T>(bad);
      p.template forward<B>(p.y.view());
      for (const std::size_t j : {std::size_t{0}, block - 1, block, 2 * block + 1, cols - 1}) {
        EXPECT_TRUE(std::isnan(to_f64(p.y(0, j)))) << bad << " in column " << column << " at " << j;
        EXPECT_FALSE(std::isnan(to_f64(p.y(1, j))));
      }
    }
  for (const std::size_t first : {std::size_t{0}, block, 3 * block}) {
    problem<T> p({1, cols});
    for (std::size_t j = first; j < std::min(cols, first + block); ++j) p.x(0, j) = from_f64<T>(-infinity);
    p.template forward<B>(p.y.view());
    double sum = 0;
    for (std::size_t j = 0; j < cols; ++j) {
      const double y = to_f64(p.y(0, j));
      ASSERT_TRUE(j >= first && j < first + block ? y == 0 : y >= 0) << j;
      sum += y;
    }
    EXPECT_NEAR(sum, 1, error_scale * (sizeof(T) > 2 ? 1e-6 : 4e-3));
  }
  problem<T> nothing({1, cols});
  std::fill_n(&nothing.x(0, 0), cols, from_f64<T>(-infinity));
  nothing.template forward<B>(nothing.y.view());
  for (std::size_t j = 0; j < cols; ++j) ASSERT_TRUE(std::isnan(to_f64(nothing.y(0, j))));
}

// A scale is what multiplying x by it would be, and the steepest one still is a distribution.
TYPED_TEST(softmax, scales_from_nothing_to_a_step) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> halved({2, 37}, 0.5), p({2, 37});
  std::vector<double> x = halved.x.f64();
  for (double& v : x) v *= 0.5;  // exact
  p.x.assign(x);
  halved.template forward<B>(halved.y.view()), p.template forward<B>(p.y.view());
  EXPECT_EQ(bits_of(halved.y), bits_of(p.y));
  problem<T> flat({2, 37}, 1e-30), step({2, 37}, 1e30);
  flat.template forward<B>(flat.y.view()), step.template both_ways<B>();
  const auto steep = step.x.f64();
  const double top = *std::max_element(steep.begin(), steep.begin() + 37);
  const double more = (error_scale - 1) * forward_bound.of<T>();  // exact, unless a backend promises less
  for (std::size_t j = 0; j < 37; ++j) {
    EXPECT_NEAR(to_f64(flat.y(0, j)), to_f64(from_f64<T>(1.0 / 37)), more / 37);
    EXPECT_NEAR(to_f64(step.y(0, j)), to_f64(step.x(0, j)) == top ? 1 : 0, more);
    EXPECT_FALSE(std::isnan(to_f64(step.dx(0, j))));
  }
}

TYPED_TEST(softmax, results_may_overwrite_inputs) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{3, 4 * lanes<B, T> + 3, 2};
  problem<T> apart(s), p(s), over_dy(s);
  apart.template both_ways<B>(), over_dy.template forward<B>(over_dy.y.view());
  over_dy.template backward<B>(over_dy.dy.view());
  EXPECT_EQ(bits_of(over_dy.dy), bits_of(apart.dx));
  p.template forward<B>(p.y.view());
  p.template backward<B>(p.y.view());
  EXPECT_EQ(bits_of(p.y), bits_of(apart.dx));
  p.template forward<B>(p.x.view());
  EXPECT_EQ(bits_of(p.x), bits_of(apart.y));
}

TYPED_TEST(softmax, a_shift_changes_nothing_and_nothing_overflows) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const std::size_t n = 2 * lanes<B, T> + 3;
  problem<T> near({1, n}), far({1, n});
  std::vector<double> x(n);
  for (std::size_t j = 0; j < n; ++j) x[j] = -static_cast<double>(j % 8);
  near.x.assign(x);
  for (double& v : x) v += 248;  // exact in every type
  far.x.assign(x);
  near.template forward<B>(near.y.view()), far.template forward<B>(far.y.view());
  EXPECT_EQ(bits_of(near.y), bits_of(far.y));
}

// Thirds in bf16, rounded up and down, add up to 1.002 and 0.996: by so much all of dy, which is large, would be in dx.
TYPED_TEST(softmax, backward_divides_by_the_sum_of_y) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const double third : {0.333984375, 0.33203125}) {
    problem<T> p({1, 3});
    p.y.assign({third, third, third}), p.dy.assign({1000, 1004, 1012});
    p.template backward<B>(p.dx.view());
    EXPECT_TRUE(close(p.dx.f64(), gradient(p.dy.f64(), p.y.f64(), 3, 1), gradient_bound.of<T>())) << third;
  }
  problem<T> none({1, 3});
  none.y.assign({0, 0, 0});
  none.template backward<B>(none.dx.view());
  EXPECT_EQ(none.dx.f64(), (std::vector<double>{0, 0, 0}));
}

TYPED_TEST(softmax, bad_rows_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = lanes<B, T>;
  const shape s{4, 2 * n + 3};
  problem<T> clean(s);
  clean.template forward<B>(clean.y.view());
  for (const std::size_t column : {std::size_t{0}, n - 1, n, s.cols - 1})
    for (const double bad : {nan, infinity, -infinity}) {
      SCOPED_TRACE(testing::Message() << bad << " in column " << column);
      problem<T> p(s);
      p.x(1, column) = from_f64<T>(bad);
      p.template forward<B>(p.y.view());
      for (std::size_t j = 0; j < s.cols; ++j) {
        for (const std::size_t i : {0u, 2u, 3u}) ASSERT_EQ(to_f64(p.y(i, j)), to_f64(clean.y(i, j)));
        const double y = to_f64(p.y(1, j));
        ASSERT_TRUE(bad == -infinity ? (j == column ? y == 0 : y > 0 && y < 1) : std::isnan(y)) << j << ": " << y;
      }
    }
  problem<T> nothing(s);
  std::fill_n(&nothing.x(1, 0), s.cols, from_f64<T>(-infinity));
  nothing.template forward<B>(nothing.y.view());
  for (std::size_t j = 0; j < s.cols; ++j) EXPECT_TRUE(std::isnan(to_f64(nothing.y(1, j))));
}

TYPED_TEST(softmax, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001, 4};
  problem<T> p(s), small({3, s.cols, s.padding});
  p.template both_ways<B>();
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
  for (const std::size_t first : {std::size_t{0}, s.rows - 3}) {
    const auto part = [&](auto& m) { return m.view().rows_from(first, 3); };
    tigon::softmax_forward<B>(part(p.x), small.y.view());
    tigon::softmax_backward<B>(part(p.dy), part(p.y), small.dx.view());
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        ASSERT_EQ(to_f64(p.y(first + i, j)), to_f64(small.y(i, j))) << "row " << first + i << ", column " << j;
        ASSERT_EQ(to_f64(p.dx(first + i, j)), to_f64(small.dx(i, j))) << "row " << first + i << ", column " << j;
      }
  }
}

TYPED_TEST(softmax, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({100, 2049});  // four tasks
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.y.clear(), p.dx.clear();
    p.template both_ways<B>(ctx);
    return bits_of(p.y, p.dx);
  }));
}

template <class On>
class softmax_gradient : public testing::Test {};
TYPED_TEST_SUITE(softmax_gradient, pairs_of<double>, names);

TYPED_TEST(softmax_gradient, is_that_of_a_complex_step) {
  problem<double> p({3, 11}, 0.7);
  p.template both_ways<typename TypeParam::backend>();
  const auto loss = [&](const auto& z) {
    const auto y = reference(z, 11, 0.7);
    auto sum = y[0] * 0.0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += p.dy.f64()[i] * y[i];
    return sum;
  };
  EXPECT_TRUE(close(p.dx.f64(), complex_step(loss, p.x.f64(), probes(33)), 4e-15));
}

/// The doors, which are the same for every backend: refused before the first write.
class softmax_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  problem<float> p{{3, 8, 2}};
  const view x = p.x.view(), y = p.y.view(), dy = p.dy.view(), dx = p.dx.view();
};

TEST_F(softmax_doors, forward_refuses) {
  const auto forward = [](view x, view y, double scale = 1) { tigon::softmax_forward(x, y, {.scale = scale}); };
  EXPECT_TIGON_ERROR(forward({x.data, 3, 0, 8}, {y.data, 3, 0, 8}), shape,
                     "softmax_forward: cols is 0; expected at least 1", p.y);
  EXPECT_TIGON_ERROR(forward({x.data, 3, 8, 7}, y), stride, "softmax_forward: x is of row stride 7", p.y);
  EXPECT_TIGON_ERROR(forward({nullptr, 3, 8, 8}, y), shape, "softmax_forward: x is a null pointer", p.y);
  EXPECT_TIGON_ERROR(forward(x, {y.data, 2, 8, 10}), shape, "softmax_forward: y is 2 x 8; expected 3 x 8", p.y);
  EXPECT_TIGON_ERROR(forward(x, {y.data, 3, 8, 7}), stride, "softmax_forward: y is of row stride 7", p.y);
  EXPECT_TIGON_ERROR(forward(x, {nullptr, 3, 8, 8}), shape, "softmax_forward: y is a null pointer", p.y);
  for (const double bad : {0.0, -1.0, nan, infinity, 1e39})  // in f32 the last is infinite
    EXPECT_TIGON_ERROR(forward(x, y, bad), argument, "softmax_forward: scale is", p.y);
  EXPECT_TIGON_ERROR(forward(x.rows_from(0, 2), x.rows_from(1, 2)), alias,
                     "softmax_forward: y overlaps x; expected the same buffer or no common memory", p.x);
}

TEST_F(softmax_doors, forward_needs_the_workspace_that_it_names) {
  for (const std::size_t threads : {1u, 3u})
    with_workspace_of(
        64,
        [&](context& of_size) {
          const std::size_t bytes = tigon::softmax_workspace<tigon::default_backend, float>(8, of_size);
          const auto call = [&](context& ctx) { tigon::softmax_forward(x, y, {}, ctx); };
          p.y.clear();
          EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call, threads), workspace, "softmax_forward: workspace is of",
                             p.y);
          with_workspace_of(bytes, call, threads);
          EXPECT_FALSE(p.y.untouched());
        },
        threads);
}

TEST_F(softmax_doors, backward_refuses) {
  const auto backward = [](view dy, view y, view dx, double scale = 1) {
    tigon::softmax_backward(dy, y, dx, {.scale = scale});
  };
  EXPECT_TIGON_ERROR(backward({dy.data, 3, 0, 8}, {y.data, 3, 0, 8}, {dx.data, 3, 0, 8}), shape,
                     "softmax_backward: cols is 0; expected at least 1", p.dx);
  EXPECT_TIGON_ERROR(backward(dy, {y.data, 3, 8, 7}, dx), stride, "softmax_backward: y is of row stride 7", p.dx);
  EXPECT_TIGON_ERROR(backward({dy.data, 2, 8, 10}, y, dx), shape, "softmax_backward: dy is 2 x 8; expected 3 x 8",
                     p.dx);
  EXPECT_TIGON_ERROR(backward(dy, y, {dx.data, 3, 7, 10}), shape, "softmax_backward: dx is 3 x 7; expected 3 x 8",
                     p.dx);
  EXPECT_TIGON_ERROR(backward(dy, y, {dx.data, 3, 8, 7}), stride, "softmax_backward: dx is of row stride 7", p.dx);
  for (const double bad : {0.0, nan, 1e39})
    EXPECT_TIGON_ERROR(backward(dy, y, dx, bad), argument, "softmax_backward: scale is", p.dx);
  EXPECT_TIGON_ERROR(backward(dy.rows_from(0, 2), y.rows_from(0, 2), dy.rows_from(1, 2)), alias,
                     "softmax_backward: dx overlaps dy", p.dy);
  EXPECT_TIGON_ERROR(backward(dy.rows_from(0, 2), y.rows_from(0, 2), y.rows_from(1, 2)), alias,
                     "softmax_backward: dx overlaps y", p.y);
}

TEST_F(softmax_doors, accept_rows_between_rows_of_another_stride) {
  // Rows of 8 in one buffer: those of x at 0, 3, 6, those of y at 1, 7, 13, those of dy at 2, 5, 8, of dx at 4, 10, 16.
  guarded<float> buffer(8 * 17);
  const auto rows = [&](std::size_t first, std::size_t step) {
    return view(buffer.data() + first * 8, 3, 8, step * 8);
  };
  const view x_rows = rows(0, 3), y_rows = rows(1, 6), dy_rows = rows(2, 3), dx_rows = rows(4, 6);
  for (std::size_t i = 0; i < 3; ++i)
    std::copy_n(x.row(i), 8, x_rows.row(i)), std::copy_n(dy.row(i), 8, dy_rows.row(i));
  // One element in common: the last of x and the first of y's last row, the first of x's last row and the last of y's
  // first one.
  for (const view late : {view(buffer.data() + 15, 3, 8, 20), view(buffer.data() + 41, 3, 8, 32)})
    EXPECT_TIGON_ERROR(tigon::softmax_forward<tigon::default_backend>(x_rows, late), alias,
                       "softmax_forward: y overlaps x", buffer);
  tigon::softmax_forward(x, y), tigon::softmax_backward(dy, y, dx);
  tigon::softmax_forward(x_rows, y_rows), tigon::softmax_backward(dy_rows, y_rows, dx_rows);
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 8; ++j) {
      ASSERT_EQ(y_rows.row(i)[j], y.row(i)[j]);
      ASSERT_EQ(dx_rows.row(i)[j], dx.row(i)[j]);
    }
}

TEST_F(softmax_doors, one_row_has_no_stride) {
  tigon::softmax_forward(x.rows_from(0, 1), y.rows_from(0, 1));
  tigon::softmax_forward(view(x.data, 1, 8, 8), view(x.data, 1, 8, 1000));
  for (std::size_t j = 0; j < 8; ++j) ASSERT_EQ(x.row(0)[j], y.row(0)[j]);
}

}  // namespace
