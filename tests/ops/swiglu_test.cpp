// The contract of include/tigon/ops/swiglu.hpp, promise by promise, on every backend and in every element type.
#include <tigon/ops/swiglu.hpp>

#include "support/gate_checks.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::in_matrix, tigon::matrix_view;

struct swiglu_gate {
  using options = tigon::swiglu_options;
  static constexpr std::string_view name = "swiglu";
  // In units of |reference| + its root mean square; at most ten times the worst that was seen.
  static constexpr by_type bounds{.f32 = 6e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-15};

  static const std::vector<options>& variants() {
    static const std::vector<options> all{{},
                                          {.gate_multiplier = -0.75, .down_multiplier = 1.5},
                                          {.round_gate = true},
                                          {.gate_multiplier = 0.75, .down_multiplier = 1.5, .round_gate = true}};
    return all;
  }
  static double inner(options opt) { return opt.gate_multiplier; }
  static double factor(options opt) { return opt.down_multiplier; }
  static options without_factor(options opt) { return opt.down_multiplier = 1, opt; }

  template <class N>
  static N value(N a, N b, options opt) {
    const N z = opt.gate_multiplier * a;
    return opt.down_multiplier * z / (1.0 + exp(-z)) * b;
  }
  template <class B, class T>
  static void forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, options opt, context& ctx) {
    tigon::swiglu_forward<B>(a, b, c, opt, ctx);
  }
  template <class B, class T>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       options opt, context& ctx) {
    tigon::swiglu_backward<B>(dc, a, b, da, db, opt, ctx);
  }
};

TIGON_TEST_GATE(swiglu_gate, swiglu)

TYPED_TEST(swiglu, keeps_relative_accuracy_where_the_gate_closes) {
  using B = typename TypeParam::backend;
  using A = tigon::accumulator_t<typename TypeParam::element>;
  gate_problem<swiglu_gate, A> p({1, 4001});
  for (std::size_t j = 0; j < 4001; ++j) p.a(0, j) = static_cast<A>(static_cast<double>(j) * 0.04 - 80), p.b(0, j) = 1;
  p.template both_ways<B>();
  const auto wanted = p.wanted();
  for (std::size_t j = 0; j < 4001; ++j) {
    const double relative = std::abs(to_f64(p.c(0, j)) - wanted.c[j]) / std::max(std::abs(wanted.c[j]), 1e-300);
    ASSERT_LE(relative, (std::same_as<A, float> ? 6e-7 : 2e-15)) << "at " << p.a(0, j);
  }
}

TEST(swiglu_doors, refuse_multipliers_that_are_not_finite) {
  gate_problem<swiglu_gate, float> p({3, 8});
  using B = tigon::default_backend;
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    p.opt = {.gate_multiplier = bad};
    EXPECT_TIGON_ERROR(p.forward<B>(p.c.view()), argument, "swiglu_forward: gate_multiplier is", p.c);
    EXPECT_TIGON_ERROR(p.backward<B>(p.da.view(), p.db.view()), argument, "swiglu_backward: gate_multiplier is", p.da,
                       p.db);
    p.opt = {.down_multiplier = bad};
    EXPECT_TIGON_ERROR(p.forward<B>(p.c.view()), argument, "swiglu_forward: down_multiplier is", p.c);
    EXPECT_TIGON_ERROR(p.backward<B>(p.da.view(), p.db.view()), argument, "swiglu_backward: down_multiplier is", p.da,
                       p.db);
  }
}

}  // namespace
