// The contract of include/tigon/ops/poly_norm.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/poly_norm.hpp>

#include "support/backends.hpp"
#include "support/complex_step.hpp"
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
using tigon::absent, tigon::accumulator_t, tigon::bfloat16, tigon::float16, tigon::context;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type forward_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 6e-15};
constexpr by_type gradient_bound{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-14};

/// y by its definition, for any number type: derivatives come from it.
template <class X>
std::vector<X> reference(const std::vector<X>& x, std::size_t cols, const std::vector<double>& w, double b,
                         double eps) {
  std::vector<X> y(x.size(), X(b));
  for (std::size_t row = 0; row < x.size(); row += cols)
    for (const std::size_t p : {3u, 2u, 1u}) {
      const auto power = [&](std::size_t j) { return p == 3 ? x[j] * x[j] * x[j] : p == 2 ? x[j] * x[j] : x[j]; };
      X square = 0;
      for (std::size_t j = row; j < row + cols; ++j) square += power(j) * power(j) / static_cast<double>(cols);
      for (std::size_t j = row; j < row + cols; ++j) y[j] += w[3 - p] * power(j) / sqrt(square + eps);
    }
  return y;
}

/// rstd by its definition, three numbers a row.
std::vector<double> rstd_reference(const std::vector<double>& x, std::size_t cols, double eps) {
  std::vector<double> out;
  for (std::size_t row = 0; row < x.size(); row += cols)
    for (const int p : {3, 2, 1}) {
      double square = 0;
      for (std::size_t j = row; j < row + cols; ++j) square += std::pow(x[j], 2 * p) / static_cast<double>(cols);
      out.push_back(1 / std::sqrt(square + eps));
    }
  return out;
}

/// Gradients of the parameters, and the root sums of squares of what they are sums of.
struct sums {
  std::vector<double> dw, db;
  double of_dw = 0, of_db = 0;
};

/// Every buffer at a guard page, outputs full of canaries.
template <class T, class W = T, class P = W>
struct problem {
  tigon::poly_norm_options opt;
  guarded_matrix<T> x, dy, y, dx;
  guarded<W> w, dw;
  guarded<P> b, db;
  guarded<accumulator_t<T>> rstd;

  TIGON_TEST_NOINLINE explicit problem(shape s, double eps = 1e-6, guard side = guard::behind)
      : opt{.eps = eps},
        x(random_matrix<T>(s, 1, side, {.deviation = 2})),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side),
        w(random_vector<W>(3, 3, side)),
        dw(3, side),
        b(random_vector<P>(1, 4, side)),
        db(1, side),
        rstd(3 * s.rows, side) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::poly_norm_forward<B>(x, w, b, y.view(), rstd, opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    tigon::poly_norm_backward<B>(dy, x, w, rstd, tigon::norm_gradients{to, dw, db}, opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(dx.view(), ctx);
  }

  TIGON_TEST_NOINLINE std::vector<double> y_wanted() const {
    return reference(x.f64(), x.cols(), w.f64(), to_f64(b[0]), opt.eps);
  }
  TIGON_TEST_NOINLINE std::vector<double> dx_wanted(const std::vector<std::size_t>& at) const {
    const auto weight = w.f64(), upstream = dy.f64(), all = x.f64();
    const auto cols = static_cast<std::ptrdiff_t>(x.cols());
    std::vector<double> out;
    for (const std::size_t k : at) {  // the row of the entry alone
      const auto row = static_cast<std::ptrdiff_t>(k) / cols * cols;
      const std::vector<double> part(all.begin() + row, all.begin() + row + cols);
      const auto loss = [&](const auto& z) {
        const auto of_row = reference(z, x.cols(), weight, to_f64(b[0]), opt.eps);
        auto sum = of_row[0] * 0.0;
        for (std::size_t j = 0; j < of_row.size(); ++j) sum += upstream[static_cast<std::size_t>(row) + j] * of_row[j];
        return sum;
      };
      out.push_back(complex_step(loss, part, {k - static_cast<std::size_t>(row)})[0]);
    }
    return out;
  }
  TIGON_TEST_NOINLINE sums parameters_wanted() const {
    sums out;
    const auto upstream = dy.f64();
    long double terms = 0;
    for (std::size_t p = 0; p < 4; ++p) {  // y is linear in w and b
      std::vector<double> unit(3, 0.0);
      if (p < 3) unit[p] = 1;
      const auto part = reference(x.f64(), x.cols(), unit, p == 3 ? 1 : 0, opt.eps);
      long double sum = 0, squares = 0;
      for (std::size_t k = 0; k < part.size(); ++k) {
        const long double term = (long double)upstream[k] * part[k];
        sum += term, squares += term * term;
      }
      if (p < 3)
        out.dw.push_back(static_cast<double>(sum)), terms += squares / 3;
      else
        out.db.push_back(static_cast<double>(sum)), out.of_db = static_cast<double>(std::sqrt(squares));
    }
    out.of_dw = static_cast<double>(std::sqrt(terms));
    return out;
  }
  TIGON_TEST_NOINLINE void check_parameters(const sums& wanted) const {
    EXPECT_TRUE(close(dw.f64(), wanted.dw, gradient_bound.of<W>(), {.scale = wanted.of_dw}));
    EXPECT_TRUE(close(db.f64(), wanted.db, gradient_bound.of<P>(), {.scale = wanted.of_db}));
  }
  /// What an error of dx is measured from at least: in f16, where its numbers are no longer normal. In f64 the size of
  /// the terms of dx, for rows so narrow that they cancel; other types compute those rows in f64.
  TIGON_TEST_NOINLINE double dx_scale() const {
    if (std::same_as<T, float16>) return 6e-8 / gradient_bound.f16;
    if (!std::same_as<T, double> || x.cols() > 2) return 0;
    double largest = 0;
    for (std::size_t i = 0; i < x.rows(); ++i)
      for (std::size_t j = 0; j < x.cols(); ++j)
        for (std::size_t k = 0; k < 3; ++k)
          largest = std::max(
              largest, std::abs(to_f64(dy(i, j)) * to_f64(w[k]) * static_cast<double>(3 - k) *
                                std::pow(to_f64(x(i, j)), 2.0 - static_cast<double>(k)) * to_f64(rstd[3 * i + k])));
    return largest;
  }
};

/// More elements than those for which backward takes f64.
constexpr shape large{70, 501};

template <class On>
class poly_norm : public testing::Test {};
TYPED_TEST_SUITE(poly_norm, every_pair, names);

TYPED_TEST(poly_norm, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  auto shapes = row_shapes<B, T>();
  shapes.push_back(large);
  for (const shape s : shapes)
    for (const double eps : {1e-6, 0.5}) {
      const auto at = probes(s.rows * s.cols);
      const problem<T> given(s, eps);
      const auto y = given.y_wanted(), dx = given.dx_wanted(at), rstd = rstd_reference(given.x.f64(), s.cols, eps);
      const sums parameters = given.parameters_wanted();
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", eps " << eps << ", " << side);
        problem<T> p(s, eps, side);
        p.template both_ways<B>();
        EXPECT_TRUE(close(p.y.f64(), y, forward_bound.of<T>(), {.may_be_empty = s.rows == 0}));
        EXPECT_TRUE(close(p.rstd.f64(), rstd, forward_bound.of<accumulator_t<T>>(), {.may_be_empty = s.rows == 0}));
        EXPECT_TRUE(close(pick(p.dx.f64(), at), dx, gradient_bound.of<T>(),
                          {.scale = p.dx_scale(), .may_be_empty = s.rows == 0}));
        p.check_parameters(parameters);
        EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
      }
    }
}

TYPED_TEST(poly_norm, sixth_powers_may_be_too_large_or_too_small) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  // Also beyond what f16 and f32 hold: x^6 of 10 and of 1e7.
  constexpr bool half = std::same_as<T, float16>;
  for (const double size : {10.0, half ? 1e3 : 1e7, half ? 1e4 : 1e13, half ? 1e-3 : 1e-9})
    for (const shape s : {shape{3, 37}, shape{600, 64}}) {  // the second has rows whose sums are made beside others
      SCOPED_TRACE(testing::Message() << size << ", " << s);
      problem<T> p(s, size < 1 ? 0 : 1e-6);
      for (std::size_t j = 0; j < s.cols; ++j) p.x(1, j) = from_f64<T>(size * to_f64(p.x(1, j)));
      std::vector<std::size_t> at = probes(s.cols);
      p.template both_ways<B>();
      const auto y = p.y_wanted();
      EXPECT_TRUE(close(p.y.f64(), y, forward_bound.of<T>()));
      using A = accumulator_t<T>;
      const auto rstd = rstd_reference(p.x.f64(), s.cols, p.opt.eps);
      for (std::size_t k = 3; k < 6; ++k)
        EXPECT_TRUE(
            close({{to_f64(p.rstd[k])}}, {{rstd[k]}}, forward_bound.of<A>(), {.scale = std::numeric_limits<A>::min()}));
      for (std::size_t& k : at) k += s.cols;
      EXPECT_TRUE(close(pick(p.dx.f64(), at), p.dx_wanted(at), gradient_bound.of<T>(), {.scale = p.dx_scale()}));
      p.check_parameters(p.parameters_wanted());
    }
}

TYPED_TEST(poly_norm, dx_may_be_dy_or_x) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{3, 4 * lanes<B, T> + 3, 2}, large}) {
    problem<T> apart(s), over_dy(s), over_x(s);
    for (problem<T>* p : {&apart, &over_dy, &over_x}) p->template forward<B>();
    apart.template backward<B>(apart.dx.view());
    over_dy.template backward<B>(over_dy.dy.view()), over_x.template backward<B>(over_x.x.view());
    EXPECT_EQ(bits_of(over_dy.dy, over_dy.dw, over_dy.db), bits_of(apart.dx, apart.dw, apart.db));
    EXPECT_EQ(bits_of(over_x.x, over_x.dw, over_x.db), bits_of(apart.dx, apart.dw, apart.db));
  }
}

TYPED_TEST(poly_norm, accumulates_when_asked) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{0, 5}, shape{3, 37}, large}) {
    SCOPED_TRACE(s);
    problem<T> p(s);
    p.opt.dparams = tigon::gradient::accumulate;
    p.dw.assign({1.5, -2, 0.5}), p.db.assign({3});
    sums wanted = p.parameters_wanted();
    for (std::size_t k = 0; k < 3; ++k) wanted.dw[k] += to_f64(p.dw[k]);
    wanted.db[0] += 3;
    p.template both_ways<B>();
    p.check_parameters(wanted);
  }
}

TYPED_TEST(poly_norm, nan_and_infinity_stay_in_their_rows) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = lanes<B, T>;
  for (const shape s : {shape{4, 2 * n + 3}, large}) {
    problem<T> clean(s);
    clean.template both_ways<B>();
    for (const std::size_t column : {std::size_t{0}, n - 1, n, s.cols - 1})
      for (const double bad : {nan, infinity, -infinity}) {
        SCOPED_TRACE(testing::Message() << bad << " in column " << column << ", " << s);
        problem<T> p(s);
        p.x(1, column) = from_f64<T>(bad);
        p.template both_ways<B>();
        auto y = clean.y.f64(), dx = clean.dx.f64();
        for (std::size_t j = 0; j < s.cols; ++j) {
          y[s.cols + j] = std::isnan(bad) || j == column ? nan : to_f64(p.b[0]);
          dx[s.cols + j] = nan;
        }
        EXPECT_TRUE(close(p.y.f64(), y, 0));
        EXPECT_TRUE(close(p.dx.f64(), dx, 0));
        for (const T v : p.dw) EXPECT_TRUE(std::isnan(to_f64(v)));
        EXPECT_EQ(bits_of(p.db), bits_of(clean.db));
      }
  }
}

TYPED_TEST(poly_norm, rows_of_the_range_of_the_type) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{6, 5}, large}) {
    SCOPED_TRACE(testing::Message() << s);
    check_norm_over_the_range<B, T>([=] { return problem<T>(s, 0); }, forward_bound.of<T>(), gradient_bound.of<T>());
  }
}

TYPED_TEST(poly_norm, a_row_of_zeros_is_the_bias) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{2, 37}, large}) {
    problem<T> p(s);
    for (std::size_t j = 0; j < s.cols; ++j) p.x(1, j) = T{};
    p.template both_ways<B>();
    for (std::size_t j = 0; j < s.cols; ++j) {
      ASSERT_EQ(to_f64(p.y(1, j)), to_f64(p.b[0]));
      ASSERT_TRUE(close({{to_f64(p.dx(1, j))}}, {{1e3 * to_f64(p.dy(1, j)) * to_f64(p.w[2])}}, gradient_bound.of<T>()));
    }
  }
}

TYPED_TEST(poly_norm, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001, 4};
  constexpr std::size_t few = 40;  // more elements than backward takes f64 for
  problem<T> p(s), small({few, s.cols, s.padding});
  p.template both_ways<B>();
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
  for (const std::size_t first : {std::size_t{0}, s.rows - few}) {
    const auto part = [&](auto& m) { return m.view().rows_from(first, few); };
    tigon::poly_norm_forward<B>(part(p.x), p.w, p.b, small.y.view(), small.rstd, p.opt);
    tigon::poly_norm_backward<B>(part(p.dy), part(p.x), p.w, std::span(p.rstd).subspan(3 * first, 3 * few),
                                 tigon::norm_gradients{small.dx.view(), small.dw, small.db}, p.opt);
    for (std::size_t i = 0; i < few; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        ASSERT_EQ(to_f64(p.y(first + i, j)), to_f64(small.y(i, j))) << "row " << first + i << ", column " << j;
        ASSERT_EQ(to_f64(p.dx(first + i, j)), to_f64(small.dx(i, j))) << "row " << first + i << ", column " << j;
      }
  }
}

TYPED_TEST(poly_norm, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{190, 2049}, shape{1000, 32}}) {  // the second in f64
    problem<T> p(s);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.y.clear(), p.rstd.clear(), p.dx.clear(), p.dw.clear(), p.db.clear();
      p.template both_ways<B>(ctx);
      return bits_of(p.y, p.rstd, p.dx, p.dw, p.db);
    }));
  }
}

TEST(poly_norm_mixed, gradients_of_parameters_of_small_problems_are_rounded_once) {
  problem<float> p({1, 4000});
  p.both_ways<tigon::default_backend>();
  const sums wanted = p.parameters_wanted();
  for (std::size_t k = 0; k < 3; ++k) EXPECT_LE(std::abs(p.dw[k] - wanted.dw[k]), 6e-8 * std::abs(wanted.dw[k]));
  EXPECT_LE(std::abs(p.db[0] - wanted.db[0]), 6e-8 * std::abs(wanted.db[0]));
}

TEST(poly_norm_mixed, gradients_have_the_type_of_their_parameters) {
  const auto check = [](auto p) {
    p.template both_ways<tigon::default_backend>();
    EXPECT_TRUE(close(p.y.f64(), p.y_wanted(), forward_bound.bf16));
    p.check_parameters(p.parameters_wanted());
  };
  check(problem<bfloat16, float>(shape{5, 67}));
  check(problem<bfloat16, bfloat16, float>(shape{5, 67}));
  check(problem<bfloat16, float, bfloat16>(shape{5, 67}));
  check(problem<float, bfloat16, float>(shape{5, 67}));
}

TEST(poly_norm_mixed, gradients_may_be_absent) {
  problem<float> all({5, 67}), some({5, 67});
  all.both_ways<tigon::default_backend>(), some.forward<tigon::default_backend>();
  tigon::poly_norm_backward(some.dy, some.x, some.w, some.rstd, tigon::norm_gradients{some.dx.view(), some.dw, absent});
  EXPECT_EQ(bits_of(some.dx, some.dw), bits_of(all.dx, all.dw));
  tigon::poly_norm_backward(some.dy, some.x, some.w, some.rstd, tigon::norm_gradients{some.dx.view(), absent, some.db});
  EXPECT_EQ(bits_of(some.dx, some.db), bits_of(all.dx, all.db));
}

template <tigon::row_order Order>
struct ordered : usual_backend {
  static constexpr tigon::row_tuning row{.cpu = {.name = "ordered", .order = Order}};
};
template <class B>
void check_rows_behind_one_in_f64() {
  const shape s{600, 64};
  problem<float> p(s);
  for (std::size_t j = 0; j < s.cols; ++j) p.x(1, j) *= 1e7f;
  p.both_ways<B>();
  const auto at = probes(20 * s.cols, 640);
  EXPECT_TRUE(close(pick(p.dx.f64(), at), p.dx_wanted(at), gradient_bound.f32));
  p.check_parameters(p.parameters_wanted());
}
TEST(poly_norm_tuning, a_row_in_f64_leaves_the_others_their_sums) {
  check_rows_behind_one_in_f64<ordered<tigon::row_order::lookahead>>();
  check_rows_behind_one_in_f64<ordered<tigon::row_order::reduce_then_map>>();
}

TEST(poly_norm_wide, rows_have_no_longest_width) {
  for (const shape s : {shape{16, 4096}, shape{2, 65537}, shape{2, 200000}}) {
    SCOPED_TRACE(s);
    problem<float> p(s);
    p.both_ways<tigon::default_backend>();
    const auto at = probes(s.rows * s.cols);
    EXPECT_TRUE(close(p.y.f64(), p.y_wanted(), forward_bound.f32));
    EXPECT_TRUE(close(pick(p.dx.f64(), at), p.dx_wanted(at), gradient_bound.f32));
    p.check_parameters(p.parameters_wanted());
  }
}

/// The doors, which are the same for every backend: refused before the first write.
class poly_norm_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using floats = std::span<float>;

  poly_norm_doors() { p.forward<tigon::default_backend>(), p.y.clear(); }

  problem<float> p{{3, 8, 2}};
  guarded<float> all = guarded<float>(64);
  const view x = p.x.view(), y = p.y.view(), dy = p.dy.view(), dx = p.dx.view();
  const view front{all.data(), 3, 8}, shifted{all.data() + 8, 3, 8};
  const floats w{p.w}, b{p.b}, rstd{p.rstd}, dw{p.dw}, db{p.db};
  const floats nine = floats(all).first(9), three = nine.first(3), one = nine.first(1);
};

TEST_F(poly_norm_doors, forward_refuses) {
  using enum tigon::error_code;
  const auto refused = [&](tigon::error_code code, std::string_view part, view x, floats w, floats b, view y,
                           floats rstd, double eps = 1e-6) {
    EXPECT_TRUE(
        refuses([&] { tigon::poly_norm_forward(x, w, b, y, rstd, {.eps = eps}); }, code, part, p.y, p.rstd, all));
  };
  refused(shape, "poly_norm_forward: cols is 0; expected at least 1", {x.data, 3, 0, 8}, w, b, {y.data, 3, 0, 8}, rstd);
  refused(stride, "poly_norm_forward: x is of row stride 7", {x.data, 3, 8, 7}, w, b, y, rstd);
  refused(shape, "poly_norm_forward: y is 2 x 8; expected 3 x 8", x, w, b, {y.data, 2, 8, 10}, rstd);
  refused(shape, "poly_norm_forward: y is a null pointer", x, w, b, {nullptr, 3, 8, 8}, rstd);
  refused(shape, "poly_norm_forward: w is of 2 elements; expected 3", x, w.first(2), b, y, rstd);
  refused(shape, "poly_norm_forward: w is of 0 elements; expected 3", x, {}, b, y, rstd);
  refused(shape, "poly_norm_forward: b is of 3 elements; expected 1", x, w, w, y, rstd);
  refused(shape, "poly_norm_forward: rstd is of 8 elements; expected 9", x, w, b, y, rstd.first(8));
  for (const double bad : {-1e-6, nan, infinity}) refused(argument, "poly_norm_forward: eps is", x, w, b, y, rstd, bad);
  refused(alias, "poly_norm_forward: y overlaps x; expected no common memory", front, w, b, front, rstd);
  refused(alias, "poly_norm_forward: y overlaps w", x, three, b, front, rstd);
  refused(alias, "poly_norm_forward: y overlaps b", x, w, one, front, rstd);
  refused(alias, "poly_norm_forward: rstd overlaps x", front, w, b, y, nine);
  refused(alias, "poly_norm_forward: rstd overlaps y", x, w, b, front, nine);
  refused(alias, "poly_norm_forward: rstd overlaps w", x, three, b, y, nine);
  refused(alias, "poly_norm_forward: rstd overlaps b", x, w, one, y, nine);
}

TEST_F(poly_norm_doors, backward_refuses) {
  using enum tigon::error_code;
  const auto refused = [&](tigon::error_code code, std::string_view part, view dy, view x, floats w, floats rstd,
                           view dx, floats dw, floats db, double eps = 1e-6) {
    EXPECT_TRUE(refuses(
        [&] {
          tigon::poly_norm_backward(dy, x, w, rstd, tigon::norm_gradients{dx, dw, db}, {.eps = eps});
        },
        code, part, p.dx, p.dw, p.db, all));
  };
  refused(shape, "poly_norm_backward: cols is 0; expected at least 1", {dy.data, 3, 0, 8}, {x.data, 3, 0, 8}, w, rstd,
          {dx.data, 3, 0, 8}, dw, db);
  refused(shape, "poly_norm_backward: dy is 2 x 8; expected 3 x 8", {dy.data, 2, 8, 10}, x, w, rstd, dx, dw, db);
  refused(stride, "poly_norm_backward: x is of row stride 7", dy, {x.data, 3, 8, 7}, w, rstd, dx, dw, db);
  refused(shape, "poly_norm_backward: dx is 3 x 7; expected 3 x 8", dy, x, w, rstd, {dx.data, 3, 7, 10}, dw, db);
  refused(shape, "poly_norm_backward: w is of 2 elements; expected 3", dy, x, w.first(2), rstd, dx, dw, db);
  refused(shape, "poly_norm_backward: rstd is of 3 elements; expected 9", dy, x, w, rstd.first(3), dx, dw, db);
  refused(shape, "poly_norm_backward: dw is of 2 elements; expected 3", dy, x, w, rstd, dx, dw.first(2), db);
  refused(shape, "poly_norm_backward: db is of 3 elements; expected 1", dy, x, w, rstd, dx, dw, three);
  refused(argument, "poly_norm_backward: eps is", dy, x, w, rstd, dx, dw, db, nan);
  refused(alias, "poly_norm_backward: dx overlaps dy; expected the same buffer or", front, x, w, rstd, shifted, dw, db);
  refused(alias, "poly_norm_backward: dx overlaps x; expected the same buffer or", dy, front, w, rstd, shifted, dw, db);
  refused(alias, "poly_norm_backward: dx overlaps w", dy, x, three, rstd, front, dw, db);
  refused(alias, "poly_norm_backward: dx overlaps rstd", dy, x, w, nine, front, dw, db);
  refused(alias, "poly_norm_backward: dw overlaps db", dy, x, w, rstd, dx, three, one);
  for (const bool first : {true, false}) {  // dw, then db
    const floats dw_at = first ? three : dw, db_at = first ? db : one;
    const std::string says = first ? "poly_norm_backward: dw overlaps " : "poly_norm_backward: db overlaps ";
    refused(alias, says + "dy", front, x, w, rstd, dx, dw_at, db_at);
    refused(alias, says + "x", dy, front, w, rstd, dx, dw_at, db_at);
    refused(alias, says + "dx", dy, x, w, rstd, front, dw_at, db_at);
    refused(alias, says + "w", dy, x, three, rstd, dx, dw_at, db_at);
    refused(alias, says + "rstd", dy, x, w, nine, dx, dw_at, db_at);
  }
}

TEST_F(poly_norm_doors, backward_needs_the_workspace_that_it_names) {
  for (const std::size_t threads : {1u, 3u})
    with_workspace_of(
        64,
        [&](context&) {
          const std::size_t bytes = tigon::poly_norm_workspace<tigon::default_backend, float>(3);
          const auto call = [&](context& ctx) { p.backward<tigon::default_backend>(dx, ctx); };
          p.dx.clear();
          EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call, threads), workspace,
                             "poly_norm_backward: workspace is of", p.dx, p.dw, p.db);
          with_workspace_of(bytes, call, threads);
          EXPECT_FALSE(p.dx.untouched());
        },
        threads);
}

}  // namespace
