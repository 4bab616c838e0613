// What swiglu and geglu promise alike. A Gate has `name`, `options`, `variants()`, `bounds`, `value<N>(a, b, options)`
// for any number type, `forward<B>(a, b, c, options, ctx)` and `backward<B>(dc, a, b, da, db, options, ctx)`; of the
// options it knows `inner` and `factor`, the multipliers of a and c, `without_factor`, which leaves one at b = 1, what
// `up` makes of b and whether a gradient `passes` there, and whether gates are `held`.
#ifndef TIGON_TESTS_SUPPORT_GATE_CHECKS_HPP
#define TIGON_TESTS_SUPPORT_GATE_CHECKS_HPP

#include <gtest/gtest.h>

#include <complex>
#include <string>

#include "backends.hpp"
#include "errors.hpp"
#include "guarded.hpp"
#include "problem.hpp"
#include "threads.hpp"
#include "throws.hpp"

namespace tigon::test {

template <class Gate, class T>
struct gate_problem {
  typename Gate::options opt;
  guarded_matrix<T> a, b, c, dc, da, db;

  TIGON_TEST_NOINLINE explicit gate_problem(shape s, typename Gate::options of = {}, guard side = guard::behind)
      : opt(of),
        a(random_matrix<T>(s, 1, side, {.deviation = 3})),
        b(random_matrix<T>(s, 2, side)),
        c(s.rows, s.cols, s.padding, side),
        dc(random_matrix<T>(s, 3, side)),
        da(s.rows, s.cols, s.padding, side),
        db(s.rows, s.cols, s.padding, side) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(matrix_view<T> to, context& ctx = default_context()) {
    Gate::template forward<B>(a, b, to, opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(matrix_view<T> to_a, matrix_view<T> to_b, context& ctx = default_context()) {
    Gate::template backward<B>(dc, a, b, to_a, to_b, opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = default_context()) {
    forward<B>(c.view(), ctx);
    backward<B>(da.view(), db.view(), ctx);
  }

  /// c, da and db, element by element: the derivatives by an imaginary step.
  struct results {
    std::vector<double> c, da, db;
  };
  TIGON_TEST_NOINLINE results wanted() const {
    using complex = std::complex<double>;
    constexpr double step = 1e-30;
    results out;
    const auto av = a.f64(), bv = b.f64(), dv = dc.f64();
    for (std::size_t k = 0; k < av.size(); ++k) {
      out.c.push_back(Gate::template value<double>(av[k], bv[k], opt));
      out.da.push_back(dv[k] * std::imag(Gate::template value<complex>({av[k], step}, bv[k], opt)) / step);
      out.db.push_back(dv[k] * std::imag(Gate::template value<complex>(av[k], {bv[k], step}, opt)) / step);
    }
    return out;
  }
};

template <class Gate, class B, class T>
void check_gate_errors() {
  auto shapes = row_shapes<B, T>();
  shapes.insert(shapes.end(), {{3, 0}, {2, 65537 + 3}});
  for (const shape s : shapes)
    for (const auto& opt : Gate::variants()) {
      if (s.cols > 65536 && &opt != &Gate::variants().back()) continue;
      const auto wanted = gate_problem<Gate, T>(s, opt).wanted();
      const double bound = Gate::bounds.template of<T>() * (opt.round_gate && sizeof(T) == 2 ? 2 : 1);
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", variant " << &opt - Gate::variants().data() << ", " << side);
        gate_problem<Gate, T> p(s, opt, side);
        p.template both_ways<B>();
        const comparison with{.may_be_empty = s.rows * s.cols == 0};
        EXPECT_TRUE(close(p.c.f64(), wanted.c, bound, with));
        EXPECT_TRUE(close(p.da.f64(), wanted.da, bound, with));
        EXPECT_TRUE(close(p.db.f64(), wanted.db, bound, with));
        EXPECT_TRUE(p.c.padding_intact() && p.da.padding_intact() && p.db.padding_intact());
      }
    }
}

/// The gate is rounded exactly where round_gate says so: the rounded gate is what a forward with b = 1 stores.
template <class Gate, class B, class T>
void check_gate_rounding() {
  using A = accumulator_t<T>;
  const shape s{2, 4 * lanes<B, T> + 3};
  for (auto opt : Gate::variants()) {
    gate_problem<Gate, T> gate(s, Gate::without_factor(opt)), p(s, opt);
    p.opt.round_gate = true, gate.opt.round_gate = false;
    gate.b.assign(std::vector<double>(s.rows * s.cols, 1));
    gate.dc.assign(std::vector<double>(s.rows * s.cols, 1));
    gate.template both_ways<B>(), p.template both_ways<B>();
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        const A g = static_cast<A>(gate.c(i, j)), factor = static_cast<A>(Gate::factor(opt));
        const A b = static_cast<A>(p.b(i, j)), h = static_cast<A>(gate.db(i, j));
        ASSERT_EQ(to_f64(p.c(i, j)), to_f64(static_cast<T>(g * Gate::up(b, opt) * factor)));
        const T db = Gate::passes(b, opt) ? static_cast<T>(static_cast<A>(p.dc(i, j)) * h * factor) : T(0);
        ASSERT_EQ(to_f64(p.db(i, j)), to_f64(db));
      }
  }
}

template <class Gate, class B, class T>
void check_gate_in_place() {
  const shape s{3, 4 * lanes<B, T> + 3, 2};
  using problem = gate_problem<Gate, T>;
  problem apart(s);
  apart.template both_ways<B>();
  const auto once = bits_of(apart.a, apart.b, apart.dc, apart.da, apart.db);
  apart.da.clear(), apart.db.clear();
  apart.template backward<B>(apart.da.view(), apart.db.view());
  EXPECT_EQ(bits_of(apart.a, apart.b, apart.dc, apart.da, apart.db), once) << "a second backward";
  EXPECT_EQ(bits_of(apart.a, apart.b, apart.dc), bits_of(problem(s).a, problem(s).b, problem(s).dc));
  for (const auto to : {&problem::a, &problem::b}) {
    problem p(s);
    p.template forward<B>((p.*to).view());
    EXPECT_EQ(bits_of(p.*to), bits_of(apart.c));
  }
  for (const auto to_a : {&problem::a, &problem::b, &problem::dc, &problem::da})
    for (const auto to_b : {&problem::a, &problem::b, &problem::dc, &problem::db}) {
      if (to_a == to_b) continue;
      problem p(s);
      p.template backward<B>((p.*to_a).view(), (p.*to_b).view());
      EXPECT_EQ(bits_of(p.*to_a, p.*to_b), bits_of(apart.da, apart.db));
    }
}

/// Gate and up are the halves of one buffer, and their gradients go where they were.
template <class Gate, class B, class T>
void check_gate_halves() {
  const std::size_t n = 2 * lanes<B, T> + 3;
  gate_problem<Gate, T> p({3, n});
  p.template both_ways<B>();
  guarded_matrix<T> both(3, 2 * n, 1), c(3, n);
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < n; ++j) both(i, j) = p.a(i, j), both(i, n + j) = p.b(i, j);
  const auto gate = both.view().cols_from(0, n), up = both.view().cols_from(n, n);
  Gate::template forward<B>(gate, up, c.view(), p.opt, default_context());
  Gate::template backward<B>(p.dc, gate, up, gate, up, p.opt, default_context());
  EXPECT_EQ(bits_of(c), bits_of(p.c));
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      ASSERT_EQ(to_f64(both(i, j)), to_f64(p.da(i, j)));
      ASSERT_EQ(to_f64(both(i, n + j)), to_f64(p.db(i, j)));
    }
  EXPECT_TRUE(both.padding_intact());
}

template <class Gate, class B, class T>
void check_gate_edges() {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const double large = std::same_as<T, float16> ? 6e4 : 1e30;
  for (const auto& opt : Gate::variants()) {
    if (Gate::factor(opt) < 0 || Gate::inner(opt) < 0 || Gate::held(opt)) continue;
    gate_problem<Gate, T> p({1, 7}, opt);
    p.a.assign({-infinity, -large, -2000, nan, 200, large, infinity});
    p.b.assign(std::vector<double>(7, 0.5)), p.dc.assign(std::vector<double>(7, 0.5));
    p.template both_ways<B>();
    for (const std::size_t j : {0u, 1u, 2u})
      for (const auto* closed : {&p.c, &p.da, &p.db}) EXPECT_EQ(to_f64((*closed)(0, j)), 0) << "column " << j;
    EXPECT_TRUE(std::isnan(to_f64(p.c(0, 3))) && std::isnan(to_f64(p.da(0, 3))) && std::isnan(to_f64(p.db(0, 3))));
    const double gate = Gate::inner(opt) * Gate::factor(opt), tolerance = std::same_as<T, bfloat16> ? 8e-3 : 1e-3;
    EXPECT_NEAR(to_f64(p.c(0, 4)) / (100 * gate), 1, tolerance);
    for (const std::size_t j : {4u, 5u, 6u}) EXPECT_NEAR(to_f64(p.da(0, j)) / (0.25 * gate), 1, tolerance);
    EXPECT_EQ(to_f64(p.c(0, 6)), infinity);
    EXPECT_EQ(to_f64(p.db(0, 6)), infinity);
  }
}

template <class Gate, class B, class T>
void check_gate_streams() {
  const shape s{B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001, 4};
  gate_problem<Gate, T> p(s), small({3, s.cols, s.padding});
  p.template both_ways<B>();
  EXPECT_TRUE(p.c.padding_intact() && p.da.padding_intact() && p.db.padding_intact());
  for (const std::size_t first : {std::size_t{0}, s.rows - 3}) {
    const auto part = [&](auto& m) { return m.view().rows_from(first, 3); };
    Gate::template forward<B>(part(p.a), part(p.b), small.c.view(), p.opt, default_context());
    Gate::template backward<B>(part(p.dc), part(p.a), part(p.b), small.da.view(), small.db.view(), p.opt,
                               default_context());
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        ASSERT_EQ(to_f64(p.c(first + i, j)), to_f64(small.c(i, j))) << "row " << first + i << ", column " << j;
        ASSERT_EQ(to_f64(p.da(first + i, j)), to_f64(small.da(i, j))) << "row " << first + i << ", column " << j;
        ASSERT_EQ(to_f64(p.db(first + i, j)), to_f64(small.db(i, j))) << "row " << first + i << ", column " << j;
      }
  }
}

template <class Gate, class B, class T>
void check_gate_threads() {
  gate_problem<Gate, T> p({70, 2049});
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.c.clear(), p.da.clear(), p.db.clear();
    p.template both_ways<B>(ctx);
    return bits_of(p.c, p.da, p.db);
  }));
}

template <class Gate>
void check_gate_doors() {
  using view = matrix_view<float>;
  using B = default_backend;
  gate_problem<Gate, float> p({3, 8, 2});
  guarded<float> buffer(64);
  buffer.assign(std::vector<double>(64, 1.0));
  const view a = p.a.view(), b = p.b.view(), c = p.c.view(), dc = p.dc.view(), da = p.da.view(), db = p.db.view();
  const view front(buffer.data(), 3, 8), shifted(buffer.data() + 8, 3, 8);
  const std::string forward = std::string(Gate::name) + "_forward: ",
                    backward = std::string(Gate::name) + "_backward: ";
  const auto refuses_forward = [&](error_code code, const std::string& part, view a, view b, view c) {
    EXPECT_TRUE(refuses([&] { Gate::template forward<B>(a, b, c, p.opt, default_context()); }, code, forward + part,
                        p.c, buffer));
  };
  const auto refuses_backward = [&](error_code code, const std::string& part, view dc, view a, view b, view da,
                                    view db) {
    EXPECT_TRUE(refuses([&] { Gate::template backward<B>(dc, a, b, da, db, p.opt, default_context()); }, code,
                        backward + part, p.da, p.db, buffer));
  };
  using enum error_code;
  refuses_forward(shape, "gate is 2 x 8; expected 3 x 8", {a.data, 2, 8, 10}, b, c);
  refuses_forward(shape, "up is 3 x 7; expected 3 x 8", a, {b.data, 3, 7, 10}, c);
  refuses_forward(shape, "gate is a null pointer", {nullptr, 3, 8, 8}, b, c);
  refuses_forward(shape, "y is a null pointer", a, b, {nullptr, 3, 8, 8});
  refuses_forward(stride, "y is of row stride 7; expected at least its 8 columns", a, b, {c.data, 3, 8, 7});
  refuses_forward(stride, "gate is of row stride 7", {a.data, 3, 8, 7}, b, c);
  refuses_forward(stride, "up is of row stride 7", a, {b.data, 3, 8, 7}, c);
  refuses_forward(alias, "y overlaps gate; expected the same buffer or no common memory", front, b, shifted);
  refuses_forward(alias, "y overlaps up; expected the same buffer or no common memory", a, front, shifted);

  refuses_backward(shape, "dy is 2 x 8; expected 3 x 8", {dc.data, 2, 8, 10}, a, b, da, db);
  refuses_backward(shape, "gate is 2 x 8; expected 3 x 8", dc, {a.data, 2, 8, 10}, b, da, db);
  refuses_backward(shape, "up is 3 x 7; expected 3 x 8", dc, a, {b.data, 3, 7, 10}, da, db);
  refuses_backward(shape, "dup is 3 x 7; expected 3 x 8", dc, a, b, da, {db.data, 3, 7, 10});
  refuses_backward(shape, "dgate is a null pointer", dc, a, b, {nullptr, 3, 8, 8}, db);
  refuses_backward(stride, "dgate is of row stride 7", dc, a, b, {da.data, 3, 8, 7}, db);
  refuses_backward(stride, "dup is of row stride 7", dc, a, b, da, {db.data, 3, 8, 7});
  refuses_backward(alias, "dgate overlaps dy", front, a, b, shifted, db);
  refuses_backward(alias, "dgate overlaps gate", dc, front, b, shifted, db);
  refuses_backward(alias, "dgate overlaps up", dc, a, front, shifted, db);
  refuses_backward(alias, "dup overlaps dy", front, a, b, da, shifted);
  refuses_backward(alias, "dup overlaps gate", dc, front, b, da, shifted);
  refuses_backward(alias, "dup overlaps up", dc, a, front, da, shifted);
  refuses_backward(alias, "dgate overlaps dup; expected no common memory", dc, a, b, front, front);
}

/// The eight tests that a gate's file consists of.
#define TIGON_TEST_GATE(gate, suite)                                                                   \
  template <class On>                                                                                  \
  class suite : public testing::Test {};                                                               \
  TYPED_TEST_SUITE(suite, ::tigon::test::every_pair, ::tigon::test::names);                            \
  TIGON_TEST_GATE_CHECK(gate, suite, keeps_its_error_and_the_padding, check_gate_errors)               \
  TIGON_TEST_GATE_CHECK(gate, suite, round_gate_rounds_the_gate_and_nothing_else, check_gate_rounding) \
  TIGON_TEST_GATE_CHECK(gate, suite, results_may_overwrite_inputs, check_gate_in_place)                \
  TIGON_TEST_GATE_CHECK(gate, suite, halves_of_one_buffer, check_gate_halves)                          \
  TIGON_TEST_GATE_CHECK(gate, suite, infinities_and_nan, check_gate_edges)                             \
  TIGON_TEST_GATE_CHECK(gate, suite, large_outputs_have_the_bits_of_small_ones, check_gate_streams)    \
  TIGON_TEST_GATE_CHECK(gate, suite, bits_do_not_depend_on_threads, check_gate_threads)                \
  TEST(suite##_doors, refuse_before_the_first_write) { ::tigon::test::check_gate_doors<gate>(); }
#define TIGON_TEST_GATE_CHECK(gate, suite, name, check) \
  TYPED_TEST(suite, name) { ::tigon::test::check<gate, typename TypeParam::backend, typename TypeParam::element>(); }

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_GATE_CHECKS_HPP
