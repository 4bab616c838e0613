// poly_norm on ascend: what the parents give, through tiles.
#include <tigon/ops/poly_norm.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::default_context;

template <class T, class W = T>
struct problem {
  tigon::poly_norm_options opt;
  guarded_matrix<T> x, dy, y, dx;
  guarded<W> w, dw;
  guarded<T> b, db;
  guarded<accumulator_t<T>> rstd;

  TIGON_TEST_NOINLINE explicit problem(shape s, tigon::poly_norm_options o = {}, guard side = guard::behind)
      : opt(o),
        x(random_matrix<T>(s, 1, side, {.mean = 0.3, .deviation = 2})),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side),
        w(random_vector<W>(3, 3, side)),
        dw(random_vector<W>(3, 4, side)),
        b(random_vector<T>(1, 5, side)),
        db(random_vector<T>(1, 6, side)),
        rstd(3 * s.rows, side) {}
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    tigon::poly_norm_forward<B>(x, w, b, y.view(), rstd, opt, ctx);
    tigon::poly_norm_backward<B>(dy, x, w, rstd, tigon::norm_gradients{dx.view(), dw, db}, opt, ctx);
  }
  /// Rows that f32 does not hold: tiny, huge, with a NaN, with an infinity.
  TIGON_TEST_NOINLINE void spoil() {
    std::vector<double> v = x.f64();
    const std::size_t cols = x.cols();
    for (std::size_t i = 0; i < x.rows(); ++i)
      for (std::size_t j = 0; j < cols; ++j) v[i * cols + j] *= i % 5 == 1 ? 1e-9 : i % 5 == 3 ? 1e8 : 1;
    if (x.rows() > 7) {
      v[4 * cols + cols / 2] = std::numeric_limits<double>::quiet_NaN();
      v[7 * cols + cols - 1] = std::numeric_limits<double>::infinity();
    }
    x.assign(v);
    opt.eps = 0;
  }
};

template <class P>
struct ascend_poly_norm : testing::Test {};
TYPED_TEST_SUITE(ascend_poly_norm, chip_pairs, names);

template <class T, class W>
void expect_equal(const problem<T, W>& p, const problem<T, W>& q, double bound) {
  const comparison with{.may_be_empty = p.x.rows() == 0};
  EXPECT_TRUE(close(p.y.f64(), q.y.f64(), bound, with));
  EXPECT_TRUE(close(p.rstd.f64(), q.rstd.f64(), parity.of<accumulator_t<T>>(), with));
  EXPECT_TRUE(close(p.dx.f64(), q.dx.f64(), bound, with));
  // A power over its root mean square is of size 1, so the terms of these sums are those of dy.
  const double size = std::sqrt(static_cast<double>(p.x.rows() * p.x.cols()));
  EXPECT_TRUE(close(p.dw.f64(), q.dw.f64(), bound, {.scale = size}));
  EXPECT_TRUE(close(p.db.f64(), q.db.f64(), bound, {.scale = size}));
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
}

TYPED_TEST(ascend_poly_norm, agrees_with_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const shape s : chip_shapes())
    for (const bool accumulates : {false, true}) {
      SCOPED_TRACE(testing::Message() << s << (accumulates ? ", accumulating" : ""));
      const tigon::poly_norm_options opt{
          .eps = accumulates ? 1e-2 : 1e-6,
          .dparams = accumulates ? tigon::gradient::accumulate : tigon::gradient::overwrite};
      problem<T> p(s, opt, s.rows % 2 == 0 ? guard::behind : guard::before), q(s, opt);
      p.template run<B>();
      q.template run<usual_backend>();
      expect_equal(p, q, parity.of<T>());
    }
  const auto both = [&]<class Other>(shape s, Other, double bound) {
    problem<T> p(s), q(s);
    p.template run<B>();
    q.template run<Other>();
    expect_equal(p, q, bound);
  };
  both({50, 1300, 4}, tigon::backends::generic{}, 2 * parity.of<T>());
  // Of one column the terms of dx cancel: f32 has none of it left, however many rows there are.
  if (sizeof(T) < 8) both({40000, 1}, usual_backend{}, parity.of<T>());
}

// Rows of one block and of several, all of them in f64 and only those that need it.
TYPED_TEST(ascend_poly_norm, agrees_where_f32_holds_no_sixth_power) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  if (std::same_as<T, tigon::float16>) return;  // holds no such numbers itself
  for (const shape s : {shape{23, 30}, shape{200, 300, 5}, shape{9, 20000}}) {
    SCOPED_TRACE(testing::Message() << s);
    problem<T> p(s), q(s);
    p.spoil(), q.spoil();
    p.template run<B>();
    q.template run<usual_backend>();
    for (std::size_t i = 0; i < s.rows; ++i) {
      SCOPED_TRACE(testing::Message() << "row " << i);
      const auto row = [&](const std::vector<double>& v, std::size_t n) {
        return std::vector<double>(v.begin() + i * n, v.begin() + (i + 1) * n);
      };
      EXPECT_TRUE(close(row(p.y.f64(), s.cols), row(q.y.f64(), s.cols), parity.of<T>()));
      EXPECT_TRUE(close(row(p.dx.f64(), s.cols), row(q.dx.f64(), s.cols), parity.of<T>()));
      EXPECT_TRUE(close(row(p.rstd.f64(), 3), row(q.rstd.f64(), 3), parity.of<accumulator_t<T>>()));
    }
  }
}

TYPED_TEST(ascend_poly_norm, works_in_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{45, 300, 9}, shape{3, 30000}}) {
    problem<T> p(s), q(s), r(s);
    p.template run<B>();
    tigon::poly_norm_backward<B>(q.dy, q.x, q.w, p.rstd, tigon::norm_gradients{q.dy.view(), q.dw, q.db});
    EXPECT_EQ(q.dy.f64(), p.dx.f64());
    tigon::poly_norm_backward<B>(r.dy, r.x, r.w, p.rstd, tigon::norm_gradients{r.x.view(), r.dw, r.db});
    EXPECT_EQ(r.x.f64(), p.dx.f64());
    EXPECT_EQ(r.dw.f64(), p.dw.f64());
    EXPECT_EQ(r.db.f64(), p.db.f64());
  }
}

// A row that is computed in f64 is not copied out by the pass before, which would overwrite its operands.
TYPED_TEST(ascend_poly_norm, works_in_place_where_f32_holds_no_sixth_power) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  if (std::same_as<T, tigon::float16>) return;  // holds no such numbers itself
  for (const shape s : {shape{200, 300, 5}, shape{9, 20000}}) {
    problem<T> p(s), q(s), r(s);
    p.spoil(), q.spoil(), r.spoil();
    p.template run<B>();
    tigon::poly_norm_backward<B>(q.dy, q.x, q.w, p.rstd, tigon::norm_gradients{q.dy.view(), q.dw, q.db}, p.opt);
    EXPECT_EQ(bits_of(q.dy), bits_of(p.dx));
    tigon::poly_norm_backward<B>(r.dy, r.x, r.w, p.rstd, tigon::norm_gradients{r.x.view(), r.dw, r.db}, p.opt);
    EXPECT_EQ(bits_of(r.x), bits_of(p.dx));
  }
}

TYPED_TEST(ascend_poly_norm, gives_the_same_bits_for_any_threads) {
  for (const shape s : {shape{61, 301}, shape{161, 301}, shape{83, 2100}})
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      problem<typename TypeParam::element> p(s);
      p.template run<typename TypeParam::backend>(ctx);
      return bits_of(p.y, p.dx, p.dw, p.db, p.rstd);
    }));
}

TEST(ascend_poly_norm_types, may_differ) {
  problem<tigon::bfloat16, float> p({50, 3000}), q({50, 3000});
  p.run<usual_chip>();
  q.run<usual_backend>();
  expect_equal(p, q, parity.bf16);
}

// A row of one block comes in once, of several twice; 20 programs where there are rows for them, 2048 / 128 short rows
// in a block.
TEST(ascend_poly_norm_copies, depend_on_whether_a_row_fits) {
  struct {
    std::size_t rows, cols, times, programs;
  } const cases[] = {{100, 4096, 1, 20}, {100, 4097, 2, 20}, {64, 100, 1, 4}};
  for (const auto c : cases) {
    problem<float> p({c.rows, c.cols});
    const audited ledger;
    tigon::poly_norm_forward<usual_chip>(p.x, p.w, p.b, p.y.view(), p.rstd);
    EXPECT_EQ(counting_ledger::total.programs, c.programs);
    EXPECT_EQ(counting_ledger::total.copied_in, c.times * c.rows * c.cols * sizeof(float));
    EXPECT_EQ(counting_ledger::total.copied_out, (c.rows * c.cols + 3 * c.rows) * sizeof(float));
    counting_ledger::clear();
    tigon::poly_norm_backward<usual_chip>(p.dy, p.x, p.w, p.rstd, tigon::norm_gradients{p.dx.view(), p.dw, p.db});
    const std::size_t blocks_of_row = (c.cols + 2047) / 2048, reads = blocks_of_row == 1 ? 2 : 4;
    EXPECT_EQ(counting_ledger::total.copied_in, (reads * c.rows * c.cols + 3 * c.rows) * sizeof(float));
    EXPECT_EQ(counting_ledger::total.copied_out, c.rows * c.cols * sizeof(float) + 4 * c.rows * sizeof(double));
  }
}

}  // namespace
