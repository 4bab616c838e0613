// What the tests of rms_norm, fused_add_rms_norm, modulated_rms_norm and layer_norm share: the reference and its
// derivatives, the buffers, and promises that they make.
#ifndef TIGON_TESTS_SUPPORT_ROW_NORM_HPP
#define TIGON_TESTS_SUPPORT_ROW_NORM_HPP

#include <gtest/gtest.h>

#include "complex_step.hpp"
#include "errors.hpp"
#include "guarded.hpp"
#include "problem.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace tigon::test {

/// What a row is measured from: RMSNorm from zero, LayerNorm from its mean.
enum class origin { zero, mean };

/// y = (x - origin) / sqrt(mean square of x - origin, + eps) * factor, by its definition and for any number type:
/// derivatives come from it.
template <class X, class F>
std::vector<decltype(X() * F())> normalised(const std::vector<X>& x, const std::vector<F>& factor, double eps,
                                            origin from) {
  std::vector<decltype(X() * F())> y;
  const std::size_t n = factor.size();
  for (std::size_t row = 0; row < x.size(); row += n) {
    X mean = 0, square = 0;
    for (int pass = 0; from == origin::mean && pass < 2; ++pass) {  // the second adds what rounding left of the first
      X rest = 0;
      for (std::size_t j = 0; j < n; ++j) rest += (x[row + j] - mean) / static_cast<double>(n);
      mean += rest;
    }
    for (std::size_t j = 0; j < n; ++j) square += (x[row + j] - mean) * (x[row + j] - mean);
    const X deviation = sqrt(square / static_cast<double>(n) + eps);
    for (std::size_t j = 0; j < n; ++j) y.push_back((x[row + j] - mean) / deviation * factor[j]);
  }
  return y;
}

/// The reference of one problem: y, and the derivatives of sum(dy * y) at the probed entries.
struct norm_reference {
  std::vector<double> x, factor, dy;
  double eps;
  origin from = origin::zero;

  std::vector<double> y() const { return normalised(x, factor, eps, from); }
  TIGON_TEST_NOINLINE std::vector<double> dx(const std::vector<std::size_t>& at) const {
    return complex_step([this](const auto& z) { return with_dy(normalised(z, factor, eps, from)); }, x, at);
  }
  TIGON_TEST_NOINLINE std::vector<double> dfactor(const std::vector<std::size_t>& at) const {
    return complex_step([this](const auto& z) { return with_dy(normalised(x, z, eps, from)); }, factor, at);
  }

 private:
  template <class N>
  N with_dy(const std::vector<N>& y) const {
    N sum = 0;
    for (std::size_t i = 0; i < dy.size(); ++i) sum += dy[i] * y[i];
    return sum;
  }
};

/// Every buffer at a guard page, outputs full of canaries; no w and dw where there is no weight.
template <class T, class W>
struct norm_buffers {
  guarded_matrix<T> x, dy, y, dx;
  guarded<W> w, dw;
  guarded<accumulator_t<T>> rstd;

  TIGON_TEST_NOINLINE norm_buffers(shape s, bool weighted, guard side)
      : x(random_matrix<T>(s, 1, side, {.deviation = 2})),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side),
        w(random_vector<W>(weighted ? s.cols : 0, 3, side)),
        dw(w.size(), side),
        rstd(s.rows, side) {}

  /// offset + w, or ones.
  TIGON_TEST_NOINLINE std::vector<double> factor(double offset = 0) const {
    if (w.size() == 0) return std::vector<double>(x.cols(), 1.0);
    std::vector<double> out = w.f64();
    for (double& f : out) f += offset;
    return out;
  }
  /// The largest dy * factor * rstd: the size of the terms of dx, for rows so narrow that they cancel.
  TIGON_TEST_NOINLINE double dx_terms(double offset = 0) const {
    const auto f = factor(offset);
    double largest = 0;
    for (std::size_t i = 0; i < x.rows(); ++i)
      for (std::size_t j = 0; j < x.cols(); ++j)
        largest = std::max(largest, std::abs(to_f64(dy(i, j)) * f[j] * to_f64(rstd[i])));
    return largest;
  }
};

/// dx may be dy or x. A Problem has forward<B>(), backward<B>(dx) and gradients(), those of the parameters.
template <class Problem, class B, class... Arguments>
void check_norm_in_place(Arguments... arguments) {
  Problem apart(arguments...), over_dy(arguments...), over_x(arguments...);
  for (Problem* p : {&apart, &over_dy, &over_x}) p->template forward<B>();
  apart.template backward<B>(apart.dx.view());
  over_dy.template backward<B>(over_dy.dy.view());
  over_x.template backward<B>(over_x.x.view());
  EXPECT_EQ(bits_of(over_dy.dy), bits_of(apart.dx));
  EXPECT_EQ(bits_of(over_x.x), bits_of(apart.dx));
  for (std::size_t k = 0; k < apart.gradients().size(); ++k) {
    EXPECT_EQ(bits_of(*over_dy.gradients()[k]), bits_of(*apart.gradients()[k]));
    EXPECT_EQ(bits_of(*over_x.gradients()[k]), bits_of(*apart.gradients()[k]));
  }
}

/// Gradients of parameters are added to what is there. A Problem also has accumulate(), which sets the option.
template <class Problem, class B>
void check_norm_accumulates(double bound) {
  for (const std::size_t cols : {5u, 37u})
    for (const std::size_t rows : {0u, 3u}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols);
      Problem once({rows, cols}), added({rows, cols});
      once.template both_ways<B>();
      added.accumulate();
      std::vector<std::vector<double>> wanted;
      for (auto* gradient : added.gradients()) {
        gradient->assign(normal_values(cols, 10 + wanted.size()));
        wanted.push_back(gradient->f64());
      }
      added.template both_ways<B>();
      for (std::size_t k = 0; k < wanted.size(); ++k) {
        const auto share = once.gradients()[k]->f64();
        for (std::size_t j = 0; j < cols; ++j) wanted[k][j] += share[j];
        EXPECT_TRUE(close(added.gradients()[k]->f64(), wanted[k], bound)) << "gradient " << k;
      }
    }
}

/// Rows of m that belong to every other group of `size` rows, times 2^exponent.
template <class T>
void scale_every_other(guarded_matrix<T>& m, int exponent, std::size_t size = 1) {
  for (std::size_t i = 0; i < m.rows(); ++i)
    for (std::size_t j = 0; j < m.cols() && i / size % 2 != 0; ++j)
      m(i, j) = from_f64<T>(std::ldexp(to_f64(m(i, j)), exponent));
}

/// Exponents of rows from the smallest to the largest that T holds. Squares leave the range in all but the first pair,
/// and their inverse third powers in all.
template <class T>
std::vector<int> far_exponents() {
  if (std::same_as<T, float16>) return {-8, 8};
  const int most = std::numeric_limits<accumulator_t<T>>::max_exponent;
  std::vector<int> out;
  for (const int percent : {37, 49, 53, 80, 93})
    for (const int sign : {-1, 1}) out.push_back(sign * most * percent / 100);
  return out;
}

/// Without eps, a row times a power of two has the same y and the same share of the parameters' gradients, and dx by
/// its inverse. Rows beside it keep their bits. make() is a problem without eps, and `size` the rows that are
/// normalised together.
template <class B, class T, class Make>
void check_norm_over_the_range(Make make, double forward_bound, double gradient_bound, std::size_t size = 1) {
  auto near = make();
  near.template both_ways<B>();
  const auto near_dx = near.dx.f64();
  for (const int exponent : far_exponents<T>()) {
    SCOPED_TRACE(testing::Message() << "times 2^" << exponent);
    auto far = make();
    scale_every_other(far.x, exponent, size);
    if constexpr (requires { far.ds; }) scale_every_other(far.r, exponent), scale_every_other(far.ds, -exponent);
    far.template both_ways<B>();
    EXPECT_TRUE(close(far.y.f64(), near.y.f64(), forward_bound));
    auto dx = far.dx.f64();
    for (std::size_t k = 0; k < dx.size(); ++k)
      if (k / far.x.cols() / size % 2 != 0)
        dx[k] = std::ldexp(dx[k], exponent);
      else
        ASSERT_EQ(dx[k], near_dx[k]) << "element " << k;
    EXPECT_TRUE(close(dx, near_dx, gradient_bound));
    if constexpr (requires { far.gradients()[0]->f64(); }) {
      for (std::size_t k = 0; k < far.gradients().size(); ++k) {
        EXPECT_TRUE(close(far.gradients()[k]->f64(), near.gradients()[k]->f64(), gradient_bound)) << "gradient " << k;
      }
    }
  }
}

/// A norm that is taken from the mean has the same results for rows that are moved as far as their numbers stay exact:
/// 2^20 in f32, where the deviation is 2.
template <class B, class T, class Make>
void check_norm_forgets_the_mean(Make make, double forward_bound, double gradient_bound) {
  constexpr int digits = std::same_as<T, double> ? 53 : std::same_as<T, float> ? 24 : std::same_as<T, float16> ? 11 : 8;
  auto near = make();
  for (std::size_t i = 0; i < near.x.rows(); ++i)
    for (std::size_t j = 0; j < near.x.cols(); ++j)
      near.x(i, j) = from_f64<T>(std::round(8 * std::clamp(to_f64(near.x(i, j)), -7.0, 7.0)) / 8);
  for (const int exponent : {digits / 2, digits - 4})
    for (const double sign : {1.0, -1.0}) {
      SCOPED_TRACE(testing::Message() << "moved by " << sign << " * 2^" << exponent);
      auto far = make();
      for (std::size_t i = 0; i < far.x.rows(); ++i)
        for (std::size_t j = 0; j < far.x.cols(); ++j)
          far.x(i, j) = from_f64<T>(to_f64(near.x(i, j)) + std::ldexp(sign, exponent));
      near.template both_ways<B>();
      far.template both_ways<B>();
      EXPECT_TRUE(close(far.y.f64(), near.y.f64(), forward_bound, {.scale = 1}));
      EXPECT_TRUE(close(far.dx.f64(), near.dx.f64(), gradient_bound));
      for (std::size_t k = 0; k < far.gradients().size(); ++k)
        EXPECT_TRUE(close(far.gradients()[k]->f64(), near.gradients()[k]->f64(), gradient_bound)) << "gradient " << k;
    }
}

/// A rstd (mean) that the caller poisoned by NaNs of any bits reaches its row and the weight's gradient, and no other
/// row.
template <class Problem, class B, class... Variant>
void check_norm_keeps_any_nan(const Variant&... v) {
  const shape s{4, 37};
  Problem clean(s, v...);
  clean.template both_ways<B>();
  using A = std::remove_cvref_t<decltype(clean.rstd[0])>;
  using bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  constexpr bits all = ~bits{0}, exponent = std::bit_cast<bits>(std::numeric_limits<A>::infinity());
  for (const bits nan : {all, all >> 1, exponent + 1}) {
    SCOPED_TRACE(testing::Message() << "NaN " << std::hex << nan);
    Problem p(s, v...);
    p.template both_ways<B>();
    std::memcpy(&p.rstd[1], &nan, sizeof nan);  // a signalling one may not pass through a register
    p.template backward<B>(p.dx.view());
    for (std::size_t j = 0; j < s.cols; ++j) {
      EXPECT_TRUE(std::isnan(to_f64(p.dx(1, j)))) << j;
      EXPECT_TRUE(std::isnan(to_f64(p.dw[j]))) << j;
      for (const std::size_t i : {0u, 2u, 3u}) EXPECT_EQ(to_f64(p.dx(i, j)), to_f64(clean.dx(i, j))) << i << ", " << j;
    }
  }
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_ROW_NORM_HPP
