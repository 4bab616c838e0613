// The contract of include/tigon/ops/dyt.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/dyt.hpp>

#include <complex>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::accumulator_t, tigon::bfloat16, tigon::context;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type forward_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};

/// Results by their definition, element by element: derivatives by an imaginary step, sums in long double.
struct results {
  std::vector<double> y, dx, dgamma, dbeta;
  double dalpha = 0;
  double of_dalpha = 0, of_dgamma = 0, of_dbeta = 0;  ///< root sums of squares of their terms, of a column on average
};

/// Every buffer at a guard page, outputs full of canaries; no beta and dbeta where there is none.
template <class T, class W = T>
struct problem {
  tigon::dyt_options opt;
  bool shifted;
  guarded_matrix<T> x, dy, y, dx;
  guarded<W> alpha, gamma, beta, dalpha, dgamma, dbeta;

  TIGON_TEST_NOINLINE explicit problem(shape s, bool with_beta = true, guard side = guard::behind)
      : shifted(with_beta),
        x(random_matrix<T>(s, 1, side, {.deviation = 3})),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side),
        alpha(1, side),
        gamma(random_vector<W>(s.cols, 3, side)),
        beta(random_vector<W>(with_beta ? s.cols : 0, 4, side)),
        dalpha(1, side),
        dgamma(s.cols, side),
        dbeta(beta.size(), side) {
    alpha[0] = from_f64<W>(0.5);
  }

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    if (shifted)
      tigon::dyt_forward<B>(x, alpha, gamma, beta, y.view(), opt, ctx);
    else
      tigon::dyt_forward<B>(x, alpha, gamma, absent, y.view(), opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    if (shifted)
      tigon::dyt_backward<B>(dy, x, alpha, gamma, tigon::dyt_gradients{to, dalpha, dgamma, dbeta}, opt, ctx);
    else
      tigon::dyt_backward<B>(dy, x, alpha, gamma, tigon::dyt_gradients{to, dalpha, dgamma, absent}, opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(dx.view(), ctx);
  }

  TIGON_TEST_NOINLINE results wanted() const {
    using complex = std::complex<double>;
    constexpr double step = 1e-30;
    const auto value = [](complex a, complex v, double g) { return g * std::tanh(a * v); };
    const double a = to_f64(alpha[0]);
    const std::size_t cols = x.cols();
    results out;
    std::vector<long double> dg(cols), db(cols);
    long double da = 0, a_terms = 0, g_terms = 0, b_terms = 0;
    for (std::size_t i = 0; i < x.rows(); ++i)
      for (std::size_t j = 0; j < cols; ++j) {
        const double v = to_f64(x(i, j)), g = to_f64(gamma[j]), d = to_f64(dy(i, j));
        out.y.push_back(g * std::tanh(a * v) + (shifted ? to_f64(beta[j]) : 0));
        out.dx.push_back(d * std::imag(value(a, {v, step}, g)) / step);
        const long double of_alpha = (long double)d * std::imag(value({a, step}, v, g)) / step;
        const long double of_gamma = (long double)d * std::tanh(a * v);
        da += of_alpha, dg[j] += of_gamma, db[j] += d;
        a_terms += of_alpha * of_alpha, g_terms += of_gamma * of_gamma, b_terms += d * d;
      }
    out.dgamma.assign(dg.begin(), dg.end()), out.dbeta.assign(db.begin(), db.end());
    out.dalpha = static_cast<double>(da), out.of_dalpha = static_cast<double>(std::sqrt(a_terms));
    const auto columns = static_cast<double>(std::max<std::size_t>(cols, 1));
    out.of_dgamma = std::sqrt(static_cast<double>(g_terms) / columns);
    out.of_dbeta = std::sqrt(static_cast<double>(b_terms) / columns);
    return out;
  }
  /// Compares the gradients of the parameters; P is the type whose rounding they have.
  template <class P = W>
  TIGON_TEST_NOINLINE void check_parameters(const results& wanted) const {
    const bool empty = gamma.size() == 0;
    const double bound = gradient_bound.of<P>();
    EXPECT_TRUE(close(dalpha.f64(), {&wanted.dalpha, 1}, bound, {.scale = wanted.of_dalpha}));
    EXPECT_TRUE(close(dgamma.f64(), wanted.dgamma, bound, {.scale = wanted.of_dgamma, .may_be_empty = empty}));
    if (shifted) {
      EXPECT_TRUE(close(dbeta.f64(), wanted.dbeta, bound, {.scale = wanted.of_dbeta, .may_be_empty = empty}));
    }
  }
};

template <class On>
class dyt : public testing::Test {};
TYPED_TEST_SUITE(dyt, every_pair, names);

TYPED_TEST(dyt, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  auto shapes = row_shapes<B, T>();
  shapes.insert(shapes.end(), {{3, 0}, {70, 501}});  // the last one has too many elements for dalpha in f64
  for (const shape s : shapes)
    for (const bool with_beta : {true, false}) {
      const results wanted = problem<T>(s, with_beta).wanted();
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << (with_beta ? ", beta, " : ", ") << side);
        problem<T> p(s, with_beta, side);
        p.template both_ways<B>();
        const comparison with{.may_be_empty = s.rows * s.cols == 0};
        EXPECT_TRUE(close(p.y.f64(), wanted.y, forward_bound.of<T>(), with));
        EXPECT_TRUE(close(p.dx.f64(), wanted.dx, gradient_bound.of<T>(), with));
        p.check_parameters(wanted);
        EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
      }
    }
}

TYPED_TEST(dyt, is_accurate_relatively_near_zero_and_in_saturation) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  // |alpha x| from 1e-6 to 40 and from where the exponential would end in 0.
  constexpr bool f32 = std::same_as<A, float>;
  problem<A> p({1, 4000}, false);
  for (std::size_t j = 0; j < 4000; ++j) {
    const double v = 2e-6 * std::pow(4e7, static_cast<double>(j) / 4000);
    p.x(0, j) = static_cast<A>(j % 2 == 0 ? v : -v), p.gamma[j] = 1, p.dy(0, j) = 1;
  }
  p.template both_ways<B>();
  const results wanted = p.wanted();
  for (std::size_t j = 0; j < 4000; ++j) {
    const double bound = f32 ? 1e-6 : 4e-15;
    ASSERT_LE(std::abs(to_f64(p.y(0, j)) / wanted.y[j] - 1), bound) << "at " << p.x(0, j);
    ASSERT_LE(std::abs(to_f64(p.dx(0, j)) / wanted.dx[j] - 1), bound) << "at " << p.x(0, j);
  }
}

TYPED_TEST(dyt, forward_is_relaxed_by_no_more_than_it_says) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  // Before it is rounded.
  constexpr by_type relative{.f32 = 1e-6, .bf16 = 1.2e-4, .f16 = 1e-6, .f64 = 2e-15};
  constexpr bool f16 = std::same_as<T, tigon::float16>;
  constexpr int digits = std::same_as<T, bfloat16> ? 8 : f16 ? 11 : 1000;
  problem<T> p({1, 4000}, false);
  for (std::size_t j = 0; j < 4000; ++j) p.gamma[j] = from_f64<T>(1);
  // From 2^-20 to 2^20 the relaxed form serves; f16 has neither these nor what they are multiplied with.
  for (const double alpha : {0.5, -0.5, 0x1p-20, -0x1p-20, 0x1.fp-21, 0x1p20, 0x1.02p20, 0x1p-70, 0x1p70}) {
    if (f16 && std::abs(alpha) != 0.5) continue;
    p.alpha[0] = from_f64<T>(alpha);
    for (std::size_t j = 0; j < 4000; ++j) {
      const double u = 1e-3 * std::pow(2e4, static_cast<double>(j) / 4000);
      p.x(0, j) = from_f64<T>((j % 2 == 0 ? u : -u) / alpha);
    }
    p.template forward<B>();
    for (std::size_t j = 0; j < 4000; ++j) {
      const double u = alpha * to_f64(p.x(0, j)), y = std::tanh(u), rounding = std::ldexp(1, std::ilogb(y) - digits);
      ASSERT_LE(std::abs(to_f64(p.y(0, j)) - y), rounding + relative.of<T>() * std::abs(y))
          << "at " << u << ", alpha = " << alpha;
    }
  }
}

TYPED_TEST(dyt, saturates_at_one_whatever_alpha_is) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr double widest = std::same_as<T, tigon::float16> ? 0x1p6 : 0x1p22;
  problem<T> p({1, 4 * lanes<B, T> + 3});
  for (std::size_t j = 0; j < p.gamma.size(); ++j) {
    const double sign = j % 2 == 0 ? 1 : -1;
    p.gamma[j] = from_f64<T>(sign * 3), p.beta[j] = from_f64<T>(-3);
  }
  for (double alpha = 1 / widest; alpha < widest; alpha *= -1.037) {
    p.alpha[0] = from_f64<T>(alpha);
    for (std::size_t j = 0; j < p.gamma.size(); ++j)
      p.x(0, j) =
          from_f64<T>((j % 2 == 0 ? 1 : -1) * (j % 3 == 0 ? infinity : 25 / std::abs(alpha)) * (alpha < 0 ? -1 : 1));
    p.template forward<B>();
    for (std::size_t j = 0; j < p.gamma.size(); ++j) ASSERT_EQ(to_f64(p.y(0, j)), 0) << "alpha = " << alpha;
  }
}

/// The largest error of what backward makes and rounds to T: the slope, which is dx, and the tanh, which is dgamma.
template <class T>
double most_relaxed(double wanted) {
  constexpr by_type relative{.f32 = 1e-6, .bf16 = 1.4e-4, .f16 = 1e-6, .f64 = 4e-15};
  constexpr int digits = std::same_as<T, bfloat16> ? 8 : std::same_as<T, tigon::float16> ? 11 : 1000;
  constexpr int lowest = std::same_as<T, tigon::float16> ? -14 : -1000;  // exponent of normal numbers
  const double rounding = std::ldexp(1, std::max(std::ilogb(wanted), lowest) - digits);
  return rounding + relative.of<T>() * std::abs(wanted);
}

TYPED_TEST(dyt, backward_is_relaxed_by_no_more_than_it_says) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({1, 4000}, false);
  for (std::size_t j = 0; j < 4000; ++j) {
    const double v = 2e-3 * std::pow(2e4, static_cast<double>(j) / 4000);
    p.x(0, j) = from_f64<T>(j % 2 == 0 ? v : -v), p.gamma[j] = from_f64<T>(2), p.dy(0, j) = from_f64<T>(1);
  }
  for (const double alpha : {0.5, -0.5}) {
    p.alpha[0] = from_f64<T>(alpha);
    p.template backward<B>(p.dx.view());
    for (std::size_t j = 0; j < 4000; ++j) {
      const double u = alpha * to_f64(p.x(0, j)), t = std::tanh(u), slope = std::pow(std::cosh(u), -2);
      ASSERT_LE(std::abs(to_f64(p.dgamma[j]) - t), most_relaxed<T>(t)) << "at " << u;
      ASSERT_LE(std::abs(to_f64(p.dx(0, j)) - 2 * alpha * slope), most_relaxed<T>(2 * alpha * slope)) << "at " << u;
    }
  }
}

TYPED_TEST(dyt, small_tanh_keeps_its_digits_backward) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  // alpha x from 1e-6, where bf16's is a difference of numbers near 1.
  constexpr double absolute = std::same_as<T, bfloat16> ? 1.5e-8 : 0;
  problem<T> p({1, 4000}, false);
  for (std::size_t j = 0; j < 4000; ++j) {
    const double v = 2e-6 * std::pow(1e3, static_cast<double>(j) / 4000);
    p.x(0, j) = from_f64<T>(j % 2 == 0 ? v : -v), p.gamma[j] = from_f64<T>(1), p.dy(0, j) = from_f64<T>(1);
  }
  for (const double alpha : {0.5, -0.5}) {
    p.alpha[0] = from_f64<T>(alpha);
    p.template backward<B>(p.dx.view());
    for (std::size_t j = 0; j < 4000; ++j) {
      const double t = std::tanh(alpha * to_f64(p.x(0, j)));
      ASSERT_LE(std::abs(to_f64(p.dgamma[j]) - t), most_relaxed<T>(t) + absolute) << "t = " << t;
    }
  }
}

TYPED_TEST(dyt, alpha_may_be_zero_or_negative) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const double alpha : {0.0, -0.75}) {
    SCOPED_TRACE(alpha);
    problem<T> p({3, 37});
    p.alpha[0] = from_f64<T>(alpha);
    p.template both_ways<B>();
    const results wanted = p.wanted();
    EXPECT_TRUE(close(p.y.f64(), wanted.y, forward_bound.of<T>()));
    EXPECT_TRUE(close(p.dx.f64(), wanted.dx, gradient_bound.of<T>()));
    EXPECT_NE(to_f64(p.dalpha[0]), 0);
    p.check_parameters(wanted);
  }
}

TYPED_TEST(dyt, dx_may_be_dy_or_x) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{3, 4 * lanes<B, T> + 3, 2};
  problem<T> apart(s), over_dy(s), over_x(s);
  apart.template backward<B>(apart.dx.view());
  over_dy.template backward<B>(over_dy.dy.view()), over_x.template backward<B>(over_x.x.view());
  EXPECT_EQ(bits_of(over_dy.dy, over_dy.dalpha, over_dy.dgamma, over_dy.dbeta),
            bits_of(apart.dx, apart.dalpha, apart.dgamma, apart.dbeta));
  EXPECT_EQ(bits_of(over_x.x, over_x.dalpha, over_x.dgamma, over_x.dbeta),
            bits_of(apart.dx, apart.dalpha, apart.dgamma, apart.dbeta));
}

TYPED_TEST(dyt, accumulates_when_asked) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{0, 5}, shape{3, 5}, shape{3, 37}, shape{70, 501}}) {
    SCOPED_TRACE(s);
    problem<T> p(s);
    p.opt.dparams = tigon::gradient::accumulate;
    p.dalpha.assign({1.5}), p.dgamma.assign(normal_values(s.cols, 5)), p.dbeta.assign(normal_values(s.cols, 6));
    results wanted = p.wanted();
    wanted.dalpha += 1.5;
    for (std::size_t j = 0; j < s.cols; ++j)
      wanted.dgamma[j] += to_f64(p.dgamma[j]), wanted.dbeta[j] += to_f64(p.dbeta[j]);
    p.template backward<B>(p.dx.view());
    p.check_parameters(wanted);
  }
}

TYPED_TEST(dyt, infinity_saturates_and_nan_stays_in_its_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = 4 * lanes<B, T>;
  const shape s{4, n + 3};
  problem<T> clean(s);
  clean.template both_ways<B>();
  for (const std::size_t column : {std::size_t{0}, n - 1, n, s.cols - 1})
    for (const double bad : {nan, infinity, -infinity}) {
      SCOPED_TRACE(testing::Message() << bad << " in column " << column);
      problem<T> p(s);
      p.x(1, column) = from_f64<T>(bad);
      p.template both_ways<B>();
      const double sign = bad > 0 ? 1 : -1, g = to_f64(p.gamma[column]), b = to_f64(p.beta[column]);
      auto y = clean.y.f64(), dx = clean.dx.f64();
      y[s.cols + column] =
          std::isnan(bad) ? nan : to_f64(from_f64<T>(static_cast<double>(static_cast<accumulator_t<T>>(sign * g + b))));
      dx[s.cols + column] = std::isnan(bad) ? nan : 0;
      EXPECT_TRUE(close(p.y.f64(), y, 0));
      EXPECT_TRUE(close(p.dx.f64(), dx, 0));
      EXPECT_TRUE(std::isnan(to_f64(p.dalpha[0])));
      for (std::size_t j = 0; j < s.cols; ++j) {
        if (j != column) {
          ASSERT_EQ(to_f64(p.dgamma[j]), to_f64(clean.dgamma[j])) << "column " << j;
        }
      }
      EXPECT_EQ(std::isnan(to_f64(p.dgamma[column])), std::isnan(bad));
      EXPECT_EQ(bits_of(p.dbeta), bits_of(clean.dbeta));
    }
}

TYPED_TEST(dyt, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001, 4};
  problem<T> p(s), small({3, s.cols, s.padding});
  p.template both_ways<B>();
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
  for (const std::size_t first : {std::size_t{0}, s.rows - 3}) {
    const auto part = [&](auto& m) { return m.view().rows_from(first, 3); };
    tigon::dyt_forward<B>(part(p.x), p.alpha, p.gamma, p.beta, small.y.view());
    tigon::dyt_backward<B>(part(p.dy), part(p.x), p.alpha, p.gamma,
                           tigon::dyt_gradients{small.dx.view(), small.dalpha, small.dgamma, small.dbeta});
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        ASSERT_EQ(to_f64(p.y(first + i, j)), to_f64(small.y(i, j))) << "row " << first + i << ", column " << j;
        ASSERT_EQ(to_f64(p.dx(first + i, j)), to_f64(small.dx(i, j))) << "row " << first + i << ", column " << j;
      }
  }
}

TYPED_TEST(dyt, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{190, 2049}, shape{300, 101}}) {  // dalpha in f32 and, of fewer elements, in f64
    problem<T> p(s);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.y.clear(), p.dx.clear(), p.dalpha.clear(), p.dgamma.clear(), p.dbeta.clear();
      p.template both_ways<B>(ctx);
      return bits_of(p.y, p.dx, p.dalpha, p.dgamma, p.dbeta);
    }));
  }
}

TEST(dyt_mixed, gradients_have_the_type_of_their_parameters) {
  problem<bfloat16, float> wide({5, 67});
  wide.both_ways<tigon::default_backend>();
  const results wanted = wide.wanted();
  EXPECT_TRUE(close(wide.y.f64(), wanted.y, forward_bound.bf16));
  EXPECT_TRUE(close(wide.dx.f64(), wanted.dx, gradient_bound.bf16));
  wide.check_parameters(wanted);

  problem<float, bfloat16> narrow({5, 67});
  narrow.both_ways<tigon::default_backend>();
  EXPECT_TRUE(close(narrow.y.f64(), narrow.wanted().y, forward_bound.f32));
  narrow.check_parameters(narrow.wanted());
}

TEST(dyt_mixed, gradients_may_be_absent) {
  problem<float> all({5, 67}), some({5, 67});
  all.both_ways<tigon::default_backend>();
  tigon::dyt_backward(some.dy, some.x, some.alpha, some.gamma,
                      tigon::dyt_gradients{some.dx.view(), some.dalpha, absent, absent});
  EXPECT_EQ(bits_of(some.dx, some.dalpha), bits_of(all.dx, all.dalpha));
  tigon::dyt_backward(some.dy, some.x, some.alpha, some.gamma,
                      tigon::dyt_gradients{some.dx.view(), absent, some.dgamma, some.dbeta});
  EXPECT_EQ(bits_of(some.dx, some.dgamma, some.dbeta), bits_of(all.dx, all.dgamma, all.dbeta));
}

TEST(dyt_wide, rows_have_no_longest_width) {
  for (const std::size_t cols : {65537u, 200000u}) {
    problem<float> p({2, cols});
    p.both_ways<tigon::default_backend>();
    const results wanted = p.wanted();
    EXPECT_TRUE(close(p.y.f64(), wanted.y, forward_bound.f32));
    EXPECT_TRUE(close(p.dx.f64(), wanted.dx, gradient_bound.f32));
    p.check_parameters(wanted);
  }
}

/// The doors, which are the same for every backend: refused before the first write.
class dyt_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using floats = std::span<float>;

  void forward(view x, floats alpha, floats gamma, floats beta, view y) {
    tigon::dyt_forward(x, alpha, gamma, beta, y);
  }
  void backward(view dy, view x, floats alpha, floats gamma, view dx, floats dalpha, floats dgamma, floats dbeta) {
    tigon::dyt_backward(dy, x, alpha, gamma, tigon::dyt_gradients{dx, dalpha, dgamma, dbeta});
  }

  problem<float> p{{3, 8, 2}};
  guarded<float> all = guarded<float>(64);
  const view x = p.x.view(), y = p.y.view(), dy = p.dy.view(), dx = p.dx.view();
  const view front{all.data(), 3, 8}, shifted{all.data() + 8, 3, 8};
  const floats alpha{p.alpha}, gamma{p.gamma}, beta{p.beta}, dalpha{p.dalpha}, dgamma{p.dgamma}, dbeta{p.dbeta};
  const floats row = floats(all).first(8), one = row.first(1);
};

TEST_F(dyt_doors, forward_refuses) {
  using enum tigon::error_code;
  const auto refused = [&](tigon::error_code code, std::string_view part, view x, floats alpha, floats gamma,
                           floats beta, view y) {
    EXPECT_TRUE(refuses([&] { forward(x, alpha, gamma, beta, y); }, code, part, p.y, all));
  };
  refused(stride, "dyt_forward: x is of row stride 7", {x.data, 3, 8, 7}, alpha, gamma, beta, y);
  refused(shape, "dyt_forward: x is a null pointer", {nullptr, 3, 8, 8}, alpha, gamma, beta, y);
  refused(shape, "dyt_forward: y is 2 x 8; expected 3 x 8", x, alpha, gamma, beta, {y.data, 2, 8, 10});
  refused(stride, "dyt_forward: y is of row stride 7", x, alpha, gamma, beta, {y.data, 3, 8, 7});
  refused(shape, "dyt_forward: alpha is of 2 elements; expected 1", x, gamma.first(2), gamma, beta, y);
  refused(shape, "dyt_forward: alpha is of 0 elements; expected 1", x, {}, gamma, beta, y);
  refused(shape, "dyt_forward: gamma is of 7 elements; expected 8", x, alpha, gamma.first(7), beta, y);
  refused(shape, "dyt_forward: gamma is of 0 elements; expected 8", x, alpha, {}, beta, y);
  refused(shape, "dyt_forward: beta is of 7 elements; expected 8", x, alpha, gamma, beta.first(7), y);
  refused(alias, "dyt_forward: y overlaps x; expected no common memory", front, alpha, gamma, beta, front);
  refused(alias, "dyt_forward: y overlaps alpha", x, one, gamma, beta, front);
  refused(alias, "dyt_forward: y overlaps gamma", x, alpha, row, beta, front);
  refused(alias, "dyt_forward: y overlaps beta", x, alpha, gamma, row, front);
}

TEST_F(dyt_doors, backward_refuses) {
  using enum tigon::error_code;
  const auto refused = [&](tigon::error_code code, std::string_view part, view dy, view x, floats alpha, floats gamma,
                           view dx, floats dalpha, floats dgamma, floats dbeta) {
    EXPECT_TRUE(refuses([&] { backward(dy, x, alpha, gamma, dx, dalpha, dgamma, dbeta); }, code, part, p.dx, p.dalpha,
                        p.dgamma, p.dbeta, all));
  };
  refused(shape, "dyt_backward: dy is 2 x 8; expected 3 x 8", {dy.data, 2, 8, 10}, x, alpha, gamma, dx, dalpha, dgamma,
          dbeta);
  refused(stride, "dyt_backward: x is of row stride 7", dy, {x.data, 3, 8, 7}, alpha, gamma, dx, dalpha, dgamma, dbeta);
  refused(shape, "dyt_backward: dx is 3 x 7; expected 3 x 8", dy, x, alpha, gamma, {dx.data, 3, 7, 10}, dalpha, dgamma,
          dbeta);
  refused(shape, "dyt_backward: alpha is of 2 elements; expected 1", dy, x, gamma.first(2), gamma, dx, dalpha, dgamma,
          dbeta);
  refused(shape, "dyt_backward: gamma is of 7 elements; expected 8", dy, x, alpha, gamma.first(7), dx, dalpha, dgamma,
          dbeta);
  refused(shape, "dyt_backward: dalpha is of 2 elements; expected 1", dy, x, alpha, gamma, dx, row.first(2), dgamma,
          dbeta);
  refused(shape, "dyt_backward: dgamma is of 7 elements; expected 8", dy, x, alpha, gamma, dx, dalpha, dgamma.first(7),
          dbeta);
  refused(shape, "dyt_backward: dbeta is of 7 elements; expected 8", dy, x, alpha, gamma, dx, dalpha, dgamma,
          dbeta.first(7));
  refused(alias, "dyt_backward: dx overlaps dy; expected the same buffer or", front, x, alpha, gamma, shifted, dalpha,
          dgamma, dbeta);
  refused(alias, "dyt_backward: dx overlaps x; expected the same buffer or", dy, front, alpha, gamma, shifted, dalpha,
          dgamma, dbeta);
  refused(alias, "dyt_backward: dx overlaps alpha", dy, x, one, gamma, front, dalpha, dgamma, dbeta);
  refused(alias, "dyt_backward: dx overlaps gamma", dy, x, alpha, row, front, dalpha, dgamma, dbeta);
  for (const int which : {0, 1, 2}) {
    const floats a = which == 0 ? one : dalpha, g = which == 1 ? row : dgamma, b = which == 2 ? row : dbeta;
    const std::string name = which == 0 ? "dalpha" : which == 1 ? "dgamma" : "dbeta";
    const std::string says = "dyt_backward: " + name + " overlaps ";
    refused(alias, says + "dy", front, x, alpha, gamma, dx, a, g, b);
    refused(alias, says + "x", dy, front, alpha, gamma, dx, a, g, b);
    refused(alias, says + "dx", dy, x, alpha, gamma, front, a, g, b);
    refused(alias, says + "alpha", dy, x, one, gamma, dx, a, g, b);
    refused(alias, says + "gamma", dy, x, alpha, row, dx, a, g, b);
  }
  refused(alias, "dyt_backward: dalpha overlaps dgamma", dy, x, alpha, gamma, dx, one, row, dbeta);
  refused(alias, "dyt_backward: dalpha overlaps dbeta", dy, x, alpha, gamma, dx, one, dgamma, row);
  refused(alias, "dyt_backward: dgamma overlaps dbeta", dy, x, alpha, gamma, dx, dalpha, row, row);
}

TEST_F(dyt_doors, backward_needs_the_workspace_that_it_names) {
  for (const shape s : {shape{3, 8}, shape{70, 501}}) {
    problem<float> q(s);
    const std::size_t bytes = tigon::dyt_workspace<tigon::default_backend, float>(s.rows, s.cols);
    const auto call = [&](context& ctx) { q.backward<tigon::default_backend>(q.dx.view(), ctx); };
    EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "dyt_backward: workspace is of", q.dx, q.dalpha,
                       q.dgamma, q.dbeta);
    with_workspace_of(bytes, call);
    EXPECT_FALSE(q.dx.untouched());
    for (const int which : {0, 1, 2}) {  // any gradient of a parameter, alone
      problem<float> one(s);
      const auto wanted = [&](int k, auto& of) {
        return k == which ? std::span<float>(of.data(), of.size()) : std::span<float>{};
      };
      const auto alone = [&](context& ctx) {
        tigon::dyt_backward(
            one.dy, one.x, one.alpha, one.gamma,
            tigon::dyt_gradients{one.dx.view(), wanted(0, one.dalpha), wanted(1, one.dgamma), wanted(2, one.dbeta)}, {},
            ctx);
      };
      EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, alone), workspace, "dyt_backward: workspace is of", one.dx);
      with_workspace_of(bytes, alone);
      EXPECT_FALSE(one.dx.untouched());
    }
  }
}

}  // namespace
