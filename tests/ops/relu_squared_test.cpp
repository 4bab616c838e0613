// The contract of include/tigon/ops/relu_squared.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/relu_squared.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::bfloat16, tigon::float16;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type bound{.f32 = 2e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1e-15};
constexpr by_type from_y_bound{.f32 = 2e-7, .bf16 = 6e-3, .f16 = 8e-4, .f64 = 1e-15};

/// Every buffer at a guard page, outputs full of canaries.
template <class T>
struct problem {
  tigon::relu_squared_options opt;
  guarded_matrix<T> x, dy, y, dx;

  TIGON_TEST_NOINLINE explicit problem(shape s, bool from_y = false, guard side = guard::behind)
      : opt{.from_y = from_y},
        x(random_matrix<T>(s, 1, side, {.deviation = 2})),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side) {}

  guarded_matrix<T>& saved() { return opt.from_y ? y : x; }
  template <class B>
  TIGON_TEST_NOINLINE void forward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    tigon::relu_squared_forward<B>(x, to, opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    tigon::relu_squared_backward<B>(dy, saved(), to, opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(y.view(), ctx);
    backward<B>(dx.view(), ctx);
  }

  /// y by its definition, and dx by central differences of it, which are exact for a parabola away from its end.
  struct results {
    std::vector<double> y, dx;
  };
  TIGON_TEST_NOINLINE results wanted() const {
    const auto value = [](double v) { return v > 0 ? v * v : 0.0; };
    results out;
    const auto xv = x.f64(), dv = dy.f64();
    for (std::size_t k = 0; k < xv.size(); ++k) {
      const double step = std::abs(xv[k]) / 2;
      out.y.push_back(value(xv[k]));
      out.dx.push_back(xv[k] == 0 ? 0 : dv[k] * (value(xv[k] + step) - value(xv[k] - step)) / (2 * step));
    }
    return out;
  }
};

template <class On>
class relu_squared : public testing::Test {};
TYPED_TEST_SUITE(relu_squared, every_pair, names);

TYPED_TEST(relu_squared, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  auto shapes = row_shapes<B, T>();
  shapes.push_back({3, 0});
  for (const shape s : shapes)
    for (const bool from_y : {false, true}) {
      const auto wanted = problem<T>(s).wanted();
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << (from_y ? ", from y, " : ", ") << side);
        problem<T> p(s, from_y, side);
        p.template both_ways<B>();
        const comparison with{.may_be_empty = s.rows * s.cols == 0};
        EXPECT_TRUE(close(p.y.f64(), wanted.y, bound.of<T>(), with));
        EXPECT_TRUE(close(p.dx.f64(), wanted.dx, (from_y ? from_y_bound : bound).template of<T>(), with));
        EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
      }
    }
}

TYPED_TEST(relu_squared, results_may_overwrite_inputs) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{3, 4 * lanes<B, T> + 3, 2};
  for (const bool from_y : {false, true}) {
    problem<T> apart(s, from_y), over_dy(s, from_y), over_saved(s, from_y);
    apart.template both_ways<B>();
    over_dy.template forward<B>(over_dy.y.view()), over_saved.template forward<B>(over_saved.y.view());
    over_dy.template backward<B>(over_dy.dy.view()), over_saved.template backward<B>(over_saved.saved().view());
    EXPECT_EQ(bits_of(over_dy.dy), bits_of(apart.dx));
    EXPECT_EQ(bits_of(over_saved.saved()), bits_of(apart.dx));
    if (!from_y) continue;
    problem<T> over_x(s, from_y);
    over_x.template forward<B>(over_x.x.view());
    EXPECT_EQ(bits_of(over_x.x), bits_of(apart.y));
  }
}

TYPED_TEST(relu_squared, infinities_zeros_and_nan) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t before : {std::size_t{0}, 4 * lanes<B, T>})  // in the tail of a row, and in its vectors
    for (const bool from_y : {false, true}) {
      problem<T> p({1, 5 + before + (before == 0 ? 0 : 4 * lanes<B, T>)}, from_y);
      const std::vector<double> x{nan, -infinity, -0.0, 0, infinity}, y{nan, 0, 0, 0, infinity};
      for (std::size_t j = 0; j < 5; ++j) p.x(0, before + j) = from_f64<T>(x[j]), p.dy(0, before + j) = from_f64<T>(2);
      p.template both_ways<B>();
      for (std::size_t j = 0; j < 5; ++j) {
        SCOPED_TRACE(testing::Message() << x[j] << " in column " << before + j << (from_y ? ", from y" : ""));
        for (const double came : {to_f64(p.y(0, before + j)), to_f64(p.dx(0, before + j))})
          EXPECT_TRUE(came == y[j] || (std::isnan(came) && std::isnan(y[j]))) << came;
      }
    }
}

TYPED_TEST(relu_squared, twice_dy_may_be_too_large_to_store) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({1, 2});
  const double large = std::same_as<T, float16> ? 49152 : std::same_as<T, double> ? 0x1.8p1023 : 0x1.8p127;
  p.x.assign({0.25, 0.5}), p.dy.assign({large, large});
  p.template both_ways<B>();
  EXPECT_EQ(to_f64(p.dx(0, 0)), large / 2);
  EXPECT_EQ(to_f64(p.dx(0, 1)), large);
}

TYPED_TEST(relu_squared, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001, 4};
  for (const bool from_y : {false, true}) {
    problem<T> p(s, from_y), small({3, s.cols, s.padding});
    p.template both_ways<B>();
    EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
    for (const std::size_t first : {std::size_t{0}, s.rows - 3}) {
      const auto part = [&](auto& m) { return m.view().rows_from(first, 3); };
      tigon::relu_squared_forward<B>(part(p.x), small.y.view(), p.opt);
      tigon::relu_squared_backward<B>(part(p.dy), part(p.saved()), small.dx.view(), p.opt);
      for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = 0; j < s.cols; ++j) {
          ASSERT_EQ(to_f64(p.y(first + i, j)), to_f64(small.y(i, j))) << "row " << first + i << ", column " << j;
          ASSERT_EQ(to_f64(p.dx(first + i, j)), to_f64(small.dx(i, j))) << "row " << first + i << ", column " << j;
        }
    }
  }
}

TYPED_TEST(relu_squared, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const bool from_y : {false, true}) {
    problem<T> p({100, 2049}, from_y);  // four tasks
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.y.clear(), p.dx.clear();
      p.template both_ways<B>(ctx);
      return bits_of(p.y, p.dx);
    }));
  }
}

TEST(relu_squared_wide, rows_have_no_longest_width) {
  for (const std::size_t cols : {65537u, 200000u}) {
    problem<float> p({2, cols});
    p.both_ways<tigon::default_backend>();
    const auto wanted = p.wanted();
    EXPECT_TRUE(close(p.y.f64(), wanted.y, bound.f32));
    EXPECT_TRUE(close(p.dx.f64(), wanted.dx, bound.f32));
  }
}

/// The doors, which are the same for every backend: refused before the first write.
class relu_squared_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  problem<float> p{{3, 8, 2}};
  const view x = p.x.view(), y = p.y.view(), dy = p.dy.view(), dx = p.dx.view();
};

TEST_F(relu_squared_doors, forward_refuses) {
  const auto forward = [](view x, view y, bool from_y = false) {
    tigon::relu_squared_forward(x, y, {.from_y = from_y});
  };
  EXPECT_TIGON_ERROR(forward({x.data, 2, 8, 10}, y), shape, "relu_squared_forward: x is 2 x 8; expected 3 x 8", p.y);
  EXPECT_TIGON_ERROR(forward({x.data, 3, 7, 10}, y), shape, "relu_squared_forward: x is 3 x 7; expected 3 x 8", p.y);
  EXPECT_TIGON_ERROR(forward({x.data, 3, 8, 7}, y), stride, "relu_squared_forward: x is of row stride 7", p.y);
  EXPECT_TIGON_ERROR(forward({nullptr, 3, 8, 8}, y), shape, "relu_squared_forward: x is a null pointer", p.y);
  EXPECT_TIGON_ERROR(forward(x, {y.data, 3, 8, 7}), stride, "relu_squared_forward: y is of row stride 7", p.y);
  EXPECT_TIGON_ERROR(forward(x, {nullptr, 3, 8, 8}), shape, "relu_squared_forward: y is a null pointer", p.y);
  EXPECT_TIGON_ERROR(forward(x, x), alias, "relu_squared_forward: y overlaps x; expected no common memory", p.x);
  EXPECT_TIGON_ERROR(forward(x.rows_from(0, 2), x.rows_from(1, 2), true), alias,
                     "relu_squared_forward: y overlaps x; expected the same buffer or no common memory", p.x);
}

TEST_F(relu_squared_doors, backward_refuses) {
  const auto backward = [](view dy, view saved, view dx, bool from_y = false) {
    tigon::relu_squared_backward(dy, saved, dx, {.from_y = from_y});
  };
  EXPECT_TIGON_ERROR(backward({dy.data, 2, 8, 10}, x, dx), shape, "relu_squared_backward: dy is 2 x 8; expected 3 x 8",
                     p.dx);
  EXPECT_TIGON_ERROR(backward(dy, {x.data, 3, 7, 10}, dx), shape, "relu_squared_backward: x is 3 x 7; expected 3 x 8",
                     p.dx);
  EXPECT_TIGON_ERROR(backward(dy, {y.data, 3, 7, 10}, dx, true), shape,
                     "relu_squared_backward: y is 3 x 7; expected 3 x 8", p.dx);
  EXPECT_TIGON_ERROR(backward(dy, {x.data, 3, 8, 7}, dx), stride, "relu_squared_backward: x is of row stride 7", p.dx);
  EXPECT_TIGON_ERROR(backward(dy, x, {dx.data, 3, 8, 7}), stride, "relu_squared_backward: dx is of row stride 7", p.dx);
  EXPECT_TIGON_ERROR(backward(dy, x, {nullptr, 3, 8, 8}), shape, "relu_squared_backward: dx is a null pointer", p.dx);
  EXPECT_TIGON_ERROR(backward(dy.rows_from(0, 2), x.rows_from(0, 2), dy.rows_from(1, 2)), alias,
                     "relu_squared_backward: dx overlaps dy", p.dy);
  EXPECT_TIGON_ERROR(backward(dy.rows_from(0, 2), x.rows_from(0, 2), x.rows_from(1, 2)), alias,
                     "relu_squared_backward: dx overlaps x", p.x);
}

}  // namespace
