// The promises of simd/math.hpp on every engine: the stated errors, IEEE results, and scalars that agree with vectors.
//
// TIGON_EXHAUSTIVE=1 also runs every f32 argument through every function and prints the largest errors (minutes);
// TIGON_EXHAUSTIVE=67 every 67th.
#include <tigon/simd/math.hpp>

#include <tigon/simd/engines/eigen.hpp>
#include <tigon/simd/engines/highway.hpp>
#include <tigon/simd/engines/xsimd.hpp>

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/typed.hpp"

namespace {

namespace simd = tigon::simd;

#if defined(__FMA__) || defined(__aarch64__)
constexpr bool has_fma = true;
#else
constexpr bool has_fma = false;
#endif

// The numbers of the doc comments.
struct bounds {
  double f32, f32_no_fma, f64, f64_no_fma;
  template <class A>
  constexpr double of() const {
    return sizeof(A) == 4 ? (has_fma ? f32 : f32_no_fma) : (has_fma ? f64 : f64_no_fma);
  }
};

// A function under test, its independent reference and its bound.
struct exp_case {
  static constexpr const char* name = "exp";
  static constexpr bounds bound{0.93, 1.2, 0.95, 1.25};
  static auto apply(auto x) { return exp(x); }
  static auto exact(auto x) { return std::exp(x); }
};
struct exp_nonpositive_case {
  static constexpr const char* name = "exp_nonpositive";
  static constexpr bounds bound{0.93, 1.2, 0.95, 1.25};
  static auto apply(auto x) { return exp_nonpositive(x); }
  static auto exact(auto x) { return std::exp(x); }
  static bool admits(double x) { return !(x > 64); }
};
struct expm1_case {
  static constexpr const char* name = "expm1";
  static constexpr bounds bound{1.32, 1.35, 1.8, 1.8};
  static auto apply(auto x) { return expm1(x); }
  static auto exact(auto x) { return std::expm1(x); }
};
struct log_case {
  static constexpr const char* name = "log";
  static constexpr bounds bound{0.93, 0.95, 0.85, 0.85};
  static auto apply(auto x) { return log(x); }
  static auto exact(auto x) { return std::log(x); }
};
struct log1p_case {
  static constexpr const char* name = "log1p";
  static constexpr bounds bound{0.93, 1, 0.9, 0.9};
  static auto apply(auto x) { return log1p(x); }
  static auto exact(auto x) { return std::log1p(x); }
};
template <class R>
R exact_sigmoid(R x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}
struct sigmoid_case {
  static constexpr const char* name = "sigmoid";
  static constexpr bounds bound{2, 2.05, 1.9, 1.95};
  static auto apply(auto x) { return sigmoid(x); }
  static auto exact(auto x) { return exact_sigmoid(x); }
};
struct sigmoid_of_minus_case {
  static constexpr const char* name = "sigmoid_both, of -x";
  static constexpr bounds bound{2, 2.05, 1.9, 1.95};
  static auto apply(auto x) { return sigmoid_both(x).of_minus_x; }
  static auto exact(auto x) { return exact_sigmoid(-x); }
};
struct tanh_case {
  static constexpr const char* name = "tanh";
  static constexpr bounds bound{2, 2.1, 2.1, 2.2};
  static auto apply(auto x) { return tanh(x); }
  static auto exact(auto x) { return std::tanh(x); }
};
struct rest_of_tanh_case {
  static constexpr const char* name = "tanh_with_rest, 1 - |tanh|";
  static constexpr bounds bound{2, 2.1, 2.1, 2.2};
  static auto apply(auto x) { return tanh_with_rest(x).rest; }
  template <class R>  // double for float, long double for double
  static R exact(R x) {
    using A = std::conditional_t<std::same_as<R, double>, float, double>;
    const R y = -2 * std::fabs(x), e = y < simd::detail::constants<A>::log_smallest ? 0 : std::exp(y);
    return 2 * e / (1 + e);
  }
};
struct erf_case {
  static constexpr const char* name = "erf";
  static constexpr bounds bound{1.85, 2.05, 1.7, 1.9};
  static auto apply(auto x) { return erf(x); }
  static auto exact(auto x) { return std::erf(x); }
};
struct rsqrt_case {
  static constexpr const char* name = "rsqrt";
  static constexpr bounds bound{1.5, 1.5, 1.5, 1.5};
  static auto apply(auto x) { return rsqrt(x); }
  static auto exact(auto x) { return 1 / std::sqrt(x); }
};

template <class F>
void for_every_function(F f) {
  f(exp_case());
  f(exp_nonpositive_case());
  f(expm1_case());
  f(log_case());
  f(log1p_case());
  f(sigmoid_case());
  f(sigmoid_of_minus_case());
  f(tanh_case());
  f(rest_of_tanh_case());
  f(erf_case());
  f(rsqrt_case());
}

// Rounded once more to f32, f64 libraries are as good as exact; long double does the same for f64 where it is longer.
template <class A>
using wide = std::conditional_t<sizeof(A) == 4, double, long double>;
constexpr bool long_double_is_longer = LDBL_MANT_DIG > DBL_MANT_DIG;

// Distance in units in the last place of the exact result. Infinity counts as the power of two behind the largest.
// What IEEE 754 fixes but a distance does not see (NaN, the sign of zero) is infinitely far.
template <class A>
double ulps(A got, wide<A> want) {
  using limits = std::numeric_limits<A>;
  if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want) ? 0 : INFINITY;
  if (got == 0 && std::signbit(got) != std::signbit(want)) return INFINITY;
  const wide<A> end = std::ldexp(wide<A>(1), limits::max_exponent);
  const wide<A> g = std::isinf(got) ? std::copysign(end, wide<A>(got)) : wide<A>(got);
  const wide<A> w = std::fabs(want) > end ? std::copysign(end, want) : want;
  int exponent = limits::min_exponent;
  if (std::fabs(w) >= limits::min()) std::frexp(std::fabs(w) >= end ? end / 2 : w, &exponent);
  return static_cast<double>(std::fabs(g - w) / std::ldexp(wide<A>(1), exponent - limits::digits));
}

template <class A>
struct worst {
  double error = 0;
  A at = 0, got = 0;

  void see(A x, A y, wide<A> want) {
    const double e = ulps(y, want);
    if (e > error) *this = {e, x, y};
  }
  void see(const worst& o) {
    if (o.error > error) *this = o;
  }
};

// Feeds numbers to a function, a full vector at a time: neighbours in the stream are neighbours in the register.
template <class V, class F>
struct feeder {
  using A = typename V::value_type;
  std::array<A, V::size> x{}, y{};
  std::size_t filled = 0;
  worst<A> seen;

  void operator()(A value) {
    if constexpr (requires { F::admits(0.0); })
      if (!F::admits(value)) return;
    x[filled++] = value;
    if (filled == V::size) flush();
  }
  void flush() {
    simd::store(F::apply(simd::load<V>(x.data())), y.data());
    for (std::size_t i = 0; i < filled; ++i) seen.see(x[i], y[i], F::exact(wide<A>(x[i])));
    filled = 0;
  }
};

// Zeros, ends of ranges, and the places where a formula changes: with the numbers around them.
template <class A>
std::vector<A> edges() {
  using limits = std::numeric_limits<A>;
  std::vector<A> centres = {0, limits::min(), limits::epsilon(), limits::max(), A(0x1p-25), A(0x1p-54), A(0x1p24), 1};
  for (const double x : {0.5, 0.75, 1.5, 2.0, 3.0, 4.0, 6.0, 17.33, 20.0, 36.7, 40.0}) centres.push_back(A(x));
  for (const double x : {87.3365, 88.0297, 88.3763, 88.7228, 103.2789, 103.9721, 104.0, 89.0}) centres.push_back(A(x));
  for (const double x : {708.3964, 709.0896, 709.7827, 744.4401, 745.1332, 746.0, 710.0}) centres.push_back(A(x));
  for (int k = 1; k < 300; k += 2) centres.push_back(A(k * 0.34657359027997264));  // where n changes
  std::vector<A> all = {limits::infinity(), -limits::infinity(), limits::quiet_NaN()};
  for (const A c : centres) {
    A below = c, above = c;
    for (int i = 0; i < 32; ++i) {
      for (const A x : {below, above, -below, -above}) all.push_back(x);
      below = std::nextafter(below, -limits::infinity());
      above = std::nextafter(above, limits::infinity());
    }
  }
  return all;
}

template <class V, class F>
worst<typename V::value_type> sampled() {
  using A = typename V::value_type;
  feeder<V, F> feed;
  for (const A x : edges<A>()) feed(x);
  if constexpr (sizeof(A) == 4) {
    for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 4099)
      feed(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  } else {
    std::mt19937_64 random(11);
    for (int i = 0; i < 200000; ++i) {
      const double unit = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
      feed(std::ldexp(unit, static_cast<int>(random() % 12) - 1));   // where the functions bend
      feed(std::ldexp(unit, static_cast<int>(random() % 70) - 60));  // where they are straight
      feed(std::bit_cast<double>(random()));                         // anything
    }
  }
  feed.flush();
  return feed.seen;
}

template <class V>
struct math : testing::Test {};
struct names {
  template <class V>
  static std::string GetName(int) {
    return std::string(V::engine::name) + (sizeof(typename V::value_type) == 4 ? "_f32" : "_f64");
  }
};
using every_vector =
    testing::Types<simd::vec<simd::scalar, float>, simd::vec<simd::eigen, float>, simd::vec<simd::xsimd, float>,
                   simd::vec<simd::highway, float>, simd::vec<simd::scalar, double>, simd::vec<simd::eigen, double>,
                   simd::vec<simd::xsimd, double>, simd::vec<simd::highway, double>>;
TYPED_TEST_SUITE(math, every_vector, names);

// Every lane of f(x), checked to be equal in all lanes.
template <class V, class F>
typename V::value_type at(F f, double x) {
  using A = typename V::value_type;
  std::array<A, V::size> y;
  simd::store(f(V(static_cast<A>(x))), y.data());
  for (const A other : y) EXPECT_TRUE(other == y[0] || (std::isnan(other) && std::isnan(y[0])));
  return y[0];
}

TYPED_TEST(math, keeps_its_stated_errors) {
  using A = typename TypeParam::value_type;
  if (sizeof(A) == 8 && !long_double_is_longer) GTEST_SKIP() << "no type longer than double to compare with";
  for_every_function([]<class F>(F) {
    const auto w = sampled<TypeParam, F>();
    EXPECT_LE(w.error, F::bound.template of<A>()) << F::name << " at " << w.at << " gave " << w.got;
    EXPECT_GE(w.error, 0.4) << F::name << ": a sample without any error has missed the function";
  });
}

TYPED_TEST(math, answers_at_the_edges_as_ieee_754_asks) {
  using V = TypeParam;
  using A = typename V::value_type;
  constexpr double inf = INFINITY, nan = NAN;
  const double largest = std::numeric_limits<A>::max(), smallest = std::numeric_limits<A>::denorm_min();
  const double lowest = -largest, least = std::numeric_limits<A>::min();
  const auto check = [](const char* name, auto f, std::vector<std::array<double, 2>> table) {
    for (const auto& [x, want] : table) {
      const double got = at<V>(f, x);
      if (std::isnan(want))
        EXPECT_TRUE(std::isnan(got)) << name << " at " << x << " gave " << got;
      else
        EXPECT_TRUE(got == static_cast<A>(want) && std::signbit(got) == std::signbit(want))
            << name << " at " << x << " gave " << got << ", not " << want;
    }
  };
  const auto powers = std::vector<std::array<double, 2>>{
      {0, 1}, {-0.0, 1}, {smallest, 1}, {-smallest, 1}, {inf, inf}, {-inf, 0}, {largest, inf}, {lowest, 0}, {nan, nan}};
  check(
      "exp", [](V x) { return exp(x); }, powers);
  check("exp_nonpositive", [](V x) { return exp_nonpositive(x); },
        {{0, 1}, {-0.0, 1}, {-smallest, 1}, {-inf, 0}, {lowest, 0}, {nan, nan}});
  check("expm1", [](V x) { return expm1(x); },
        {{0, 0},
         {-0.0, -0.0},
         {smallest, smallest},
         {-smallest, -smallest},
         {least, least},
         {inf, inf},
         {-inf, -1},
         {largest, inf},
         {lowest, -1},
         {nan, nan}});
  check("log", [](V x) { return log(x); },
        {{0, -inf},
         {-0.0, -inf},
         {1, 0},
         {inf, inf},
         {-inf, nan},
         {-1, nan},
         {-smallest, nan},
         {lowest, nan},
         {nan, nan}});
  check("log1p", [](V x) { return log1p(x); },
        {{0, 0},
         {-0.0, -0.0},
         {smallest, smallest},
         {-smallest, -smallest},
         {-1, -inf},
         {inf, inf},
         {-inf, nan},
         {-2, nan},
         {lowest, nan},
         {nan, nan}});
  check("sigmoid", [](V x) { return sigmoid(x); },
        {{0, 0.5}, {-0.0, 0.5}, {inf, 1}, {-inf, 0}, {largest, 1}, {lowest, 0}, {nan, nan}});
  check("sigmoid of -x", [](V x) { return sigmoid_both(x).of_minus_x; },
        {{0, 0.5}, {-0.0, 0.5}, {inf, 0}, {-inf, 1}, {largest, 0}, {lowest, 1}, {nan, nan}});
  const auto odd = std::vector<std::array<double, 2>>{{0, 0},       {-0.0, -0.0}, {inf, 1},  {-inf, -1},
                                                      {largest, 1}, {lowest, -1}, {nan, nan}};
  check(
      "tanh", [](V x) { return tanh(x); }, odd);
  check("tanh", [](V x) { return tanh(x); }, {{smallest, smallest}, {-least, -least}});
  check(
      "tanh_with_rest", [](V x) { return tanh_with_rest(x).tanh; }, odd);
  check("1 - |tanh|", [](V x) { return tanh_with_rest(x).rest; },
        {{0, 1}, {-0.0, 1}, {inf, 0}, {-inf, 0}, {largest, 0}, {lowest, 0}, {nan, nan}});
  check(
      "erf", [](V x) { return erf(x); }, odd);
  check("rsqrt", [](V x) { return rsqrt(x); },
        {{0, inf}, {-0.0, -inf}, {1, 1}, {4, 0.5}, {inf, 0}, {-inf, nan}, {-1, nan}, {-smallest, nan}, {nan, nan}});
}

TYPED_TEST(math, scales_by_powers_of_two_with_one_rounding) {
  using V = TypeParam;
  using A = typename V::value_type;
  const int farthest = sizeof(A) == 4 ? 250 : 2000;
  for (const A v :
       {A(1), A(-1.5), A(4) / 3, A(1.9999999), A(0x1.234567p-60), A(-0x1.fedcbap60), A(0), A(-0.0), A(INFINITY)})
    for (int n = -farthest; n <= farthest; ++n) {
      const A got = at<V>([n](V x) { return scale(x, V(A(n))); }, v), want = std::ldexp(v, n);
      ASSERT_TRUE(got == want && std::signbit(got) == std::signbit(want)) << v << " * 2^" << n << " gave " << got;
    }
  EXPECT_TRUE(std::isnan(at<V>([](V x) { return scale(x, V(A(3))); }, NAN)));
}

TYPED_TEST(math, divides_within_the_stated_error) {
  using V = TypeParam;
  using A = typename V::value_type;
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> mantissa(1, 2), exponent(-30, 30);
  worst<A> seen;
  for (int i = 0; i < 20000; ++i) {
    std::array<A, V::size> a, b, q;
    for (std::size_t k = 0; k < V::size; ++k) {
      a[k] = static_cast<A>(std::ldexp(mantissa(random), static_cast<int>(exponent(random))));
      b[k] = -static_cast<A>(std::ldexp(mantissa(random), static_cast<int>(exponent(random))));
    }
    simd::store(quotient(simd::load<V>(a.data()), simd::load<V>(b.data())), q.data());
    for (std::size_t k = 0; k < V::size; ++k) seen.see(b[k], q[k], wide<A>(a[k]) / wide<A>(b[k]));
    simd::store(reciprocal(simd::load<V>(b.data())), q.data());
    for (std::size_t k = 0; k < V::size; ++k) seen.see(b[k], q[k], 1 / wide<A>(b[k]));
  }
  EXPECT_LE(seen.error, 0.54) << "at " << seen.at;
  EXPECT_TRUE(std::isnan(at<V>([](V x) { return reciprocal(x); }, NAN)));
}

TYPED_TEST(math, exponentials_for_results_of_few_bits) {
  using V = TypeParam;
  using A = typename V::value_type;
  const auto of8 = [](A x) { return at<V>([](V v) { return simd::exp_nonpositive<8>(v); }, x); };
  const auto of11 = [](A x) { return at<V>([](V v) { return simd::exp_nonpositive<11>(v); }, x); };
  double worst8 = 0, worst11 = 0;
  for (int k = 0; k <= 20000; ++k) {
    const A x = static_cast<A>(1 - 41 * k / 20000.0);
    const auto want = std::exp(wide<A>(x));
    worst8 = std::max(worst8, static_cast<double>(std::abs(of8(x) / want - 1)));
    worst11 = std::max(worst11, static_cast<double>(std::abs(of11(x) / want - 1)));
  }
  EXPECT_LE(worst8, sizeof(A) == 4 ? 8e-5 : 1e-15);
  EXPECT_LE(worst11, sizeof(A) == 4 ? 5e-6 : 1e-15);
  for (const double x : {-1000.0, -HUGE_VAL}) {
    EXPECT_EQ(of8(static_cast<A>(x)), 0) << x;
    EXPECT_EQ(of11(static_cast<A>(x)), 0) << x;
  }
  EXPECT_NEAR(static_cast<double>(of8(A(-86))) * std::exp(86.0), 1, 1e-4);
  EXPECT_TRUE(std::isnan(of8(NAN)) && std::isnan(of11(NAN)));
}

TYPED_TEST(math, sigmoid_of_gates_between_its_ends) {
  using V = TypeParam;
  using A = typename V::value_type;
  constexpr bounds bound{4, 4, 2.8, 2.8};
  constexpr double low = tigon::simd::gate_lowest<A>, high = tigon::simd::gate_highest<A>;
  // Below, the sigmoid is subnormal.
  const double normal = sizeof(A) == 4 ? -87 : -708;
  double worst = 0, worst_of_minus = 0, worst11 = 0, worst8 = 0;
  for (int k = 0; k < 20000; ++k) {
    const double u = k / 20000.0;
    const A x = static_cast<A>(k % 2 == 0 ? 6 * u - 3 : normal + (high - normal) * u);
    const auto s = exact_sigmoid(wide<A>(x)), t = exact_sigmoid(wide<A>(-x));
    worst = std::max(worst, ulps(static_cast<A>(at<V>([](V v) { return gate_sigmoid(v).of_x; }, x)), s));
    worst_of_minus =
        std::max(worst_of_minus, ulps(static_cast<A>(at<V>([](V v) { return gate_sigmoid(v).of_minus_x; }, x)), t));
    const auto off = [](double got, auto want) { return static_cast<double>(std::abs(got / want - 1)); };
    worst11 = std::max({worst11, off(at<V>([](V v) { return tigon::simd::gate_sigmoid<11>(v).of_x; }, x), s),
                        off(at<V>([](V v) { return tigon::simd::gate_sigmoid<11>(v).of_minus_x; }, x), t)});
    worst8 = std::max({worst8, off(at<V>([](V v) { return tigon::simd::gate_sigmoid<8>(v).of_x; }, x), s),
                       off(at<V>([](V v) { return tigon::simd::gate_sigmoid<8>(v).of_minus_x; }, x), t)});
  }
  EXPECT_LE(worst, bound.template of<A>());
  EXPECT_LE(worst_of_minus, bound.template of<A>());
  EXPECT_LE(worst11, 6e-5);
  EXPECT_LE(worst8, 1.6e-4);
  EXPECT_EQ(low * at<V>([](V v) { return gate_sigmoid(v).of_x; }, low), 0);
  EXPECT_EQ(at<V>([](V v) { return gate_sigmoid(v).of_minus_x; }, low), 1);
  EXPECT_EQ(at<V>([](V v) { return gate_sigmoid(v).of_x; }, high), 1);
  EXPECT_TRUE(std::isnan(at<V>([](V v) { return gate_sigmoid(v).of_x; }, NAN)));
}

TYPED_TEST(math, gates_of_a_slope_and_of_base_two) {
  using V = TypeParam;
  using A = typename V::value_type;
  using parts = tigon::simd::gate_parts<V>;
  constexpr bounds bound{4, 4, 2.8, 2.8};
  constexpr double slope = 1.702, low = tigon::simd::gate_lowest<A>, high = tigon::simd::gate_highest<A>;
  const double normal = sizeof(A) == 4 ? -87 : -708;
  double worst = 0, worst11 = 0, worst8 = 0;
  // The sigmoid of +x and of -x against the exact ones, in units in the last place and relatively.
  const auto errors = [](auto gate, A arg, wide<A> x) {
    const auto of_x = at<V>([=](V v) { return gate(v).inverse * V(parts::unit); }, arg);
    const auto of_minus_x = at<V>(
        [=](V v) {
          const parts g = gate(v);
          return g.rest * g.inverse;
        },
        arg);
    const auto s = exact_sigmoid(x), t = exact_sigmoid(-x);
    return std::array{std::max(ulps(static_cast<A>(of_x), s), ulps(static_cast<A>(of_minus_x), t)),
                      static_cast<double>(std::max(std::abs(of_x / s - 1), std::abs(of_minus_x / t - 1)))};
  };
  const tigon::simd::scaled_gate<53, A> by_slope(slope);
  const tigon::simd::scaled_gate<11, A> by_slope11(slope);
  const tigon::simd::scaled_gate<8, A> by_slope8(slope);
  for (int k = 0; k < 20000; ++k) {
    const double u = k / 20000.0, x = k % 2 == 0 ? 6 * u - 3 : normal + (high - normal) * u;
    const A z = static_cast<A>(x / slope), w = static_cast<A>(x * std::numbers::log2e);
    const wide<A> of_z = wide<A>(slope) * wide<A>(z), of_w = std::numbers::ln2_v<wide<A>> * wide<A>(w);
    const auto log2 = []<std::size_t Bits>(std::integral_constant<std::size_t, Bits>) {
      return [](V v) { return tigon::simd::gate_of_log2<Bits>(v, V(A(tigon::simd::detail::exp2_parts<V>))); };
    };
    worst = std::max(
        {worst, errors(by_slope, z, of_z)[0], errors(log2(std::integral_constant<std::size_t, 53>()), w, of_w)[0]});
    worst11 = std::max(
        {worst11, errors(by_slope11, z, of_z)[1], errors(log2(std::integral_constant<std::size_t, 11>()), w, of_w)[1]});
    worst8 = std::max(
        {worst8, errors(by_slope8, z, of_z)[1], errors(log2(std::integral_constant<std::size_t, 8>()), w, of_w)[1]});
  }
  EXPECT_LE(worst, bound.template of<A>());
  EXPECT_LE(worst11, 6e-5);
  EXPECT_LE(worst8, 1.6e-4);
  const auto sigmoid = [=](V v) { return by_slope(v).inverse * V(parts::unit); };
  EXPECT_EQ(at<V>(sigmoid, low / slope), 0);
  EXPECT_EQ(at<V>(sigmoid, high / slope * 0.999), 1);
  EXPECT_TRUE(std::isnan(at<V>(sigmoid, NAN)));
}

TYPED_TEST(math, keeps_the_small_side_of_sigmoid) {
  using V = TypeParam;
  using A = typename V::value_type;
  for (const double x : {1.0, 20.0, 60.0, 80.0, 100.0}) {
    const double small = at<V>([](V v) { return sigmoid(v); }, -x);
    EXPECT_LE(ulps(static_cast<A>(small), exact_sigmoid(wide<A>(-x))), sigmoid_case::bound.template of<A>()) << x;
    EXPECT_GT(small, 0) << x;
    EXPECT_EQ(small, at<V>([](V v) { return sigmoid_both(v).of_minus_x; }, x));
    EXPECT_EQ(at<V>([](V v) { return sigmoid(v); }, x), at<V>([](V v) { return sigmoid_both(v).of_minus_x; }, -x));
  }
}

template <class A>
struct scalar_math : testing::Test {};
using every_scalar = testing::Types<float, double>;
TYPED_TEST_SUITE(scalar_math, every_scalar);

TYPED_TEST(scalar_math, is_the_scalar_engine) {
  using A = TypeParam;
  using V = simd::vec<simd::scalar, A>;
  namespace m = tigon::math;
  const auto same = [](A a, A b) { return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b)); };
  for (const A x : edges<A>()) {
    EXPECT_TRUE(same(m::exp(x), exp(V(x)).r)) << x;
    EXPECT_TRUE(same(m::exp_nonpositive(-std::fabs(x)), exp_nonpositive(V(-std::fabs(x))).r)) << x;
    EXPECT_TRUE(same(m::expm1(x), expm1(V(x)).r)) << x;
    EXPECT_TRUE(same(m::log(x), log(V(x)).r)) << x;
    EXPECT_TRUE(same(m::log1p(x), log1p(V(x)).r)) << x;
    EXPECT_TRUE(same(m::sigmoid(x), sigmoid(V(x)).r)) << x;
    EXPECT_TRUE(same(m::sigmoid_both(x).of_x, sigmoid(V(x)).r)) << x;
    EXPECT_TRUE(same(m::sigmoid_both(x).of_minus_x, sigmoid(V(-x)).r)) << x;
    EXPECT_TRUE(same(m::tanh(x), tanh(V(x)).r)) << x;
    EXPECT_TRUE(same(m::tanh_with_rest(x).tanh, tanh(V(x)).r)) << x;
    EXPECT_TRUE(same(m::tanh_with_rest(x).rest, tanh_with_rest(V(x)).rest.r)) << x;
    EXPECT_TRUE(same(m::erf(x), erf(V(x)).r)) << x;
    EXPECT_TRUE(same(m::rsqrt(x), rsqrt(V(x)).r)) << x;
    EXPECT_TRUE(same(m::sqrt(x), std::sqrt(x))) << x;
    EXPECT_TRUE(same(m::abs(x), std::fabs(x))) << x;
    EXPECT_EQ(m::is_nan(x), std::isnan(x)) << x;
  }
  EXPECT_EQ(m::scale(A(3), A(-4)), A(0.1875));
  EXPECT_EQ(m::max(A(1), A(2)), A(2));
  EXPECT_EQ(m::max(A(2), A(1)), A(2));
  EXPECT_EQ(m::min(A(1), A(2)), A(1));
  EXPECT_EQ(m::min(A(2), A(1)), A(1));
  EXPECT_TRUE(std::isnan(m::max(A(1), A(NAN))) && std::isnan(m::min(A(1), A(NAN))));
}

TEST(math_exhaustive, every_f32) {
  const char* wanted = std::getenv("TIGON_EXHAUSTIVE");
  const std::uint64_t step = wanted == nullptr ? 0 : std::strtoull(wanted, nullptr, 10);
  if (step == 0) GTEST_SKIP() << "set TIGON_EXHAUSTIVE=1";
  using V = simd::vec<simd::highway, float>;
  std::printf("highway %s, %s FMA\n", std::string(simd::highway::target).c_str(), has_fma ? "with" : "without");
  for_every_function([step]<class F>(F) {
    std::array<worst<float>, 2> found;
    const auto half = [&found, step](std::uint64_t h) {
      feeder<V, F> feed;
      for (std::uint64_t bits = h << 31; bits < (h + 1) << 31; bits += step)
        feed(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
      feed.flush();
      found[h] = feed.seen;
    };
    std::thread other(half, 1);
    half(0);
    other.join();
    found[0].see(found[1]);
    std::printf("%-20s %.4f ULP at %a\n", F::name, found[0].error, static_cast<double>(found[0].at));
    std::fflush(stdout);
    EXPECT_LE(found[0].error, F::bound.template of<float>()) << F::name << " at " << found[0].at;
  });
}

}  // namespace
