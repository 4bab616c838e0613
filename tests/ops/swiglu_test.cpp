// The contract of include/tigon/ops/swiglu.hpp, promise by promise, on every backend and in every element type.
#include <tigon/ops/swiglu.hpp>

#include "support/gate_checks.hpp"

#include "support/kernels.hpp"

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
                                          {.down_multiplier = 2},  // alone
                                          {.round_gate = true},
                                          {.gate_multiplier = 0.75, .down_multiplier = 1.5, .round_gate = true},
                                          {.up_offset = 1},  // alone
                                          {.limit = 2, .slope = 1.702, .up_offset = 1},
                                          {.gate_multiplier = -0.75,
                                           .down_multiplier = 1.5,
                                           .round_gate = true,
                                           .limit = 1.25,
                                           .slope = 0.5,
                                           .up_offset = -0.5}};
    return all;
  }
  static double inner(options opt) { return opt.gate_multiplier; }
  static double factor(options opt) { return opt.down_multiplier; }
  // Held by an offset alone, it stays with the kernel of limits, whose last bits are not those of the other.
  static options without_factor(options opt) {
    if (held(opt)) opt.limit = std::min<double>(opt.limit, 99);
    return opt.down_multiplier = 1, opt.up_offset = 0, opt;
  }
  template <class A>
  static A up(A b, options opt) {
    const A limit = static_cast<A>(opt.limit);
    return std::clamp(b, -limit, limit) + static_cast<A>(opt.up_offset);
  }
  static bool passes(double b, options opt) { return std::abs(b) <= opt.limit; }
  static bool held(options opt) { return opt.limit < 100 || opt.slope != 1 || opt.up_offset != 0; }

  template <class N>
  static N value(N a, N b, options opt) {
    N z = opt.gate_multiplier * a;
    if (std::real(z) > opt.limit) z = opt.limit;
    if (std::abs(std::real(b)) > opt.limit) b = std::copysign(opt.limit, std::real(b));
    return opt.down_multiplier * z / (1.0 + exp(-opt.slope * z)) * (b + opt.up_offset);
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

// gpt-oss: gradients pass where an input is the limit, and nowhere beyond; what is clamped is not NaN.
TYPED_TEST(swiglu, gradients_pass_at_the_limit_and_not_beyond) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double above = std::same_as<T, tigon::bfloat16> ? 7.0625 : 7.0078125, below = 6.96875;
  gate_problem<swiglu_gate, T> p({2, 9}, {.limit = 7, .slope = 1.702, .up_offset = 1});
  p.a.assign({7, below, above, infinity, -infinity, -7, 3, 3, 3, 7, above, 3, 3, 3, 3, 3, 3, 3});
  p.b.assign({2, 2, 2, 2, 2, 2, 7, above, infinity, 7, 7, -7, -above, -infinity, below, -below, 0, -1});
  p.dc.assign(std::vector<double>(18, 1));
  p.template both_ways<B>();
  const auto wanted = p.wanted();
  const auto c = p.c.f64(), da = p.da.f64(), db = p.db.f64();
  const std::vector<bool> a_passes{1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1};
  const std::vector<bool> b_passes{1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1};
  for (std::size_t k = 0; k < 18; ++k) {
    SCOPED_TRACE(k);
    if (k == 4) {  // closed for good
      EXPECT_EQ(c[k], 0);
      EXPECT_EQ(da[k], 0);
      EXPECT_EQ(db[k], 0);
      continue;
    }
    const double tolerance = swiglu_gate::bounds.template of<T>() * 2;
    EXPECT_NEAR(c[k], wanted.c[k], tolerance * std::abs(wanted.c[k]));
    EXPECT_NEAR(da[k], wanted.da[k], tolerance * std::abs(wanted.da[k]));
    EXPECT_NEAR(db[k], wanted.db[k], tolerance * std::abs(wanted.db[k]));
    EXPECT_EQ(da[k] != 0, a_passes[k] && k != 17);  // u = -1 + 1
    EXPECT_EQ(db[k] != 0, b_passes[k]);
  }
}

TYPED_TEST(swiglu, limits_keep_nan) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const std::size_t n = lanes<B, T> + 2;
  gate_problem<swiglu_gate, T> p({1, n}, {.limit = 7, .slope = 1.702, .up_offset = 1});
  p.a(0, 0) = p.a(0, n - 1) = p.b(0, 1) = from_f64<T>(nan);
  p.a(0, 1) = from_f64<T>(2);
  p.template both_ways<B>();
  for (std::size_t j = 0; j < n; ++j) {
    const bool of_a = j == 0 || j == n - 1, of_b = j == 1;
    EXPECT_EQ(std::isnan(to_f64(p.c(0, j))), of_a || of_b) << j;
    EXPECT_EQ(std::isnan(to_f64(p.da(0, j))), of_a || of_b) << j;
    EXPECT_EQ(std::isnan(to_f64(p.db(0, j))), of_a) << j;
  }
}

// A limit that nothing reaches changes nothing but the last bits, and a slope of any size keeps within the numbers.
TYPED_TEST(swiglu, limits_out_of_reach_and_slopes_of_any_size) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  gate_problem<swiglu_gate, T> plain({3, 67}), held({3, 67}, {.limit = 1e4});
  plain.template both_ways<B>(), held.template both_ways<B>();
  EXPECT_TRUE(close(held.c.f64(), plain.c.f64(), swiglu_gate::bounds.template of<T>()));
  EXPECT_TRUE(close(held.da.f64(), plain.da.f64(), swiglu_gate::bounds.template of<T>()));
  EXPECT_TRUE(close(held.db.f64(), plain.db.f64(), swiglu_gate::bounds.template of<T>()));
  for (const double slope : {1e-30, 1e-3, 1e3, 1e30}) {
    gate_problem<swiglu_gate, T> p({3, 67}, {.slope = slope});
    p.template both_ways<B>();
    const auto wanted = p.wanted();
    // A step in the sigmoid where the slope is steep: c and db have none there, da has its values on both sides.
    EXPECT_TRUE(close(p.c.f64(), wanted.c, swiglu_gate::bounds.template of<T>())) << slope;
    EXPECT_TRUE(close(p.db.f64(), wanted.db, swiglu_gate::bounds.template of<T>())) << slope;
    EXPECT_TRUE(close(p.da.f64(), wanted.da, swiglu_gate::bounds.template of<T>())) << slope;
  }
}

TEST(swiglu_doors, refuse_limits_slopes_and_offsets) {
  gate_problem<swiglu_gate, float> p({3, 8});
  using B = tigon::default_backend;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const auto refuses = [&](tigon::swiglu_options opt, const std::string& part) {
    p.opt = opt;
    EXPECT_TIGON_ERROR(p.forward<B>(p.c.view()), argument, "swiglu_forward: " + part, p.c);
    EXPECT_TIGON_ERROR(p.backward<B>(p.da.view(), p.db.view()), argument, "swiglu_backward: " + part, p.da, p.db);
  };
  for (const double bad : {nan, 0.0, -7.0}) refuses({.limit = bad}, "limit is");
  for (const double bad : {nan, 0.0, -1.0, infinity}) refuses({.slope = bad}, "slope is");
  for (const double bad : {nan, -infinity}) refuses({.up_offset = bad}, "up_offset is");
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
