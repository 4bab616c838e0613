// The contract of include/tigon/ops/rms_norm.hpp, promise by promise, on every backend and in every element type.
// A model for the tests of other operators: a reference, a problem, one test a promise.
#include <gtest/gtest.h>

#include <tigon/ops/rms_norm.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/row_norm.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::accumulator_t, tigon::bfloat16, tigon::casting, tigon::context, tigon::float16;

// In units of |reference| + its root mean square; at most ten times the worst that was seen. One rounding in 16 bits
// costs up to 4e-3 (bf16) and 5e-4 (f16), the second one of casting::llama as much again.
constexpr by_type forward_bound{.f32 = 4e-7, .bf16 = 6e-3, .f16 = 8e-4, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 1e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-14};

struct variant {
  const char* name;
  bool affine;
  tigon::rms_norm_options opt;
};
const variant variants[] = {
    {"llama", true, {.eps = 1e-5}},
    {"gemma", true, {.offset = 1, .casting = casting::gemma}},
    {"without a weight", false, {.offset = 3, .casting = casting::none}},
};

template <class T, class W = T>
struct problem : norm_buffers<T, W> {
  using norm_buffers<T, W>::x, norm_buffers<T, W>::dy, norm_buffers<T, W>::y, norm_buffers<T, W>::dx;
  using norm_buffers<T, W>::w, norm_buffers<T, W>::dw, norm_buffers<T, W>::rstd;
  variant v;

  TIGON_TEST_NOINLINE explicit problem(shape s, variant of = variants[0], guard side = guard::behind)
      : norm_buffers<T, W>(s, of.affine, side), v(of) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    if (v.affine)
      tigon::rms_norm_forward<B>(x, w, y.view(), rstd, v.opt, ctx);
    else
      tigon::rms_norm_forward<B>(x, absent, y.view(), rstd, v.opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    if (v.affine)
      tigon::rms_norm_backward<B>(dy, x, w, rstd, to, dw, v.opt, ctx);
    else
      tigon::rms_norm_backward<B>(dy, x, absent, rstd, to, absent, v.opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(dx.view(), ctx);
  }

  std::vector<guarded<W>*> gradients() { return v.affine ? std::vector{&dw} : std::vector<guarded<W>*>{}; }
  void accumulate() { v.opt.dw = tigon::gradient::accumulate; }
  std::vector<double> factor() const { return norm_buffers<T, W>::factor(v.opt.offset); }
  TIGON_TEST_NOINLINE norm_reference wanted() const { return {x.f64(), factor(), dy.f64(), v.opt.eps}; }
};

template <class On>
class rms_norm : public testing::Test {};
TYPED_TEST_SUITE(rms_norm, every_pair, names);

TYPED_TEST(rms_norm, forward_keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : row_shapes<B, T>())
    for (const variant& v : variants)
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v, side);
        p.template forward<B>();
        EXPECT_TRUE(close(p.y.f64(), p.wanted().y(), forward_bound.of<T>(), {.may_be_empty = s.rows == 0}));
        EXPECT_TRUE(p.y.padding_intact());
      }
}

TYPED_TEST(rms_norm, casting_decides_where_is_rounded) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  // One row: its share is all of dw. Of a row of five columns backward computes rstd again, in f64.
  for (const std::size_t cols : {std::size_t{5}, 4 * lanes<B, T> + 3})
    for (const variant& v : variants) {
      SCOPED_TRACE(testing::Message() << cols << " columns, " << v.name);
      problem<T> p({1, cols}, v);
      p.template both_ways<B>();
      for (std::size_t j = 0; j < cols; ++j) {
        A normalised = static_cast<A>(p.x(0, j)) * p.rstd[0];
        if (v.opt.casting == casting::llama) normalised = static_cast<A>(static_cast<T>(normalised));
        ASSERT_EQ(to_f64(p.y(0, j)), to_f64(static_cast<T>(normalised * static_cast<A>(p.factor()[j]))));
        if (v.affine && sizeof(T) == 2) {
          ASSERT_EQ(to_f64(p.dw[j]), to_f64(static_cast<T>(static_cast<A>(p.dy(0, j)) * normalised)));
        }
      }
    }
}

TYPED_TEST(rms_norm, backward_differentiates_the_reference) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  auto shapes = row_shapes<B, T>();
  shapes.insert(shapes.end(), {{3, 2}, {3, 3}, {5, 8, 1}, {3, 9}});  // few columns: terms of dx that nearly cancel
  for (const shape s : shapes)
    for (const variant& v : variants) {
      const auto at_x = probes(s.rows * s.cols), at_w = probes(v.affine ? s.cols : 0);
      const norm_reference wanted = problem<T>(s, v).wanted();
      const auto dx = wanted.dx(at_x), dw = wanted.dfactor(at_w);
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v, side);
        p.template both_ways<B>();
        // In a row of one column the terms of dx cancel but for eps. There is nothing wider than f64 to make it in, and
        // what is left is too small for the digits of f16.
        const double terms = s.cols > 1                 ? 0
                             : std::same_as<T, double>  ? p.dx_terms(v.opt.offset)
                             : std::same_as<T, float16> ? 0x1p-14
                                                        : 0;
        EXPECT_TRUE(
            close(pick(p.dx.f64(), at_x), dx, gradient_bound.of<T>(), {.scale = terms, .may_be_empty = s.rows == 0}));
        EXPECT_TRUE(close(pick(p.dw.f64(), at_w), dw, gradient_bound.of<T>(), {.may_be_empty = !v.affine}));
        EXPECT_TRUE(p.dx.padding_intact());
      }
    }
}

TYPED_TEST(rms_norm, dx_may_be_dy_or_x) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants)
    for (const std::size_t cols : {std::size_t{5}, 4 * lanes<B, T> + 3}) {
      SCOPED_TRACE(testing::Message() << cols << " columns, " << v.name);
      check_norm_in_place<problem<T>, B>(shape{3, cols, 2}, v);
    }
}

TYPED_TEST(rms_norm, accumulates_into_dw_when_asked) {
  using T = typename TypeParam::element;
  check_norm_accumulates<problem<T>, typename TypeParam::backend>(gradient_bound.of<T>());
}

TYPED_TEST(rms_norm, any_nan_in_rstd_stays_one) {
  check_norm_keeps_any_nan<problem<typename TypeParam::element>, typename TypeParam::backend>();
}

TYPED_TEST(rms_norm, rows_of_the_range_of_the_type) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t cols : {5u, 1000u})
    for (variant v : variants) {
      SCOPED_TRACE(testing::Message() << cols << " columns, " << v.name);
      v.opt.eps = 0;
      check_norm_over_the_range<B, T>(
          [=] {
            return problem<T>({6, cols}, v);
          },
          forward_bound.of<T>(), gradient_bound.of<T>());
    }
}

// Where eps decides alone, and where it is as large as the mean square, which is computed of multiplied numbers.
TYPED_TEST(rms_norm, eps_beside_squares_that_leave_the_range) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const int power = std::same_as<T, tigon::float16> ? -20 : std::same_as<T, double> ? -500 : -55;
  for (const double eps : {1e-6, std::ldexp(1.0, 2 * power)}) {
    problem<T> p({3, 40});
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < 40; ++j) p.x(i, j) = from_f64<T>(std::ldexp(to_f64(p.x(i, j)), power));
    p.v.opt.eps = eps;
    p.template forward<B>();
    EXPECT_TRUE(close(p.y.f64(), p.wanted().y(), forward_bound.of<T>())) << eps;
  }
}

TYPED_TEST(rms_norm, nan_and_infinity_stay_in_their_rows) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  constexpr std::size_t n = lanes<B, T>;
  const shape s{4, 2 * n + 3};
  problem<T> clean(s);
  clean.template both_ways<B>();
  for (const std::size_t column : {std::size_t{0}, n - 1, n, s.cols - 1})  // first, edges of a vector, tail
    for (const double bad : {nan, infinity, -infinity}) {
      SCOPED_TRACE(testing::Message() << bad << " in column " << column);
      problem<T> p(s);
      p.x(1, column) = from_f64<T>(bad);
      p.template both_ways<B>();
      auto y = clean.y.f64(), dx = clean.dx.f64();
      for (std::size_t j = 0; j < s.cols; ++j) {
        const bool lost = std::isnan(bad) || j == column;  // an infinite mean square scales the rest of the row to 0
        y[s.cols + j] = lost ? nan : 0;
        dx[s.cols + j] = nan;
      }
      EXPECT_TRUE(close(p.y.f64(), y, 0));
      EXPECT_TRUE(close(p.dx.f64(), dx, 0));
      EXPECT_TRUE(std::isnan(p.dw.f64()[column]));
    }
}

TYPED_TEST(rms_norm, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  // Beyond the size from which results are written past the caches, in rows that do not begin at a vector.
  const shape s{B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001, 4};
  problem<T> p(s), small({7, s.cols, s.padding});
  p.template both_ways<B>();
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
  for (const std::size_t first : {std::size_t{0}, s.rows / 2, s.rows - 7}) {
    const auto part = [&](auto& m) { return m.view().rows_from(first, 7); };
    const std::span rstd = std::span(p.rstd).subspan(first, 7);
    tigon::rms_norm_forward<B>(part(p.x), p.w, small.y.view(), small.rstd, p.v.opt);
    tigon::rms_norm_backward<B>(part(p.dy), part(p.x), p.w, rstd, small.dx.view(), small.dw, p.v.opt);
    for (std::size_t i = 0; i < 7; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        ASSERT_EQ(to_f64(p.y(first + i, j)), to_f64(small.y(i, j))) << "row " << first + i << ", column " << j;
        ASSERT_EQ(to_f64(p.dx(first + i, j)), to_f64(small.dx(i, j))) << "row " << first + i << ", column " << j;
      }
  }
}

TYPED_TEST(rms_norm, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({190, 2049});  // a dozen tasks of rows, three of columns
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.y.clear(), p.dx.clear(), p.dw.clear(), p.rstd.clear();
    p.template both_ways<B>(ctx);
    return bits_of(p.y, p.rstd, p.dx, p.dw);
  }));
}

TEST(rms_norm_options, are_those_of_llama_unless_given) {
  using B = tigon::test::usual_backend;
  problem<float> p({3, 20}, {"llama", true, {.eps = 1e-6, .offset = 0, .casting = casting::llama}});
  p.forward<B>();
  const auto given = bits_of(p.y, p.rstd);
  p.y.clear(), p.rstd.clear();
  tigon::rms_norm_forward<B>(p.x, p.w, p.y.view(), p.rstd);
  EXPECT_EQ(bits_of(p.y, p.rstd), given);
}

TEST(rms_norm_mixed, parameters_keep_their_own_type) {
  problem<bfloat16, float> p({5, 67});
  p.both_ways<tigon::default_backend>();
  EXPECT_TRUE(close(p.y.f64(), p.wanted().y(), forward_bound.bf16));
  EXPECT_TRUE(close(p.dw.f64(), p.wanted().dfactor(probes(67)), gradient_bound.bf16));
}

/// The doors, which are the same for every backend: refused before the first write.
class rms_norm_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  static constexpr double nan = std::numeric_limits<double>::quiet_NaN();

  rms_norm_doors() { p.forward<tigon::default_backend>(), p.y.clear(); }
  void forward(tigon::in_matrix<float> x, view y, std::span<const float> w, std::span<float> rstd,
               tigon::rms_norm_options opt = {}) {
    tigon::rms_norm_forward(x, w, y, rstd, opt);
  }
  void backward(tigon::in_matrix<float> dy, tigon::in_matrix<float> x, std::span<const float> w,
                std::span<const float> rstd, view dx, std::span<float> dw, tigon::rms_norm_options opt = {}) {
    tigon::rms_norm_backward(dy, x, w, rstd, dx, dw, opt);
  }

  problem<float> p{{3, 8, 2}};
  const view x = p.x.view(), y = p.y.view(), dy = p.dy.view(), dx = p.dx.view();
  const std::span<float> w{p.w}, dw{p.dw}, rstd{p.rstd};
};

TEST_F(rms_norm_doors, forward_refuses_wrong_shapes) {
  guarded<float> r(3);
  EXPECT_TIGON_ERROR(forward(view(x.data, 3, 0, 8), view(y.data, 3, 0, 8), {}, r), shape,
                     "rms_norm_forward: cols is 0; expected at least 1", p.y, r);
  EXPECT_TIGON_ERROR(forward(view(x.data, 3, 8, 7), y, w, r), stride,
                     "rms_norm_forward: x is of row stride 7; expected at least its 8 columns", p.y, r);
  EXPECT_TIGON_ERROR(forward(view(nullptr, 3, 8, 8), y, w, r), shape, "rms_norm_forward: x is a null pointer", p.y, r);
  EXPECT_TIGON_ERROR(forward(x, view(y.data, 2, 8, 10), w, r), shape, "rms_norm_forward: y is 2 x 8; expected 3 x 8",
                     p.y, r);
  EXPECT_TIGON_ERROR(forward(x, view(y.data, 3, 7, 10), w, r), shape, "rms_norm_forward: y is 3 x 7; expected 3 x 8",
                     p.y, r);
  EXPECT_TIGON_ERROR(forward(x, view(y.data, 3, 8, 7), w, r), stride, "rms_norm_forward: y is of row stride 7", p.y, r);
  EXPECT_TIGON_ERROR(forward(x, view(nullptr, 3, 8, 8), w, r), shape, "rms_norm_forward: y is a null pointer", r);
  EXPECT_TIGON_ERROR(forward(x, y, w.first(7), r), shape, "rms_norm_forward: w is of 7 elements; expected 8", p.y, r);
  EXPECT_TIGON_ERROR(forward(x, y, w, rstd.first(2)), shape, "rms_norm_forward: rstd is of 2 elements; expected 3", p.y,
                     p.rstd);
}

TEST_F(rms_norm_doors, forward_refuses_wrong_numbers) {
  for (const double eps : {-1e-6, nan, std::numeric_limits<double>::infinity()})
    EXPECT_TIGON_ERROR(forward(x, y, w, rstd, {.eps = eps}), argument, "rms_norm_forward: eps is", p.y, p.rstd);
  EXPECT_TIGON_ERROR(forward(x, y, w, rstd, {.offset = nan}), argument,
                     "rms_norm_forward: offset is nan; expected a finite number", p.y, p.rstd);
}

TEST_F(rms_norm_doors, forward_refuses_overlaps) {
  const std::span<float> x_row(x.data, 8), y_row(y.data, 8);
  EXPECT_TIGON_ERROR(forward(x, x, w, rstd), alias, "rms_norm_forward: y overlaps x", p.x, p.rstd);
  EXPECT_TIGON_ERROR(forward(x.rows_from(0, 2), x.rows_from(1, 2), w, rstd.first(2)), alias,
                     "rms_norm_forward: y overlaps x", p.x, p.rstd);
  EXPECT_TIGON_ERROR(forward(x, y, y_row, rstd), alias, "rms_norm_forward: y overlaps w", p.y, p.rstd);
  EXPECT_TIGON_ERROR(forward(x, y, w, x_row.first(3)), alias, "rms_norm_forward: rstd overlaps x", p.x, p.y);
  EXPECT_TIGON_ERROR(forward(x, y, w, y_row.first(3)), alias, "rms_norm_forward: rstd overlaps y", p.y);
  EXPECT_TIGON_ERROR(forward(x, y, w, w.first(3)), alias, "rms_norm_forward: rstd overlaps w", p.w, p.y);
}

TEST_F(rms_norm_doors, accept_two_column_ranges_of_one_buffer) {
  guarded_matrix<float> both(3, 16);
  both.assign(normal_values(48, 5));
  forward(both.view().cols_from(0, 8), both.view().cols_from(8, 8), w, rstd, p.v.opt);
  for (std::size_t i = 0; i < 3; ++i) p.x.view().row(i)[0] = both(i, 0);
  EXPECT_FALSE(std::isnan(both(2, 15)));
}

TEST_F(rms_norm_doors, accept_any_layout_without_a_shared_element) {
  // Rows of 8 in one buffer: x at 0, 5, 10, dy at 1, 4, 7, dx at 2, 9, 16; w, dw and rstd between them at 3, 6 and 8.
  guarded<float> buffer(8 * 17);
  const auto rows = [&](std::size_t first, std::size_t step) {
    return view(buffer.data() + first * 8, 3, 8, step * 8);
  };
  const auto row = [&](std::size_t at) { return std::span<float>(buffer.data() + at * 8, 8); };
  const view of_x = rows(0, 5), of_dy = rows(1, 3), of_dx = rows(2, 7);
  for (std::size_t i = 0; i < 3; ++i) std::copy_n(x.row(i), 8, of_x.row(i)), std::copy_n(dy.row(i), 8, of_dy.row(i));
  std::copy_n(w.begin(), 8, row(3).begin());
  forward(x, y, w, rstd), backward(dy, x, w, rstd, dx, dw);
  forward(of_x, of_dx, row(3), row(8).first(3));  // y where dx goes
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 8; ++j) ASSERT_EQ(of_dx.row(i)[j], y.row(i)[j]);
  backward(of_dy, of_x, row(3), row(8).first(3), of_dx, row(6));
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 8; ++j) ASSERT_EQ(of_dx.row(i)[j], dx.row(i)[j]);
  for (std::size_t j = 0; j < 8; ++j) ASSERT_EQ(row(6)[j], dw[j]);
  EXPECT_TIGON_ERROR(backward(of_dy, of_x, row(3), row(8).first(3), of_dx, {buffer.data() + 6 * 8 + 1, 8}), alias,
                     "rms_norm_backward: dw overlaps dy", buffer);
  EXPECT_TIGON_ERROR(backward(of_dy, of_x, row(3), {buffer.data() + 9 * 8 - 2, 3}, of_dx, row(6)), alias,
                     "rms_norm_backward: dx overlaps rstd", buffer);
}

TEST_F(rms_norm_doors, backward_refuses_wrong_shapes) {
  EXPECT_TIGON_ERROR(backward(view(dy.data, 3, 0, 8), view(x.data, 3, 0, 8), {}, rstd, view(dx.data, 3, 0, 8), {}),
                     shape, "rms_norm_backward: cols is 0; expected at least 1", p.dx, p.dw);
  EXPECT_TIGON_ERROR(backward(dy, view(x.data, 3, 8, 7), w, rstd, dx, dw), stride,
                     "rms_norm_backward: x is of row stride 7; expected at least its 8 columns", p.dx, p.dw);
  EXPECT_TIGON_ERROR(backward(view(dy.data, 2, 8, 10), x, w, rstd, dx, dw), shape,
                     "rms_norm_backward: dy is 2 x 8; expected 3 x 8", p.dx, p.dw);
  EXPECT_TIGON_ERROR(backward(dy, x, w, rstd, view(dx.data, 3, 7, 10), dw), shape,
                     "rms_norm_backward: dx is 3 x 7; expected 3 x 8", p.dx, p.dw);
  EXPECT_TIGON_ERROR(backward(dy, x, w.first(7), rstd, dx, dw), shape,
                     "rms_norm_backward: w is of 7 elements; expected 8", p.dx, p.dw);
  EXPECT_TIGON_ERROR(backward(dy, x, w, rstd, dx, dw.first(7)), shape,
                     "rms_norm_backward: dw is of 7 elements; expected 8", p.dx, p.dw);
  EXPECT_TIGON_ERROR(backward(dy, x, w, rstd.first(2), dx, dw), shape,
                     "rms_norm_backward: rstd is of 2 elements; expected 3", p.dx, p.dw);
  EXPECT_TIGON_ERROR(tigon::rms_norm_backward(dy, x, absent, rstd, dx, dw), shape,
                     "rms_norm_backward: dw is of 8 elements; expected 0", p.dx, p.dw);
}

TEST_F(rms_norm_doors, backward_refuses_wrong_numbers) {
  EXPECT_TIGON_ERROR(backward(dy, x, w, rstd, dx, dw, {.offset = nan}), argument,
                     "rms_norm_backward: offset is nan; expected a finite number", p.dx, p.dw);
}

TEST_F(rms_norm_doors, backward_refuses_overlaps) {
  guarded<float> buffer(64);
  buffer.assign(std::vector<double>(64, 1.0));
  const view all(buffer.data(), 6, 8), front = all.rows_from(0, 3), shifted = all.rows_from(1, 3);
  const std::span<float> row(front.data, 8);
  EXPECT_TIGON_ERROR(backward(front, x, w, rstd, shifted, dw), alias,
                     "rms_norm_backward: dx overlaps dy; expected the same buffer or no common memory", buffer, p.dw);
  EXPECT_TIGON_ERROR(backward(dy, front, w, rstd, shifted, dw), alias,
                     "rms_norm_backward: dx overlaps x; expected the same buffer or no common memory", buffer, p.dw);
  EXPECT_TIGON_ERROR(backward(dy, x, row, rstd, front, dw), alias, "rms_norm_backward: dx overlaps w", buffer, p.dw);
  EXPECT_TIGON_ERROR(backward(dy, x, w, row.first(3), front, dw), alias, "rms_norm_backward: dx overlaps rstd", buffer,
                     p.dw);
  EXPECT_TIGON_ERROR(backward(front, x, w, rstd, dx, row), alias, "rms_norm_backward: dw overlaps dy", p.dx, buffer);
  EXPECT_TIGON_ERROR(backward(dy, front, w, rstd, dx, row), alias, "rms_norm_backward: dw overlaps x", p.dx, buffer);
  EXPECT_TIGON_ERROR(backward(dy, x, w, rstd, front, row), alias, "rms_norm_backward: dw overlaps dx", buffer);
  EXPECT_TIGON_ERROR(backward(dy, x, row, rstd, dx, row), alias, "rms_norm_backward: dw overlaps w", p.dx, buffer);
  EXPECT_TIGON_ERROR(backward(dy, x, w, row.first(3), dx, row), alias, "rms_norm_backward: dw overlaps rstd", p.dx,
                     buffer);
}

TEST_F(rms_norm_doors, backward_needs_the_workspace_that_it_names) {
  const std::size_t bytes = tigon::rms_norm_workspace<tigon::default_backend, float>(3, 8);
  const auto call = [&](context& ctx) { tigon::rms_norm_backward(dy, x, w, rstd, dx, dw, {}, ctx); };
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "rms_norm_backward: workspace is of", p.dx, p.dw);
  with_workspace_of(bytes, call);
  EXPECT_FALSE(p.dx.untouched());
}

}  // namespace
