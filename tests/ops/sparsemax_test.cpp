// The contract of include/tigon/ops/sparsemax.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <complex>
#include <numeric>
#include <tigon/ops/sparsemax.hpp>

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
using tigon::context;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

/// y of one line by its definition, sorted, for any number type; comparisons look at real parts.
template <class X>
std::vector<X> projected(const std::vector<X>& x) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return std::real(x[a]) > std::real(x[b]); });
  const auto top = std::real(x[order[0]]);
  X sum = 0, tau = 0;
  decltype(std::real(tau)) k = 0;
  for (const std::size_t j : order) {
    const X z = x[j] - top;
    if (1 + (k + 1) * std::real(z) <= std::real(sum + z)) break;
    sum += z, k += 1;
    tau = (sum - X(1)) / k;
  }
  std::vector<X> y;
  for (const X v : x) y.push_back(std::real(v - top) > std::real(tau) ? v - top - tau : X(0));
  return y;
}

std::vector<double> projected_exactly(const std::vector<double>& x) {
  const auto y = projected(std::vector<long double>(x.begin(), x.end()));
  return {y.begin(), y.end()};
}

/// dx of one line by its definition, from the stored y.
std::vector<double> gradient_of(const std::vector<double>& dy, const std::vector<double>& y) {
  long double sum = 0, k = 0;
  for (std::size_t j = 0; j < y.size(); ++j)
    if (y[j] > 0) sum += dy[j], k += 1;
  std::vector<double> dx;
  for (std::size_t j = 0; j < y.size(); ++j) dx.push_back(y[j] > 0 ? static_cast<double>(dy[j] - sum / k) : 0);
  return dx;
}

/// f of every line along the axis of tensors [outer, axis, inner].
template <class F, class X, class... More>
TIGON_TEST_NOINLINE std::vector<X> along(std::size_t axis, std::size_t inner, F f, const std::vector<X>& x,
                                         const More&... more) {
  std::vector<X> out(x.size());
  for (std::size_t first = 0; first < x.size(); first += axis * inner)
    for (std::size_t j = 0; j < inner; ++j) {
      const auto line = [&](const std::vector<X>& of) {
        std::vector<X> values;
        for (std::size_t a = 0; a < axis; ++a) values.push_back(of[first + a * inner + j]);
        return values;
      };
      const auto values = f(line(x), line(more)...);
      for (std::size_t a = 0; a < axis; ++a) out[first + a * inner + j] = values[a];
    }
  return out;
}

// In units of |reference| + its root mean square over the support; at most ten times the worst that was seen.
constexpr by_type forward_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-15};

/// Every buffer at a guard page, outputs full of canaries. With an axis, the rows are [outer, axis] and the columns lie
/// behind the axis; without, the axis is the columns.
template <class T>
struct problem {
  std::size_t axis;
  guarded_matrix<T> x, dy, y, dx;

  TIGON_TEST_NOINLINE explicit problem(shape s, double deviation = 1, guard side = guard::behind, std::size_t along = 0)
      : axis(along),
        x(random_matrix<T>(s, 1, side, {.deviation = deviation})),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side) {}

  auto of(auto m) const {
    const std::size_t n = std::max<std::size_t>(axis, 1);
    return tigon::axis_view(m.data, m.rows / n, n, m.cols, n * m.row_stride, m.row_stride);
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    if (axis == 0)
      tigon::sparsemax_forward<B>(x, to, {}, ctx);
    else
      tigon::sparsemax_forward<B>(of(x.view()), of(to), {}, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    if (axis == 0)
      tigon::sparsemax_backward<B>(dy, y, to, {}, ctx);
    else
      tigon::sparsemax_backward<B>(of(dy.view()), of(y.view()), of(to), {}, ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(y.view(), ctx);
    backward<B>(dx.view(), ctx);
  }

  std::size_t length() const { return axis == 0 ? x.cols() : axis; }
  std::size_t inner() const { return axis == 0 ? 1 : x.cols(); }
  TIGON_TEST_NOINLINE void check() {
    // Of one element dx is 0, the difference of numbers like dy.
    const comparison with{.scale = length() == 1 ? 3.0 : 0.0, .may_be_empty = x.rows() == 0};
    const auto want = along(length(), inner(), projected_exactly, x.f64());
    const auto want_dx = along(length(), inner(), gradient_of, dy.f64(), y.f64());
    const auto supported = [&](const std::vector<double>& of) {  // where either is not 0
      std::vector<double> out;
      for (std::size_t i = 0; i < of.size(); ++i)
        if (want[i] != 0 || to_f64(y(i / y.cols(), i % y.cols())) != 0) out.push_back(of[i]);
      return out;
    };
    EXPECT_TRUE(close(supported(y.f64()), supported(want), forward_bound.template of<T>(), with));
    EXPECT_TRUE(close(supported(dx.f64()), supported(want_dx), gradient_bound.template of<T>(), with));
    for (std::size_t i = 0; i < dx.rows(); ++i)
      for (std::size_t j = 0; j < dx.cols(); ++j) ASSERT_TRUE(to_f64(y(i, j)) != 0 || to_f64(dx(i, j)) == 0);
    EXPECT_TRUE(y.padding_intact() && dx.padding_intact());
  }
};

template <class On>
class sparsemax : public testing::Test {};
TYPED_TEST_SUITE(sparsemax, every_pair, names);

TYPED_TEST(sparsemax, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : row_shapes<B, T>())
    for (const double deviation : {3.0, 1.0, 0.1, 0.002})  // a support of one element to one of nearly all
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", deviation " << deviation << ", " << side);
        problem<T> p(s, deviation, side);
        p.template both_ways<B>();
        p.check();
      }
}

TYPED_TEST(sparsemax, goes_along_any_axis) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = lanes<B, T>;
  struct tensor {
    std::size_t outer, axis, inner, padding;
  };
  for (const tensor t :
       {tensor{2, 7, 5, 0}, tensor{3, 1, n, 2}, tensor{2, 4, n + 1, 3}, tensor{1, 257, 2 * n + 3, 1},
        tensor{3, 31, 1, 4}, tensor{1, 130, 1100, 0}, tensor{2, 64, 3, 0}, tensor{1, 513, 5, 0}, tensor{0, 3, 4, 0}})
    for (const double deviation : {1.0, 0.02})
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << t.outer << " x " << t.axis << " x " << t.inner << ", " << deviation << ", "
                                        << side);
        problem<T> p({t.outer * t.axis, t.inner, t.padding}, deviation, side, t.axis);
        p.template both_ways<B>();
        p.check();
      }
  problem<T> nothing({6, 0}, 1, guard::behind, 3);
  nothing.template both_ways<B>();
}

TYPED_TEST(sparsemax, the_axis_may_be_the_slowest) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t outer = 3, axis = 5, inner = 7;
  problem<T> p({outer * axis, inner}, 1, guard::behind, axis), turned({outer * axis, inner});
  const auto of = [&](auto m) { return tigon::axis_view(m.data, outer, axis, inner, inner, outer * inner); };
  for (std::size_t o = 0; o < outer; ++o)
    for (std::size_t a = 0; a < axis; ++a)
      for (std::size_t j = 0; j < inner; ++j) {
        turned.x(a * outer + o, j) = p.x(o * axis + a, j);
        turned.dy(a * outer + o, j) = p.dy(o * axis + a, j);
      }
  p.template both_ways<B>();
  tigon::sparsemax_forward<B>(of(turned.x.view()), of(turned.y.view()));
  tigon::sparsemax_backward<B>(of(turned.dy.view()), of(turned.y.view()), of(turned.dx.view()));
  for (std::size_t o = 0; o < outer; ++o)
    for (std::size_t a = 0; a < axis; ++a)
      for (std::size_t j = 0; j < inner; ++j) {
        EXPECT_EQ(to_f64(turned.y(a * outer + o, j)), to_f64(p.y(o * axis + a, j)));
        EXPECT_EQ(to_f64(turned.dx(a * outer + o, j)), to_f64(p.dx(o * axis + a, j)));
      }
}

TYPED_TEST(sparsemax, results_may_overwrite_inputs) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t axis : {0u, 3u}) {
    const shape s{6, 4 * lanes<B, T> + 3, 2};
    const auto fresh = [&] { return problem<T>(s, 0.3, guard::behind, axis); };
    problem<T> apart = fresh(), p = fresh(), over_dy = fresh();
    apart.template both_ways<B>(), over_dy.template forward<B>(over_dy.y.view());
    over_dy.template backward<B>(over_dy.dy.view());
    EXPECT_EQ(bits_of(over_dy.dy), bits_of(apart.dx));
    p.template forward<B>(p.y.view());
    p.template backward<B>(p.y.view());
    EXPECT_EQ(bits_of(p.y), bits_of(apart.dx));
    p.template forward<B>(p.x.view());
    EXPECT_EQ(bits_of(p.x), bits_of(apart.y));
  }
}

TYPED_TEST(sparsemax, a_common_offset_costs_nothing) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const std::size_t n = 2 * lanes<B, T> + 3;
  for (const std::size_t axis : {0u, 2u}) {
    problem<T> near({2, n}, 1, guard::behind, axis), far({2, n}, 1, guard::behind, axis);
    std::vector<double> x(2 * n);
    for (std::size_t j = 0; j < 2 * n; ++j) x[j] = -static_cast<double>(j * 7 % 16) / 8;
    near.x.assign(x);
    for (double& v : x) v += 15;  // exact in every type
    far.x.assign(x);
    near.template both_ways<B>(), far.template both_ways<B>();
    near.check(), far.check();
    for (const double base : {1e4, 1e5, 1e7, 1e8, -1e8, 3e38}) {
      if (std::isinf(to_f64(from_f64<T>(base)))) continue;
      SCOPED_TRACE(base);
      for (std::size_t j = 0; j < 2 * n; ++j) x[j] = base + std::array{0.3, 0.1, -0.2, -1.0}[j % 4];
      far.x.assign(x);
      far.template both_ways<B>();
      far.check();
    }
  }
}

TYPED_TEST(sparsemax, ties_share) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t axis : {0u, 4u}) {
    problem<T> p({4, 64}, 0, guard::behind, axis);
    p.template both_ways<B>();
    for (std::size_t j = 0; j < 64; ++j) ASSERT_EQ(to_f64(p.y(0, j)), axis == 0 ? 1.0 / 64 : 0.25);
    p.check();
  }
}

TYPED_TEST(sparsemax, the_support_may_shrink_by_one_element_a_round) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  std::vector<double> x{0};
  for (std::size_t j = 1; j < 700; ++j) x.push_back(-1 - static_cast<double>(j) * 0x1p-12);
  for (std::size_t j = 1; j < 700; ++j) x.push_back(-1 + std::ldexp(1, -static_cast<int>(j % 24)));
  for (const std::size_t axis : {std::size_t{0}, x.size()}) {
    problem<T> p(axis == 0 ? shape{1, x.size()} : shape{x.size(), 1}, 1, guard::behind, axis);
    p.x.assign(x);
    p.template both_ways<B>();
    p.check();
  }
}

TYPED_TEST(sparsemax, bad_lines_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{4, 261};  // some blocks of a row are below the support
  for (const std::size_t axis : {0u, 4u}) {
    const auto fresh = [&] { return problem<T>(s, 2, guard::behind, axis); };
    problem<T> clean = fresh();
    clean.template both_ways<B>();
    for (const std::size_t column : {std::size_t{0}, std::size_t{3}, std::size_t{70}, std::size_t{130}, s.cols - 1})
      for (const double bad : {nan, infinity, -infinity}) {
        SCOPED_TRACE(testing::Message() << bad << " in column " << column << ", axis " << axis);
        problem<T> p = fresh();
        p.x(1, column) = from_f64<T>(bad);
        p.template both_ways<B>();
        for (std::size_t i = 0; i < s.rows; ++i)
          for (std::size_t j = 0; j < s.cols; ++j) {
            const double y = to_f64(p.y(i, j)), dx = to_f64(p.dx(i, j));
            if (axis == 0 ? i != 1 : j != column) {
              ASSERT_EQ(y, to_f64(clean.y(i, j)));
              ASSERT_EQ(dx, to_f64(clean.dx(i, j)));
            } else if (bad == -infinity) {
              ASSERT_TRUE(y >= 0 && y <= 1 && std::isfinite(dx)) << i << ", " << j;
              ASSERT_TRUE(i != 1 || j != column || (y == 0 && dx == 0));
            } else {
              ASSERT_TRUE(std::isnan(y) && std::isnan(dx)) << i << ", " << j << ": " << y << ", " << dx;
            }
          }
      }
    problem<T> none = fresh();
    for (std::size_t k = 0; k < (axis == 0 ? s.cols : s.rows); ++k)
      (axis == 0 ? none.x(1, k) : none.x(k, 1)) = from_f64<T>(-infinity);
    none.template forward<B>(none.y.view());
    for (std::size_t k = 0; k < (axis == 0 ? s.cols : s.rows); ++k)
      EXPECT_TRUE(std::isnan(to_f64(axis == 0 ? none.y(1, k) : none.y(k, 1))));
    EXPECT_EQ(to_f64(none.y(0, 0)), to_f64(clean.y(0, 0)));
  }
}

TYPED_TEST(sparsemax, gradients_far_from_zero_lose_no_digit) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t axis : {0u, 40u})
    for (const double mean : {1000.0, -30000.0}) {
      SCOPED_TRACE(testing::Message() << mean << ", axis " << axis);
      problem<T> p({40, 37}, 0.3, guard::behind, axis);
      p.template forward<B>(p.y.view());
      p.dy.assign(normal_values(40 * 37, 3, {.mean = mean}));
      p.template backward<B>(p.dx.view());
      p.check();
      // What stands outside the support is no part of it, whatever it is.
      const auto outside = [&](double value) {
        for (std::size_t i = 0; i < 40; ++i)
          for (std::size_t j = 0; j < 37; ++j)
            if (to_f64(p.y(i, j)) == 0) p.dy(i, j) = from_f64<T>(value);
      };
      const auto before = p.dx.f64();
      for (const double value : {60000.0, -infinity, nan}) {
        outside(value);
        p.template backward<B>(p.dx.view());
        EXPECT_TRUE(close(p.dx.f64(), before, gradient_bound.of<T>()));
      }
    }
}

TYPED_TEST(sparsemax, wide_lines) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t cols : {65537u, 200000u}) {
    problem<T> p({2, cols}, 0.5);
    p.template both_ways<B>();
    p.check();
  }
  problem<T> p({70001, 3}, 0.5, guard::behind, 70001);
  for (std::size_t i = 0; i < p.axis; ++i) {
    p.x(i, 1) = from_f64<T>(i == 0 ? 80 : i / 64 == p.axis / 64 - 1 ? -64 : 64);    // folded beside the scratch of sums
    p.x(i, 2) = from_f64<T>(0.25), p.dy(i, 2) = from_f64<T>(i % 2 == 0 ? 0 : 0.1);  // all are in the support
  }
  p.template both_ways<B>();
  p.check();
}

/// Sums of 2048 lines are exact here; each time that one is added to the others, 3/8 of the last digit are lost.
TEST(sparsemax_sums, keep_their_error_along_a_long_axis) {
  constexpr std::size_t axis = std::size_t{1} << 20, inner = 2;
  constexpr float v = 0x3fffbp-18f;
  std::vector<float> dy(axis * inner), y(dy.size(), 0x1p-20f), dx(dy.size());
  for (std::size_t k = 0; k < dy.size(); ++k) dy[k] = k / inner % 2 == 0 ? 0 : v;
  const auto down = [=](auto& of) {
    return tigon::axis_view<std::remove_reference_t<decltype(of[0])>>(of.data(), 1, axis, inner, axis * inner, inner);
  };
  tigon::sparsemax_backward(down(std::as_const(dy)), down(std::as_const(y)), down(dx));
  for (std::size_t k = 0; k < dx.size(); ++k) ASSERT_NEAR(dx[k], dy[k] - v / 2, gradient_bound.f32 * v) << k;
}

TYPED_TEST(sparsemax, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001, 4};
  problem<T> p(s, 0.3), small({3, s.cols, s.padding});
  p.template both_ways<B>();
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
  for (const std::size_t first : {std::size_t{0}, s.rows - 3}) {
    const auto part = [&](auto& m) { return m.view().rows_from(first, 3); };
    tigon::sparsemax_forward<B>(part(p.x), small.y.view());
    tigon::sparsemax_backward<B>(part(p.dy), part(p.y), small.dx.view());
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        ASSERT_EQ(to_f64(p.y(first + i, j)), to_f64(small.y(i, j))) << "row " << first + i << ", column " << j;
        ASSERT_EQ(to_f64(p.dx(first + i, j)), to_f64(small.dx(i, j))) << "row " << first + i << ", column " << j;
      }
  }
}

TYPED_TEST(sparsemax, large_outputs_along_an_axis_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t axis = 39, few = 70;
  const shape s{axis, B::row.stream_bytes / (axis * sizeof(T)) + 67, 5};
  problem<T> p(s, 0.3, guard::behind, axis), small({axis, few}, 1, guard::behind, axis);
  p.template both_ways<B>();
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
  for (const std::size_t first : {std::size_t{0}, std::size_t{1000}, s.cols - few}) {
    for (std::size_t a = 0; a < axis; ++a)
      for (std::size_t j = 0; j < few; ++j) small.x(a, j) = p.x(a, first + j), small.dy(a, j) = p.dy(a, first + j);
    small.template both_ways<B>();
    for (std::size_t a = 0; a < axis; ++a)
      for (std::size_t j = 0; j < few; ++j) {
        ASSERT_EQ(to_f64(p.y(a, first + j)), to_f64(small.y(a, j))) << "line " << a << ", column " << first + j;
        ASSERT_EQ(to_f64(p.dx(a, first + j)), to_f64(small.dx(a, j))) << "line " << a << ", column " << first + j;
      }
  }
}

TYPED_TEST(sparsemax, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t axis : {0u, 50u}) {
    problem<T> p({100, 2049}, 0.3, guard::behind, axis);  // four tasks
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.y.clear(), p.dx.clear();
      p.template both_ways<B>(ctx);
      return bits_of(p.y, p.dx);
    }));
  }
}

template <class On>
class sparsemax_gradient : public testing::Test {};
TYPED_TEST_SUITE(sparsemax_gradient, pairs_of<double>, names);

TYPED_TEST(sparsemax_gradient, is_that_of_a_complex_step) {
  for (const std::size_t axis : {0u, 3u}) {
    problem<double> p({6, 11}, 0.4, guard::behind, axis);
    p.template both_ways<typename TypeParam::backend>();
    const auto loss = [&](const auto& z) {
      using X = typename std::remove_cvref_t<decltype(z)>::value_type;
      const auto y = along(p.length(), p.inner(), projected<X>, z);
      X sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += p.dy.f64()[i] * y[i];
      return sum;
    };
    EXPECT_TRUE(close(p.dx.f64(), complex_step(loss, p.x.f64(), probes(66)), 4e-15));
  }
}

/// The doors, which are the same for every backend: refused before the first write.
class sparsemax_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using axes = tigon::axis_view<float>;
  problem<float> p{{3, 8, 2}};
  const view x = p.x.view(), y = p.y.view(), dy = p.dy.view(), dx = p.dx.view();
  static axes of(view m) { return {m.data, 1, 3, 8, 30, m.row_stride}; }
};

TEST_F(sparsemax_doors, forward_refuses) {
  const auto forward = [](auto x, auto y) { tigon::sparsemax_forward(x, y); };
  EXPECT_TIGON_ERROR(forward(view{x.data, 3, 0, 8}, view{y.data, 3, 0, 8}), shape,
                     "sparsemax_forward: cols is 0; expected at least 1", p.y);
  EXPECT_TIGON_ERROR(forward(view{x.data, 3, 8, 7}, y), stride, "sparsemax_forward: x is of row stride 7", p.y);
  EXPECT_TIGON_ERROR(forward(view{nullptr, 3, 8, 8}, y), shape, "sparsemax_forward: x is a null pointer", p.y);
  EXPECT_TIGON_ERROR(forward(x, view{y.data, 2, 8, 10}), shape, "sparsemax_forward: y is 2 x 8; expected 3 x 8", p.y);
  EXPECT_TIGON_ERROR(forward(x, view{y.data, 3, 8, 7}), stride, "sparsemax_forward: y is of row stride 7", p.y);
  EXPECT_TIGON_ERROR(forward(x.rows_from(0, 2), x.rows_from(1, 2)), alias,
                     "sparsemax_forward: y overlaps x; expected the same buffer or no common memory", p.x);

  EXPECT_TIGON_ERROR(forward(axes{x.data, 3, 0, 8}, axes{y.data, 3, 0, 8}), shape,
                     "sparsemax_forward: axis is 0; expected at least 1", p.y);
  EXPECT_TIGON_ERROR(forward(of(x), axes{y.data, 1, 8, 3}), shape,
                     "sparsemax_forward: y is 1 x 8 x 3; expected 1 x 3 x 8", p.y);
  EXPECT_TIGON_ERROR(forward(axes{nullptr, 1, 3, 8}, of(y)), shape, "sparsemax_forward: x is a null pointer", p.y);
  EXPECT_TIGON_ERROR(forward(of(x), axes{nullptr, 1, 3, 8}), shape, "sparsemax_forward: y is a null pointer", p.y);
  EXPECT_TIGON_ERROR(forward(axes{x.data, 1, 3, 8, 24, 7}, of(y)), stride, "sparsemax_forward: x is of a stride of 7",
                     p.y);
  EXPECT_TIGON_ERROR(forward(axes{x.data, 2, 2, 4, 6, 4}, axes{y.data, 2, 2, 4}), stride,
                     "sparsemax_forward: x is of a stride of 6", p.y);
  EXPECT_TIGON_ERROR(forward(axes{x.data, 1, 2, 8}, axes{x.data + 8, 1, 2, 8}), alias,
                     "sparsemax_forward: y overlaps x; expected the same buffer or no common memory", p.x);
}

TEST_F(sparsemax_doors, need_the_workspace_that_they_name) {
  using B = tigon::default_backend;
  const auto needs = [&](auto bytes_of, auto call, const auto& out, std::string_view says) {
    for (const std::size_t threads : {1u, 3u})
      with_workspace_of(
          64,
          [&](context& of_size) {
            const std::size_t bytes = bytes_of(of_size);
            p.y.clear(), p.dx.clear();
            EXPECT_TRUE(refuses([&] { with_workspace_of(bytes - 1, call, threads); }, tigon::error_code::workspace,
                                says, p.y, p.dx));
            with_workspace_of(bytes, call, threads);
            EXPECT_FALSE(out.untouched());
          },
          threads);
  };
  needs([](context& ctx) { return tigon::sparsemax_workspace<B, float>(8, ctx); },
        [&](context& ctx) { tigon::sparsemax_forward(x, y, {}, ctx); }, p.y, "sparsemax_forward: workspace is of");
  needs([](context& ctx) { return tigon::sparsemax_workspace<B, float>(3, 8, ctx); },
        [&](context& ctx) { tigon::sparsemax_forward(of(x), of(y), {}, ctx); }, p.y,
        "sparsemax_forward: workspace is of");
  needs([](context& ctx) { return tigon::sparsemax_backward_workspace<B, float>(3, 8, ctx); },
        [&](context& ctx) { tigon::sparsemax_backward(of(dy), of(x), of(dx), {}, ctx); }, p.dx,
        "sparsemax_backward: workspace is of");
}

TEST_F(sparsemax_doors, backward_refuses) {
  const auto backward = [](auto dy, auto y, auto dx) { tigon::sparsemax_backward(dy, y, dx); };
  EXPECT_TIGON_ERROR(backward(view{dy.data, 3, 0, 8}, view{y.data, 3, 0, 8}, view{dx.data, 3, 0, 8}), shape,
                     "sparsemax_backward: cols is 0; expected at least 1", p.dx);
  EXPECT_TIGON_ERROR(backward(dy, view{y.data, 3, 8, 7}, dx), stride, "sparsemax_backward: y is of row stride 7", p.dx);
  EXPECT_TIGON_ERROR(backward(view{dy.data, 2, 8, 10}, y, dx), shape, "sparsemax_backward: dy is 2 x 8; expected 3 x 8",
                     p.dx);
  EXPECT_TIGON_ERROR(backward(dy, y, view{dx.data, 3, 7, 10}), shape, "sparsemax_backward: dx is 3 x 7; expected 3 x 8",
                     p.dx);
  EXPECT_TIGON_ERROR(backward(dy.rows_from(0, 2), y.rows_from(0, 2), dy.rows_from(1, 2)), alias,
                     "sparsemax_backward: dx overlaps dy", p.dy);
  EXPECT_TIGON_ERROR(backward(dy.rows_from(0, 2), y.rows_from(0, 2), y.rows_from(1, 2)), alias,
                     "sparsemax_backward: dx overlaps y", p.y);

  EXPECT_TIGON_ERROR(backward(axes{dy.data, 3, 0, 8}, axes{y.data, 3, 0, 8}, axes{dx.data, 3, 0, 8}), shape,
                     "sparsemax_backward: axis is 0; expected at least 1", p.dx);
  EXPECT_TIGON_ERROR(backward(of(dy), axes{y.data, 1, 3, 8, 24, 7}, of(dx)), stride,
                     "sparsemax_backward: y is of a stride of 7", p.dx);
  EXPECT_TIGON_ERROR(backward(axes{dy.data, 3, 1, 8}, of(y), of(dx)), shape,
                     "sparsemax_backward: dy is 3 x 1 x 8; expected 1 x 3 x 8", p.dx);
  EXPECT_TIGON_ERROR(backward(of(dy), of(y), axes{dx.data, 1, 3, 7}), shape,
                     "sparsemax_backward: dx is 1 x 3 x 7; expected 1 x 3 x 8", p.dx);
  EXPECT_TIGON_ERROR(backward(axes{dy.data, 1, 2, 8}, axes{y.data, 1, 2, 8}, axes{dy.data + 8, 1, 2, 8}), alias,
                     "sparsemax_backward: dx overlaps dy", p.dy);
  EXPECT_TIGON_ERROR(backward(axes{dy.data, 1, 2, 8}, axes{y.data, 1, 2, 8}, axes{y.data + 8, 1, 2, 8}), alias,
                     "sparsemax_backward: dx overlaps y", p.y);
}

TEST_F(sparsemax_doors, decide_overlaps_along_an_axis_by_element) {
  const auto forward = [](axes x, axes y) { tigon::sparsemax_forward(x, y); };
  guarded<float> buffer(64), wanted(6);
  buffer.assign(normal_values(64, 3));
  float* const at = buffer.data();
  // 2 x 3: element (o, a) of x is 10 o + 2 a, as large a span as that of 12 o + a, which is no reason to work in place.
  EXPECT_TIGON_ERROR(forward({at, 2, 3, 1, 10, 2}, {at, 2, 3, 1, 12, 1}), alias,
                     "sparsemax_forward: y is x with other strides; expected those of x", buffer);
  EXPECT_TIGON_ERROR(forward({at, 2, 3, 1, 10, 2}, {at + 4, 2, 3, 1, 7, 1}), alias, "sparsemax_forward: y overlaps x",
                     buffer);
  // x 0 2 4 10 12 14, y 1 3 5 8 ... none shared; and strides of which neither steps over what the other spans.
  forward({at, 2, 3, 1, 10, 2}, {wanted.data(), 2, 3, 1});
  forward({at, 2, 3, 1, 10, 2}, {at + 1, 2, 3, 1, 12, 2});
  for (std::size_t i = 0; i < 6; ++i) ASSERT_EQ(at[1 + i / 3 * 12 + i % 3 * 2], wanted[i]) << i;
  forward({at, 2, 3, 1, 10, 2}, {at + 20, 2, 3, 1, 4, 3});
  for (std::size_t i = 0; i < 6; ++i) ASSERT_EQ(at[20 + i / 3 * 4 + i % 3 * 3], wanted[i]) << i;
  EXPECT_TIGON_ERROR(forward({at, 2, 5, 1, 20, 2}, {at + 24, 2, 5, 1, 12, 3}), stride,
                     "sparsemax_forward: y is of a stride of 12", buffer);
}

}  // namespace
