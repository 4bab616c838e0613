// dyt on ascend: what the parents give, through tiles.
#include <tigon/ops/dyt.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::context, tigon::default_context, tigon::matrix_view;

struct variant {
  tigon::dyt_options opt;
  bool shifted = true;
};
std::vector<variant> variants() { return {{}, {{.dparams = tigon::gradient::accumulate}, false}}; }

template <class T, class W = T>
struct problem {
  variant v;
  guarded_matrix<T> x, dy, y, dx;
  guarded<W> alpha, gamma, beta, dalpha, dgamma, dbeta;

  TIGON_TEST_NOINLINE explicit problem(shape s, variant of = {}, guard side = guard::behind)
      : v(of),
        x(random_matrix<T>(s, 1, side, {.mean = 0.3, .deviation = 3})),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side),
        alpha(random_vector<W>(1, 7, side, {.mean = 0.5, .deviation = 0.1})),
        gamma(random_vector<W>(s.cols, 3, side)),
        beta(random_vector<W>(s.cols, 5, side)),
        dalpha(random_vector<W>(1, 8, side)),
        dgamma(random_vector<W>(s.cols, 4, side)),
        dbeta(random_vector<W>(s.cols, 6, side)) {}
  template <class B>
  TIGON_TEST_NOINLINE void backward(matrix_view<T> to, context& ctx = default_context()) {
    if (v.shifted)
      tigon::dyt_backward<B>(dy, x, alpha, gamma, tigon::dyt_gradients{to, dalpha, dgamma, dbeta}, v.opt, ctx);
    else
      tigon::dyt_backward<B>(dy, x, alpha, gamma, tigon::dyt_gradients{to, dalpha, dgamma, absent}, v.opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    if (v.shifted)
      tigon::dyt_forward<B>(x, alpha, gamma, beta, y.view(), v.opt, ctx);
    else
      tigon::dyt_forward<B>(x, alpha, gamma, absent, y.view(), v.opt, ctx);
    backward<B>(dx.view(), ctx);
  }
  /// The root sum of squares of the terms of dalpha.
  TIGON_TEST_NOINLINE double size_of_dalpha() const {
    const std::vector<double> factor = x.f64(), slope = dx.f64();
    double square = 0;
    for (std::size_t k = 0; k < factor.size(); ++k) square += factor[k] * slope[k] * factor[k] * slope[k];
    return std::sqrt(square) / to_f64(alpha[0]);
  }
};

template <class P>
struct ascend_dyt : testing::Test {};
TYPED_TEST_SUITE(ascend_dyt, chip_pairs, names);

template <class T, class W>
void expect_equal(const problem<T, W>& p, const problem<T, W>& q, double bound) {
  const comparison with{.may_be_empty = p.x.rows() * p.x.cols() == 0}, of_columns{.may_be_empty = p.x.cols() == 0};
  EXPECT_TRUE(close(p.y.f64(), q.y.f64(), bound, with));
  EXPECT_TRUE(close(p.dx.f64(), q.dx.f64(), bound, with));
  EXPECT_TRUE(close(p.dalpha.f64(), q.dalpha.f64(), bound, {.scale = q.size_of_dalpha()}));
  EXPECT_TRUE(close(p.dgamma.f64(), q.dgamma.f64(), bound, of_columns));
  EXPECT_TRUE(close(p.dbeta.f64(), q.dbeta.f64(), bound, of_columns));
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
}

TYPED_TEST(ascend_dyt, agrees_with_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const shape s : chip_shapes())
    for (const variant& v : variants()) {
      SCOPED_TRACE(testing::Message() << s << (v.shifted ? "" : ", no beta, accumulating"));
      problem<T> p(s, v, s.rows % 2 == 0 ? guard::behind : guard::before), q(s, v);
      p.template run<B>();
      q.template run<usual_backend>();
      expect_equal(p, q, parity.of<T>());
    }
  if constexpr (compared_with_generic<T>) {
    problem<T> p({50, 300, 4}), q({50, 300, 4});
    p.template run<B>();
    q.template run<tigon::backends::generic>();
    expect_equal(p, q, 2 * parity.of<T>());
  }
}

TYPED_TEST(ascend_dyt, works_in_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{45, 300, 9}, shape{3, 30000}}) {
    problem<T> p(s), q(s), r(s);
    p.template run<B>();
    q.template backward<B>(q.dy.view());
    r.template backward<B>(r.x.view());
    EXPECT_EQ(q.dy.f64(), p.dx.f64());
    EXPECT_EQ(r.x.f64(), p.dx.f64());
    EXPECT_EQ(q.dalpha.f64(), p.dalpha.f64());
    EXPECT_EQ(r.dalpha.f64(), p.dalpha.f64());
  }
}

TYPED_TEST(ascend_dyt, gives_the_same_bits_for_any_threads) {
  for (const shape s : {shape{61, 301}, shape{161, 301}, shape{83, 9000}})
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      problem<typename TypeParam::element> p(s);
      p.template run<typename TypeParam::backend>(ctx);
      return bits_of(p.y, p.dx, p.dalpha, p.dgamma, p.dbeta);
    }));
}

TEST(ascend_dyt_types, may_differ) {
  problem<tigon::bfloat16, float> p({50, 3000}), q({50, 3000});
  p.run<usual_chip>();
  q.run<usual_backend>();
  expect_equal(p, q, parity.bf16);
  EXPECT_TRUE(close(p.dgamma.f64(), q.dgamma.f64(), parity.f32));
}

TEST(ascend_dyt_columns, may_be_none) {
  problem<float> p({3, 0}), q({3, 0}, {{.dparams = tigon::gradient::accumulate}});
  const float before = q.dalpha[0];
  p.run<usual_chip>();
  q.run<usual_chip>();
  EXPECT_EQ(p.dalpha[0], 0);
  EXPECT_EQ(q.dalpha[0], before);
}

// Terms that cancel in pairs, but for one that is a little larger: f64 has the sum to the last place.
TEST(ascend_dyt_dalpha, is_a_sum_in_f64_where_terms_are_few) {
  problem<float> p({2, 3000}), q({2, 3000});
  for (problem<float>* each : {&p, &q})
    for (std::size_t j = 0; j < 3000; ++j) {
      each->x(1, j) = each->x(0, j);
      each->dy(1, j) = (j == 1234 ? 1e-3f : 0) - each->dy(0, j);
    }
  p.run<usual_chip>();
  q.run<usual_backend>();
  EXPECT_NE(q.dalpha[0], 0);
  EXPECT_TRUE(close(p.dalpha.f64(), q.dalpha.f64(), parity.f32));
}

// A strip's parameters are copied once. Of 20 programs, 3 blocks of columns take 6 each; 30 of them one each, and ten
// programs work on a second.
TEST(ascend_dyt_strips, copy_parameters_once) {
  struct {
    std::size_t rows, cols, down, programs;
  } const cases[] = {{100, 100, 7, 7}, {100, 8192, 20, 20}, {100, 20000, 6, 18}, {3, 8192 * 30, 1, 20}};
  for (const auto c : cases) {
    problem<float> p({c.rows, c.cols});
    const audited ledger;
    tigon::dyt_forward<usual_chip>(p.x, p.alpha, p.gamma, p.beta, p.y.view());
    EXPECT_EQ(counting_ledger::total.programs, c.programs);
    EXPECT_EQ(counting_ledger::total.copied_in, (c.rows * c.cols + 2 * c.down * c.cols) * sizeof(float));
    EXPECT_EQ(counting_ledger::total.copied_out, c.rows * c.cols * sizeof(float));
  }
}

}  // namespace
