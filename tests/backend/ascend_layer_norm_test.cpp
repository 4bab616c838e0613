// layer_norm on ascend: what the parents give, through tiles.
#include <tigon/ops/layer_norm.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::default_context;

struct variant {
  tigon::layer_norm_options opt;
  bool weighted = true, biased = true;
};
std::vector<variant> variants() {
  return {{{}},
          {{.eps = 1e-3, .dparams = tigon::gradient::accumulate}, true, false},
          {{}, false, true},
          {{}, false, false}};
}

template <class T>
struct problem {
  variant v;
  guarded_matrix<T> x, dy, y, dx;
  guarded<T> w, b, dw, db;
  guarded<accumulator_t<T>> mean, rstd;

  TIGON_TEST_NOINLINE problem(shape s, variant of = {}, guard side = guard::behind)
      : v(of),
        x(random_matrix<T>(s, 1, side, {.mean = 0.3, .deviation = 2})),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side),
        w(random_vector<T>(s.cols, 3, side)),
        b(random_vector<T>(s.cols, 5, side)),
        dw(random_vector<T>(s.cols, 4, side)),
        db(random_vector<T>(s.cols, 6, side)),
        mean(s.rows, side),
        rstd(s.rows, side) {}
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    const auto both_ways = [&](const auto& weight, auto&& dweight, const auto& bias, auto&& dbias) {
      tigon::layer_norm_forward<B>(x, weight, bias, y.view(), mean, rstd, v.opt, ctx);
      tigon::layer_norm_backward<B>(dy, x, weight, mean, rstd, tigon::norm_gradients{dx.view(), dweight, dbias}, v.opt,
                                    ctx);
    };
    using tigon::absent;
    if (v.weighted && v.biased)
      both_ways(w, dw, b, db);
    else if (v.weighted)
      both_ways(w, dw, absent, absent);
    else if (v.biased)
      both_ways(absent, absent, b, db);
    else
      both_ways(absent, absent, absent, absent);
  }
};

template <class P>
struct ascend_layer_norm : testing::Test {};
TYPED_TEST_SUITE(ascend_layer_norm, chip_pairs, names);

template <class T>
void expect_equal(const problem<T>& p, const problem<T>& q, double bound) {
  const comparison with{.may_be_empty = p.x.rows() == 0};
  EXPECT_TRUE(close(p.y.f64(), q.y.f64(), bound, with));
  EXPECT_TRUE(close(p.mean.f64(), q.mean.f64(), parity.of<accumulator_t<T>>(), with));
  EXPECT_TRUE(close(p.rstd.f64(), q.rstd.f64(), parity.of<accumulator_t<T>>(), with));
  EXPECT_TRUE(close(p.dx.f64(), q.dx.f64(), bound, with));
  EXPECT_TRUE(close(p.dw.f64(), q.dw.f64(), bound));
  EXPECT_TRUE(close(p.db.f64(), q.db.f64(), bound));
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
}

TYPED_TEST(ascend_layer_norm, agrees_with_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const shape s : chip_shapes())
    for (const variant& v : variants()) {
      // Of one column everything but the bias is rounding.
      if (s.cols == 1) continue;
      SCOPED_TRACE(testing::Message() << s << ", weight " << v.weighted << ", bias " << v.biased);
      problem<T> p(s, v, s.rows % 2 == 0 ? guard::behind : guard::before), q(s, v);
      p.template run<B>();
      q.template run<usual_backend>();
      expect_equal(p, q, parity.of<T>());
    }
  if constexpr (compared_with_generic<T>) {
    problem<T> p({50, 300, 4}), q({50, 300, 4});
    p.template run<B>();
    q.template run<tigon::backends::generic>();
    expect_equal(p, q, parity.of<T>());
  }
}

TYPED_TEST(ascend_layer_norm, works_in_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{45, 300, 9}, shape{3, 30000}}) {
    problem<T> p(s), q(s), r(s);
    p.template run<B>();
    tigon::layer_norm_backward<B>(q.dy, q.x, q.w, p.mean, p.rstd, tigon::norm_gradients{q.dy.view(), q.dw, q.db});
    EXPECT_EQ(q.dy.f64(), p.dx.f64());
    tigon::layer_norm_backward<B>(r.dy, r.x, r.w, p.mean, p.rstd, tigon::norm_gradients{r.x.view(), r.dw, r.db});
    EXPECT_EQ(r.x.f64(), p.dx.f64());
    EXPECT_EQ(r.dw.f64(), p.dw.f64());
    EXPECT_EQ(r.db.f64(), p.db.f64());
  }
}

TYPED_TEST(ascend_layer_norm, gives_the_same_bits_for_any_threads) {
  for (const shape s : {shape{161, 301}, shape{83, 2100}})
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      problem<typename TypeParam::element> p(s);
      p.template run<typename TypeParam::backend>(ctx);
      return bits_of(p.y, p.dx, p.dw, p.db, p.mean, p.rstd);
    }));
}

// Whole rows in a tile: 8, 4, 4, 2 of them by width; then two passes over the blocks of one, and a third for
// rows whose mean shows. The number of programs goes by the number of rows.
TEST(ascend_layer_norm_blocks, are_as_the_rule_says) {
  using plan = tigon::ub::plan<usual_chip, tigon::op::layer_norm, tigon::tiling::pass::forward, float>;
  using kernel = tigon::kernel<tigon::op::layer_norm, tigon::backends::ascend>;
  constexpr auto rows_of = [](std::size_t cols) { return kernel::forward_cut<plan>(100, cols).rows; };
  static_assert(rows_of(512) == 8 && rows_of(1024) == 4 && rows_of(2048) == 4 && rows_of(4096) == 2);
  static_assert(rows_of(8192) == 1 && kernel::forward_cut<plan>(100, 8192).cols == 4096);
  constexpr auto programs_of = [](std::size_t rows) { return kernel::forward_cut<plan>(rows, 512).programs; };
  static_assert(programs_of(1024) == 40 && programs_of(2000) == 20 && programs_of(5000) == 40);
  static_assert(programs_of(9000) == 80);

  for (const std::size_t cols : {4096u, 8192u}) {
    problem<float> p({100, cols});
    const audited ledger;
    tigon::layer_norm_forward<usual_chip>(p.x, p.w, p.b, p.y.view(), p.mean, p.rstd);
    EXPECT_EQ(counting_ledger::total.programs, 40u);
    const std::size_t in = cols == 4096 ? 100 * cols + 2 * 40 * cols : 4 * 100 * cols;
    EXPECT_EQ(counting_ledger::total.copied_in, in * sizeof(float));
  }
}

}  // namespace
