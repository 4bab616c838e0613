// The contract of include/tigon/ops/geglu.hpp, promise by promise, on every backend and in every element type.
#include <tigon/ops/geglu.hpp>

#include <numbers>

#include "support/gate_checks.hpp"

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

}  // namespace
