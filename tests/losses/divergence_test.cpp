// The errors and edges that include/tigon/simd/math/divergence.hpp states, element by element.
// Operators: jsd kl_div tvd
#include <gtest/gtest.h>

#include <tigon/simd/math/divergence.hpp>

#include <functional>
#include <random>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::simd::divergence_terms, tigon::simd::jensen_shannon, tigon::simd::even_jensen_shannon,
    tigon::simd::forward_kl, tigon::simd::reverse_kl;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
const double betas[] = {1e-6, 1e-3, 0.1, 0.3, 0.5, 0.6, 0.9, 0.999, 1 - 1e-6};

struct terms {
  double value, q, qc;
};

/// w (e^t - 1 - t) without cancellation.
long double phi(long double w, long double t) {
  if (std::abs(t) > 0.25L) return w * (std::expm1(t) - t);
  long double sum = 0, term = 0.5L;
  for (int k = 3; k < 30; ++k) sum += term, term *= t / k;
  return w * t * t * sum;
}

terms general(long double x, long double y, long double beta) {
  const long double p = std::exp(y), q = std::exp(x), d = x - y, w = 1 - beta;
  const long double u = w * std::expm1(d), v = beta * std::expm1(-d);
  const long double a = u > -0.5L ? std::log1p(u) : std::log(beta + w * std::exp(d));
  const long double c = v > -0.5L ? std::log1p(v) : std::log(w + beta * std::exp(-d));
  return {static_cast<double>(beta * phi(p, a) + w * phi(q, c)), static_cast<double>(q), static_cast<double>(q * c)};
}
terms forward(long double x, long double y) {
  const long double p = std::exp(y), q = std::exp(x);
  return {static_cast<double>(phi(p, x - y)), static_cast<double>(q), static_cast<double>(-p * std::expm1(x - y))};
}
terms reverse(long double x, long double y) {
  const long double q = std::exp(x), r = phi(q, y - x);
  return {static_cast<double>(r), static_cast<double>(q), static_cast<double>(q * (y - x))};
}

/// f on one pair.
template <class V, class F>
terms at(F f, double x, double y) {
  using A = typename V::value_type;
  const divergence_terms<V> t = f(V(static_cast<A>(x)), V(static_cast<A>(y)));
  return {max_lanes(t.value), max_lanes(t.q), max_lanes(t.qc)};
}

/// Worst relative errors over pairs whose difference is of any size from 1e-5 to 100.
template <class V, class F>
TIGON_TEST_NOINLINE terms worst(F f, const std::function<terms(long double, long double)>& want) {
  using A = typename V::value_type;
  std::mt19937_64 random(1);
  std::exponential_distribution<double> depth(1.0 / 8);
  std::uniform_real_distribution<double> size(-5, 2);
  std::normal_distribution<double> normal;
  terms out{};
  for (int k = 0; k < 3000; ++k) {
    alignas(64) A x[V::size], y[V::size], got[3][V::size];
    for (std::size_t l = 0; l < V::size; ++l) {
      const double deep = -depth(random), other = deep + std::pow(10, size(random)) * normal(random);
      y[l] = static_cast<A>(std::max(deep, -80.0)), x[l] = static_cast<A>(std::clamp(other, -80.0, 0.0));
    }
    const auto t = f(tigon::simd::load<V>(x), tigon::simd::load<V>(y));
    tigon::simd::store(t.value, got[0]), tigon::simd::store(t.q, got[1]), tigon::simd::store(t.qc, got[2]);
    for (std::size_t l = 0; l < V::size; ++l) {
      const terms w = want(x[l], y[l]);
      const auto keep = [&](double& most, double number, double exact) {
        if (std::abs(exact) < 1e-30) return;
        const double error = std::abs(number / exact - 1);
        if (!(error <= most)) most = error;
      };
      keep(out.value, got[0][l], w.value), keep(out.q, got[1][l], w.q), keep(out.qc, got[2][l], w.qc);
    }
  }
  return out;
}

template <class V>
void keeps_its_errors() {
  const double unit = (sizeof(typename V::value_type) == 4 ? 1 : 2e-9) * error_scale;
  for (const double beta : betas) {
    SCOPED_TRACE(beta);
    const terms e = worst<V>(jensen_shannon<typename V::value_type>(beta),
                             [=](long double x, long double y) { return general(x, y, beta); });
    EXPECT_LE(e.value, 2e-6 * unit);
    EXPECT_LE(e.q, 2e-7 * unit);
    EXPECT_LE(e.qc, 1.5e-6 * unit);
  }
  const terms even = worst<V>(even_jensen_shannon<typename V::value_type>{},
                              [](long double x, long double y) { return general(x, y, 0.5L); });
  EXPECT_LE(even.value, 1e-6 * unit);
  EXPECT_LE(even.q, 2.5e-7 * unit);
  EXPECT_LE(even.qc, 5e-7 * unit);
  for (const terms& e : {worst<V>(forward_kl<typename V::value_type>{}, forward),
                         worst<V>(reverse_kl<typename V::value_type>{}, reverse)}) {
    EXPECT_LE(e.value, 1e-6 * unit);
    EXPECT_LE(e.q, 2e-7 * unit);
    EXPECT_LE(e.qc, 5e-7 * unit);
  }
}

using usual_f32 = tigon::simd::vec<usual_backend::engine, float>;
using usual_f64 = tigon::simd::vec<usual_backend::engine, double>;
using single_f32 = tigon::simd::vec<tigon::backends::generic::engine, float>;

TEST(divergence, keeps_its_errors_in_f32) { keeps_its_errors<usual_f32>(); }
TEST(divergence, keeps_its_errors_in_f64) { keeps_its_errors<usual_f64>(); }
TEST(divergence, keeps_its_errors_on_single_numbers) { keeps_its_errors<single_f32>(); }

template <class V>
void keeps_its_edges() {
  using A = typename V::value_type;
  const auto check = [](auto f, double beta) {
    SCOPED_TRACE(beta);
    for (const auto& [x, y] : {std::pair{-infinity, -infinity}, {-2000.0, -2100.0}, {-infinity, -1500.0}}) {
      const terms t = at<V>(f, x, y);
      EXPECT_TRUE(t.value == 0 && t.q == 0 && t.qc == 0) << x;
    }
    for (const double gone : {-infinity, -2000.0}) {
      const terms no_q = at<V>(f, gone, -1), no_p = at<V>(f, -1, gone);
      EXPECT_NEAR(no_q.value / (beta * std::exp(-1) * -std::log(beta)), 1, 1e-6);
      EXPECT_EQ(no_q.qc, 0);
      EXPECT_NEAR(no_p.value / ((1 - beta) * std::exp(-1) * -std::log1p(-beta)), 1, 1e-6);
      EXPECT_NEAR(no_p.qc / (std::exp(-1) * std::log1p(-beta)), 1, 1e-6);
    }
    EXPECT_EQ(at<V>(f, -3, -3).value, 0);
    EXPECT_TRUE(std::isnan(at<V>(f, nan, -infinity).value) && std::isnan(at<V>(f, -infinity, nan).value));
    EXPECT_TRUE(std::isnan(at<V>(f, nan, -1).qc) && std::isnan(at<V>(f, -1, nan).qc));
  };
  for (const double beta : {0.1, 0.5, 0.9}) check(jensen_shannon<A>(beta), beta);
  check(even_jensen_shannon<A>{}, 0.5);
  const auto forward_of = [](double x, double y) { return at<V>(forward_kl<A>{}, x, y); };
  const auto reverse_of = [](double x, double y) { return at<V>(reverse_kl<A>{}, x, y); };
  EXPECT_EQ(forward_of(-infinity, -1).value, infinity);
  EXPECT_NEAR(forward_of(-infinity, -1).qc, std::exp(-1), 1e-7);
  EXPECT_NEAR(forward_of(-1, -infinity).value, std::exp(-1), 1e-7);  // Q - P remains of Phi
  EXPECT_EQ(reverse_of(-1, -infinity).value, infinity);
  EXPECT_EQ(reverse_of(-1, -infinity).qc, -infinity);
  EXPECT_EQ(reverse_of(-infinity, -1).qc, 0);
  for (const terms& t : {forward_of(-infinity, -infinity), reverse_of(-infinity, -infinity)})
    EXPECT_TRUE(t.value == 0 && t.q == 0 && t.qc == 0);
  for (const terms& t : {forward_of(nan, -infinity), reverse_of(-infinity, nan)}) EXPECT_TRUE(std::isnan(t.value));
}

TEST(divergence, keeps_its_edges_in_f32) { keeps_its_edges<usual_f32>(); }
TEST(divergence, keeps_its_edges_on_single_numbers) { keeps_its_edges<single_f32>(); }

// What ops on logits make of the terms: dr / dz = -weight (qc + q K) for x the log-softmax of z.
TEST(divergence, terms_give_the_gradient_of_logits) {
  constexpr std::size_t n = 7;
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  double z[n], y[n];
  for (std::size_t j = 0; j < n; ++j) z[j] = normal(random), y[j] = normal(random);
  const auto log_softmax = [](const double* logits, double* out) {
    double sum = 0;
    for (std::size_t j = 0; j < n; ++j) sum += std::exp(logits[j]);
    for (std::size_t j = 0; j < n; ++j) out[j] = logits[j] - std::log(sum);
  };
  log_softmax(y, y);
  using V = tigon::simd::vec<tigon::backends::generic::engine, double>;
  for (const double beta : {0.0, 0.1, 0.5, 0.9, 1.0})
    tigon::simd::with_divergence<double>(beta, [&](auto divergence) {
      const auto divergence_of = [&](const double* logits) {
        double x[n], sum = 0;
        log_softmax(logits, x);
        for (std::size_t j = 0; j < n; ++j) sum += at<V>(divergence, x[j], y[j]).value;
        return sum;
      };
      double x[n], k = 0, rows = 0;
      log_softmax(z, x);
      for (std::size_t j = 0; j < n; ++j) k -= at<V>(divergence, x[j], y[j]).qc;
      for (std::size_t j = 0; j < n; ++j) {
        const terms t = at<V>(divergence, x[j], y[j]);
        const double gradient = -divergence.weight * (t.qc + t.q * k), step = 1e-4;
        double up[n], down[n];
        std::copy(z, z + n, up), std::copy(z, z + n, down);
        up[j] += step, down[j] -= step;
        EXPECT_NEAR(gradient, (divergence_of(up) - divergence_of(down)) / (2 * step), 2e-8) << beta;
        rows += gradient;
      }
      EXPECT_NEAR(rows, 0, 1e-15) << beta;
    });
}

}  // namespace
