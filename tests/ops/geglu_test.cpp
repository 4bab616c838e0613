// The contract of include/tigon/ops/geglu.hpp, promise by promise, on every backend and in every element type.
#include <tigon/ops/geglu.hpp>

#include <numbers>

#include "support/gate_checks.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::gelu_form, tigon::in_matrix, tigon::matrix_view;

struct geglu_gate {
  using options = tigon::geglu_options;
  static constexpr std::string_view name = "geglu";
  // In units of |reference| + its root mean square; at most ten times the worst that was seen.
  static constexpr by_type bounds{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-15};

  static const std::vector<options>& variants() {
    static const std::vector<options> all{
        {}, {.form = gelu_form::erf}, {.round_gate = true}, {.form = gelu_form::erf, .round_gate = true}};
    return all;
  }
  static double inner(options) { return 1; }
  static double factor(options) { return 1; }
  static options without_factor(options opt) { return opt; }
  template <class A>
  static A up(A b, options) {
    return b;
  }
  static bool passes(double, options) { return true; }
  static bool held(options) { return false; }

  /// erf has no complex form in the library: of z + ih it is erf z + ih erf'(z), exact for the tiny step.
  static double erf(double z) { return std::erf(z); }
  static std::complex<double> erf(std::complex<double> z) {
    return {std::erf(z.real()), 2 * std::numbers::inv_sqrtpi * std::exp(-z.real() * z.real()) * z.imag()};
  }
  template <class N>
  static N value(N a, N b, options opt) {
    if (opt.form == gelu_form::erf) return 0.5 * a * (1.0 + erf(a / std::numbers::sqrt2)) * b;
    const N z = std::sqrt(2 / std::numbers::pi) * (a + 0.044715 * a * a * a);
    return 0.5 * a * (1.0 + tanh(z)) * b;
  }
  template <class B, class T>
  static void forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, options opt, context& ctx) {
    tigon::geglu_forward<B>(a, b, c, opt, ctx);
  }
  template <class B, class T>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       options opt, context& ctx) {
    tigon::geglu_backward<B>(dc, a, b, da, db, opt, ctx);
  }
};

TIGON_TEST_GATE(geglu_gate, geglu)

TEST(geglu_forms, differ_by_what_the_literature_says) {
  gate_problem<geglu_gate, double> tanh_form({1, 801}), erf_form({1, 801}, {.form = gelu_form::erf});
  double largest = 0;
  for (std::size_t j = 0; j < 801; ++j)
    tanh_form.a(0, j) = erf_form.a(0, j) = static_cast<double>(j) * 0.01 - 4, tanh_form.b(0, j) = erf_form.b(0, j) = 1;
  tanh_form.forward<tigon::default_backend>(tanh_form.c.view()),
      erf_form.forward<tigon::default_backend>(erf_form.c.view());
  for (std::size_t j = 0; j < 801; ++j) largest = std::max(largest, std::abs(tanh_form.c(0, j) - erf_form.c(0, j)));
  EXPECT_NEAR(largest, 4.7e-4, 0.2e-4);
}

TEST(geglu_forms, erf_is_relaxed_in_bf16_by_no_more_than_it_says) {
  // Before it is rounded: gelu, which is c, and its slope, which is da. Above 5 and below -5 less is promised.
  gate_problem<geglu_gate, tigon::bfloat16> p({1, 4000}, {.form = gelu_form::erf});
  for (std::size_t j = 0; j < 4000; ++j) {
    const double v = 5 * std::pow(1e-3, static_cast<double>(j) / 4000);
    p.a(0, j) = from_f64<tigon::bfloat16>(j % 2 == 0 ? v : -v), p.b(0, j) = p.dc(0, j) = tigon::bfloat16(1.0f);
  }
  p.forward<tigon::default_backend>(p.c.view());
  p.backward<tigon::default_backend>(p.da.view(), p.db.view());
  for (std::size_t j = 0; j < 4000; ++j) {
    const double a = to_f64(p.a(0, j)), below = std::erfc(-a / std::numbers::sqrt2) / 2, gelu = a * below,
                 tail = std::min(below, 1 - below), density = std::exp(-a * a / 2) / std::sqrt(2 * std::numbers::pi),
                 slope = below + a * density;
    const auto rounding = [](double v) { return std::ldexp(1, std::ilogb(v) - 8); };
    ASSERT_LE(std::abs(to_f64(p.c(0, j)) - gelu), rounding(gelu) + 4.5e-4 * std::abs(gelu)) << "at " << a;
    ASSERT_EQ(to_f64(p.db(0, j)), to_f64(p.c(0, j))) << "at " << a;
    ASSERT_LE(std::abs(to_f64(p.da(0, j)) - slope), rounding(slope) + 7.2e-4 * std::max(std::abs(slope), 0.05 * tail))
        << "at " << a;
  }
}

TEST(geglu_forms, erf_keeps_the_digits_of_its_tail_in_f32) {
  constexpr std::size_t n = 4000;
  gate_problem<geglu_gate, float> p({1, n}, {.form = gelu_form::erf});
  for (std::size_t j = 0; j < n; ++j) {
    const float v = 13 * static_cast<float>(std::pow(1e-4, static_cast<double>(j) / n));
    p.a(0, j) = j % 2 == 0 ? v : -v, p.b(0, j) = p.dc(0, j) = 1;
  }
  p.forward<tigon::default_backend>(p.c.view());
  p.backward<tigon::default_backend>(p.da.view(), p.db.view());
  for (std::size_t j = 0; j < n; ++j) {
    const double a = to_f64(p.a(0, j)), below = std::erfc(-a / std::numbers::sqrt2) / 2, gelu = a * below,
                 slope = below + a * std::exp(-a * a / 2) / std::sqrt(2 * std::numbers::pi);
    ASSERT_NEAR(to_f64(p.c(0, j)), gelu, 5.5e-8 + 6e-8 * std::abs(gelu)) << "at " << a;
    ASSERT_NEAR(to_f64(p.db(0, j)), gelu, std::abs(a) <= 5 ? 1e-6 * std::abs(gelu) : 6e-8 * (1 + std::abs(gelu)))
        << "at " << a;
    ASSERT_NEAR(to_f64(p.da(0, j)), slope, 1.3e-7) << "at " << a;
  }
}

TEST(geglu_forms, tanh_is_relaxed_in_bf16_by_no_more_than_it_says) {
  gate_problem<geglu_gate, tigon::bfloat16> p({1, 4000});
  for (std::size_t j = 0; j < 4000; ++j) {
    const double v = 10 * std::pow(1e-3, static_cast<double>(j) / 4000);
    p.a(0, j) = from_f64<tigon::bfloat16>(j % 2 == 0 ? v : -v), p.b(0, j) = tigon::bfloat16(1.0f);
  }
  p.forward<tigon::default_backend>(p.c.view());
  for (std::size_t j = 0; j < 4000; ++j) {
    const double a = to_f64(p.a(0, j)), z = std::sqrt(8 / std::numbers::pi) * (a + 0.044715 * a * a * a),
                 gelu = a / (1 + std::exp(-z)), rounding = std::ldexp(1, std::ilogb(gelu) - 8);
    ASSERT_LE(std::abs(to_f64(p.c(0, j)) - gelu), rounding + 1.8e-4 * std::abs(gelu)) << "at " << a;
  }
}

}  // namespace
