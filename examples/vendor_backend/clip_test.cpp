// The contract of acme/clip.hpp, with the buffers, shapes and comparisons of tigon's own tests.
#include <acme/clip.hpp>

#include <gtest/gtest.h>

#include <cmath>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

namespace {

using namespace tigon::test;

constexpr double limit = 0.75;  // every element type holds it

template <class T>
struct problem {
  guarded_matrix<T> x, dy, y, dx;

  explicit problem(shape s, guard side = guard::behind)
      : x(random_matrix<T>(s, 1, side)),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side) {}

  template <class B>
  void both_ways(tigon::context& ctx = tigon::default_context()) {
    acme::clip_forward<B>(x, y.view(), limit, ctx);
    acme::clip_backward<B>(dy, x, dx.view(), limit, ctx);
  }
};

template <class On>
class clip : public testing::Test {};
TYPED_TEST_SUITE(clip, every_pair, names);

TYPED_TEST(clip, is_its_definition_and_keeps_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : row_shapes<B, T>())
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      problem<T> p(s, side);
      p.template both_ways<B>();
      for (std::size_t i = 0; i < s.rows; ++i)
        for (std::size_t j = 0; j < s.cols; ++j) {
          const double x = to_f64(p.x(i, j));
          ASSERT_EQ(to_f64(p.y(i, j)), std::min(limit, std::max(-limit, x)));
          ASSERT_EQ(to_f64(p.dx(i, j)), std::abs(x) < limit ? to_f64(p.dy(i, j)) : 0);
        }
      EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
    }
}

TYPED_TEST(clip, keeps_nan_and_ends_infinity) {
  using B = typename TypeParam::backend;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  problem<typename TypeParam::element> p({1, 3});
  p.x.assign({nan, infinity, -infinity});
  p.template both_ways<B>();
  EXPECT_TRUE(std::isnan(to_f64(p.y(0, 0))));
  EXPECT_EQ(to_f64(p.y(0, 1)), limit);
  EXPECT_EQ(to_f64(p.y(0, 2)), -limit);
  EXPECT_EQ(p.dx.f64(), (std::vector<double>{0, 0, 0}));
}

TYPED_TEST(clip, results_may_overwrite_inputs) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> apart({3, 4 * lanes<B, T> + 3, 2}), p({3, 4 * lanes<B, T> + 3, 2});
  apart.template both_ways<B>();
  acme::clip_backward<B>(p.dy, p.x, p.dy.view(), limit);
  acme::clip_forward<B>(p.x, p.x.view(), limit);
  EXPECT_EQ(bits_of(p.x, p.dy), bits_of(apart.y, apart.dx));
}

TYPED_TEST(clip, bits_do_not_depend_on_threads) {
  problem<typename TypeParam::element> p({70, 2049});
  EXPECT_TRUE(same_bits_for_any_threads([&](tigon::context& ctx) {
    p.y.clear(), p.dx.clear();
    p.template both_ways<typename TypeParam::backend>(ctx);
    return bits_of(p.y, p.dx);
  }));
}

template <class On>
class clip_norm : public testing::Test {};
TYPED_TEST_SUITE(clip_norm, every_pair, names);

// The same struct on acme's tiles, by tigon's driver, and from its definition.
TYPED_TEST(clip_norm, is_its_definition_by_both_drivers) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr by_type bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 1e-3, .f64 = 1e-14};
  auto shapes = row_shapes<B, T>();
  shapes.push_back({3, 9000, 2});  // of several tiles
  for (const shape s : shapes) {
    SCOPED_TRACE(testing::Message() << s);
    const comparison with{.may_be_empty = s.rows * s.cols == 0};
    problem<T> p(s), q(s);
    const double most = std::sqrt(static_cast<double>(s.cols));  // the norm of about half of the rows is larger
    std::vector<double> expected;
    for (std::size_t i = 0; i < s.rows; ++i) {
      double square = 0;
      for (std::size_t j = 0; j < s.cols; ++j) square += std::pow(to_f64(p.x(i, j)), 2);
      for (std::size_t j = 0; j < s.cols; ++j)
        expected.push_back(to_f64(p.x(i, j)) * std::min(1.0, most / std::sqrt(square)));
    }
    const std::size_t before = acme::copied_in;
    acme::clip_norm_forward<B>(p.x, p.y.view(), std::max(most, 0.5));
    EXPECT_EQ(acme::copied_in - before, 2 * s.rows * s.cols * sizeof(T));
    acme::clip_norm_forward<tigon::backends::highway>(q.x, q.y.view(), std::max(most, 0.5));
    EXPECT_EQ(acme::copied_in - before, 2 * s.rows * s.cols * sizeof(T)) << "not tigon's driver";
    EXPECT_TRUE(close(p.y.f64(), expected, bound.template of<T>(), with));
    EXPECT_TRUE(close(q.y.f64(), expected, bound.template of<T>(), with));
    EXPECT_TRUE(p.y.padding_intact());
  }
}

TYPED_TEST(clip, has_the_same_bits_by_both_drivers) {
  using B = typename TypeParam::backend;
  problem<typename TypeParam::element> p({3, 5000, 2}), q({3, 5000, 2});
  const std::size_t before = acme::copied_in;
  p.template both_ways<B>();
  EXPECT_EQ(acme::copied_in - before, 3 * 3 * 5000 * sizeof(typename TypeParam::element));
  q.template both_ways<tigon::backends::highway>();
  EXPECT_EQ(bits_of(p.y, p.dx), bits_of(q.y, q.dx));
}

TEST(clip_doors, refuse_before_the_first_write) {
  using B = TIGON_CONFORMANCE_BACKEND;
  using view = tigon::matrix_view<float>;
  problem<float> p({3, 8, 2});
  const view x = p.x.view(), y = p.y.view(), dy = p.dy.view(), dx = p.dx.view();
  EXPECT_TIGON_ERROR(acme::clip_forward<B>(view(x.data, 2, 8, 10), y, limit), shape,
                     "clip_forward: x is 2 x 8; expected 3 x 8", p.y);
  EXPECT_TIGON_ERROR(acme::clip_forward<B>(x, view(x.data + 8, 3, 8), limit), alias, "clip_forward: y overlaps x", p.x);
  EXPECT_TIGON_ERROR(acme::clip_forward<B>(x, y, 0), argument, "clip_forward: limit is 0", p.y);
  EXPECT_TIGON_ERROR(acme::clip_backward<B>(dy, x, dx, NAN), argument, "clip_backward: limit is nan", p.dx);
  EXPECT_TIGON_ERROR(acme::clip_backward<B>(dy, x, x, limit), alias, "clip_backward: dx overlaps x", p.x);
  EXPECT_TIGON_ERROR(acme::clip_backward<B>(view(dy.data, 3, 7, 10), x, dx, limit), shape, "dy is 3 x 7", p.dx);
}

}  // namespace
