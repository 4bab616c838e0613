// sparsemax on ascend: what the parents give, through tiles.
#include <tigon/ops/sparsemax.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::default_context;

template <class T>
struct problem {
  guarded_matrix<T> x, dy, y, dx;

  /// The deviation is what the size of the support depends on.
  TIGON_TEST_NOINLINE explicit problem(shape s, double deviation = 1, guard side = guard::behind)
      : x(random_matrix<T>(s, 1, side, {.deviation = deviation})),
        dy(random_matrix<T>(s, 2, side, {.mean = 1})),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side) {}
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    tigon::sparsemax_forward<B>(x, y.view(), {}, ctx);
    tigon::sparsemax_backward<B>(dy, y, dx.view(), {}, ctx);
  }
};

template <class P>
struct ascend_sparsemax : testing::Test {};
TYPED_TEST_SUITE(ascend_sparsemax, chip_pairs, names);

/// Equal up to rounding, in units of what there is over the support.
template <class T>
testing::AssertionResult alike(const guarded_matrix<T>& got, const guarded_matrix<T>& want) {
  double square = 0, number = 0;
  for (const double v : want.f64())
    if (v != 0 && std::isfinite(v)) square += v * v, ++number;
  // The smallest f16 are 2^-24 apart, whatever their size.
  const double least = std::same_as<T, tigon::float16> ? 0x1p-13 : 0;
  const double scale = std::max(least, std::sqrt(square / std::max(number, 1.0)));
  return close(got.f64(), want.f64(), parity.of<T>(), {.scale = scale, .may_be_empty = want.rows() == 0});
}

TYPED_TEST(ascend_sparsemax, agrees_with_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const shape s : chip_shapes())
    for (const double deviation : {1.0, 0.01, 1e-5}) {
      SCOPED_TRACE(testing::Message() << s << ", deviation " << deviation);
      problem<T> p(s, deviation, s.rows % 2 == 0 ? guard::behind : guard::before), q(s, deviation);
      p.template run<B>();
      q.template run<usual_backend>();
      EXPECT_TRUE(alike(p.y, q.y));
      // From the same y: where one backend rounds an element to 0 and the other does not, means differ.
      q.y.assign(p.y.f64());
      tigon::sparsemax_backward<usual_backend>(q.dy, q.y, q.dx.view());
      if (s.cols > 1) {
        EXPECT_TRUE(alike(p.dx, q.dx));
      }
      EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
    }
}

TEST(ascend_sparsemax_of_f32, agrees_with_generic) {
  problem<float> p({50, 300, 4}), q({50, 300, 4});
  p.run<usual_chip>();
  q.run<tigon::backends::generic>();
  EXPECT_TRUE(alike(p.y, q.y));
  EXPECT_TRUE(alike(p.dx, q.dx));
}

// A gradient far from 0 takes the second pass over dy; a common offset of x costs no digit.
TYPED_TEST(ascend_sparsemax, keeps_the_digits_that_an_offset_hides) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{3, 300}, shape{2, 20000}}) {
    problem<T> p(s, 0.01), q(s, 0.01);
    for (problem<T>* each : {&p, &q})
      for (std::size_t i = 0; i < s.rows; ++i)
        for (std::size_t j = 0; j < s.cols; ++j) {
          each->x(i, j) = from_f64<T>(64 + 64 * to_f64(each->x(i, j)));
          each->dy(i, j) = from_f64<T>(j == 0 ? -1e3 : 1e3 + to_f64(each->dy(i, j)));
        }
    p.template run<B>();
    q.template run<usual_backend>();
    EXPECT_TRUE(alike(p.y, q.y)) << s;
    EXPECT_TRUE(alike(p.dx, q.dx)) << s;
  }
}

TYPED_TEST(ascend_sparsemax, works_in_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{45, 300, 9}, shape{3, 30000}}) {
    problem<T> p(s), q(s), r(s);
    p.template run<B>();
    tigon::sparsemax_forward<B>(q.x, q.x.view());
    EXPECT_EQ(q.x.f64(), p.y.f64());
    tigon::sparsemax_backward<B>(q.dy, q.x, q.dy.view());
    EXPECT_EQ(q.dy.f64(), p.dx.f64());
    r.y.assign(p.y.f64());
    tigon::sparsemax_backward<B>(r.dy, r.y, r.y.view());
    EXPECT_EQ(r.y.f64(), p.dx.f64());
  }
}

TYPED_TEST(ascend_sparsemax, keeps_the_edges) {
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
      p.template run<B>();
      q.template run<usual_backend>();
      EXPECT_TRUE(alike(p.y, q.y)) << odd << " of " << cols;
      EXPECT_TRUE(alike(p.dx, q.dx)) << odd << " of " << cols;
    }
}

TYPED_TEST(ascend_sparsemax, leaves_other_axes_to_its_parents) {
  using T = typename TypeParam::element;
  problem<T> p({6, 40}), q({6, 40});
  const auto run = [](problem<T>& of, auto backend) {
    using B = decltype(backend);
    const auto axis = [](auto m) { return tigon::axis_view(m.data, 2, 3, 40); };
    tigon::sparsemax_forward<B>(axis(of.x.view()), axis(of.y.view()));
    tigon::sparsemax_backward<B>(axis(of.dy.view()), axis(of.y.view()), axis(of.dx.view()));
  };
  run(p, typename TypeParam::backend{});
  run(q, usual_backend{});
  EXPECT_TRUE(alike(p.y, q.y));
  EXPECT_TRUE(alike(p.dx, q.dx));
}

TYPED_TEST(ascend_sparsemax, gives_the_same_bits_for_any_threads) {
  for (const shape s : {shape{161, 301}, shape{43, 5000}})
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      problem<typename TypeParam::element> p(s);
      p.template run<typename TypeParam::backend>(ctx);
      return bits_of(p.y, p.dx);
    }));
}

// A row that fits comes in once. Of a longer one all of it twice, and in between the block that holds the support,
// each time the threshold may rise.
TEST(ascend_sparsemax_copies, depend_on_where_the_support_is) {
  struct {
    std::size_t rows, cols, programs, blocks;
  } const cases[] = {{640, 100, 20, 1}, {3, 100, 3, 1}, {24, 2048, 20, 1}, {24, 16384, 20, 17}};
  for (const auto& c : cases) {
    problem<float> p({c.rows, c.cols});
    for (std::size_t i = 0; i < c.rows; ++i) p.x(i, c.cols / 2) = 100;
    const audited ledger;
    tigon::sparsemax_forward<usual_chip>(p.x, p.y.view());
    EXPECT_EQ(counting_ledger::total.programs, c.programs) << c.rows << " x " << c.cols;
    EXPECT_EQ(counting_ledger::total.copied_in, c.rows * c.blocks * std::min<std::size_t>(c.cols, 2048) * sizeof(float))
        << c.rows << " x " << c.cols;
    EXPECT_EQ(counting_ledger::total.copied_out, c.rows * c.cols * sizeof(float));
  }
}

}  // namespace
