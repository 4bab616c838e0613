// softmax on ascend: what the parents give, through tiles.
#include <tigon/ops/softmax.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::default_context;

template <class T>
struct problem {
  tigon::softmax_options opt;
  guarded_matrix<T> x, dy, y, dx;

  TIGON_TEST_NOINLINE problem(shape s, tigon::softmax_options of = {}, guard side = guard::behind)
      : opt(of),
        x(random_matrix<T>(s, 1, side, {.deviation = 3})),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side) {}
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    tigon::softmax_forward<B>(x, y.view(), opt, ctx);
    tigon::softmax_backward<B>(dy, y, dx.view(), opt, ctx);
  }
};

template <class P>
struct ascend_softmax : testing::Test {};
TYPED_TEST_SUITE(ascend_softmax, chip_pairs, names);

TYPED_TEST(ascend_softmax, agrees_with_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const shape s : chip_shapes())
    for (const double scale : {1.0, 0.25}) {
      SCOPED_TRACE(testing::Message() << s << ", scale " << scale);
      // The smallest f16 are 2^-24 apart, whatever their size.
      const comparison with{.scale = std::same_as<T, tigon::float16> ? 0x1p-13 : 0, .may_be_empty = s.rows == 0};
      problem<T> p(s, {scale}, s.rows % 2 == 0 ? guard::behind : guard::before), q(s, {scale});
      p.template run<B>();
      q.template run<usual_backend>();
      EXPECT_TRUE(close(p.y.f64(), q.y.f64(), parity.of<T>(), with));
      // Of one column the gradient is what rounding leaves; of two backends it may be different rounding of y.
      if (s.cols > 1) {
        EXPECT_TRUE(close(p.dx.f64(), q.dx.f64(), 2 * parity.of<T>(), with));
      }
      EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
    }
  if constexpr (compared_with_generic<T>) {
    problem<T> p({50, 300, 4}), q({50, 300, 4});
    p.template run<B>();
    q.template run<tigon::backends::generic>();
    EXPECT_TRUE(close(p.y.f64(), q.y.f64(), parity.of<T>()));
    EXPECT_TRUE(close(p.dx.f64(), q.dx.f64(), 2 * parity.of<T>()));
  }
}

TYPED_TEST(ascend_softmax, works_in_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{45, 300, 9}, shape{3, 30000}}) {
    problem<T> p(s), q(s), r(s);
    p.template run<B>();
    tigon::softmax_forward<B>(q.x, q.x.view());
    EXPECT_EQ(q.x.f64(), p.y.f64());
    tigon::softmax_backward<B>(q.dy, q.x, q.dy.view());
    EXPECT_EQ(q.dy.f64(), p.dx.f64());
    r.y.assign(p.y.f64());
    tigon::softmax_backward<B>(r.dy, r.y, r.y.view());
    EXPECT_EQ(r.y.f64(), p.dx.f64());
  }
}

TYPED_TEST(ascend_softmax, keeps_the_edges) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::size_t cols : {70u, 40000u})
    for (const double odd : {infinity, nan, -infinity}) {
      problem<T> p({4, cols}), q({4, cols});
      for (problem<T>* each : {&p, &q}) {
        each->x(1, cols / 2) = from_f64<T>(odd);
        each->x(2, cols - 1) = from_f64<T>(odd);
        for (std::size_t j = 0; j < cols; ++j) each->x(3, j) = from_f64<T>(-infinity);
      }
      tigon::softmax_forward<B>(p.x, p.y.view());
      tigon::softmax_forward<usual_backend>(q.x, q.y.view());
      EXPECT_TRUE(close(p.y.f64(), q.y.f64(), parity.of<T>())) << odd << " of " << cols;
    }
}

TYPED_TEST(ascend_softmax, gives_the_same_bits_for_any_threads) {
  for (const shape s : {shape{161, 301}, shape{43, 5000}})
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      problem<typename TypeParam::element> p(s);
      p.template run<typename TypeParam::backend>(ctx);
      return bits_of(p.y, p.dx);
    }));
}

/// y = 1 + 2 e / sum_j e with e = 4^(x - top)
struct other_program {
  template <class V>
  TIGON_INLINE V reduce(float top, V x) const {
    return exp_nonpositive((x - top) * 1.38629436f);
  }
  TIGON_INLINE bool exceeds(float largest, float top) const { return largest > top; }
  TIGON_INLINE float weight(float top, float highest) const {
    return tigon::math::exp_nonpositive((top - highest) * 1.38629436f);
  }
  TIGON_INLINE float finish(float sum, float weight) const { return 2 * weight / sum; }
  template <class V>
  TIGON_INLINE V map(float factor, V e) const {
    return fma(e, V(factor), V(1.0f));
  }
};

TIGON_TEST_NOINLINE double expected(const guarded_matrix<float>& x, std::size_t i, std::size_t j) {
  double sum = 0;
  for (std::size_t k = 0; k < x.cols(); ++k) sum += std::pow(4, to_f64(x(i, k)) - to_f64(x(i, j)));
  return 1 + 2 / sum;
}

// The formula is the program's, on either driver.
TEST(ascend_softmax_driver, runs_the_same_struct_as_lanes) {
  using tiles = tigon::kernel<tigon::op::softmax, tigon::backends::ascend>;
  for (const shape s : {shape{5, 70, 1}, shape{3, 9000}}) {
    problem<float> p(s), q(s);
    context& ctx = default_context();
    ctx.workspace().expect("test", tigon::detail::below_max_workspace<tigon::backends::highway, float>(s.cols, ctx));
    const audited ledger;
    tiles::map_below_max<usual_chip, other_program, float>(ctx, other_program(), p.x.view(), p.y.view());
    tigon::detail::map_below_max<tigon::backends::highway, other_program, float>(ctx, other_program(), q.x.view(),
                                                                                 q.y.view());
    EXPECT_TRUE(close(p.y.f64(), q.y.f64(), parity.of<float>()));
    EXPECT_NEAR(to_f64(p.y(1, 2)), expected(p.x, 1, 2), 1e-5);
  }
}

// 8192 / width short rows a block, 32 at most; a long row is read three times.
TEST(ascend_softmax_copies, depend_on_the_width) {
  struct {
    std::size_t rows, cols, programs, passes;
  } const cases[] = {{640, 100, 20, 1}, {96, 100, 3, 1}, {24, 1000, 3, 1}, {24, 8192, 20, 1}, {24, 8193, 20, 3}};
  for (const auto& c : cases) {
    problem<float> p({c.rows, c.cols});
    const audited ledger;
    tigon::softmax_forward<usual_chip>(p.x, p.y.view());
    EXPECT_EQ(counting_ledger::total.programs, c.programs) << c.rows << " x " << c.cols;
    EXPECT_EQ(counting_ledger::total.copied_in, c.passes * c.rows * c.cols * sizeof(float));
    EXPECT_EQ(counting_ledger::total.copied_out, c.rows * c.cols * sizeof(float));
  }
}

}  // namespace
