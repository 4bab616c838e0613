// rms_norm on ascend: what the parents give, through tiles.
#include <tigon/ops/rms_norm.hpp>

#include "ascend_chips.hpp"
#include "support/row_norm.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::default_context;

struct variant {
  tigon::rms_norm_options opt;
  bool weighted = true;
};
std::vector<variant> variants() {
  using tigon::casting, tigon::gradient;
  return {{{}},
          {{.eps = 1e-3, .offset = 1, .casting = casting::gemma, .dw = gradient::accumulate}},
          {{.casting = casting::none}, false}};
}

template <class T, class W = T>
struct problem {
  variant v;
  guarded_matrix<T> x, dy, y, dx;
  guarded<W> w, dw;
  guarded<accumulator_t<T>> rstd;

  TIGON_TEST_NOINLINE problem(shape s, variant of = {}, guard side = guard::behind)
      : v(of),
        x(random_matrix<T>(s, 1, side, {.mean = 0.3, .deviation = 2})),
        dy(random_matrix<T>(s, 2, side)),
        y(s.rows, s.cols, s.padding, side),
        dx(s.rows, s.cols, s.padding, side),
        w(random_vector<W>(s.cols, 3, side)),
        dw(random_vector<W>(s.cols, 4, side)),
        rstd(s.rows, side) {}
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = default_context()) {
    if (v.weighted)
      tigon::rms_norm_forward<B>(x, w, y.view(), rstd, v.opt, ctx);
    else
      tigon::rms_norm_forward<B>(x, tigon::absent, y.view(), rstd, v.opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = default_context()) {
    if (v.weighted)
      tigon::rms_norm_backward<B>(dy, x, w, rstd, to, dw, v.opt, ctx);
    else
      tigon::rms_norm_backward<B>(dy, x, tigon::absent, rstd, to, tigon::absent, v.opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void both_ways(context& ctx = default_context()) {
    forward<B>(ctx);
    backward<B>(dx.view(), ctx);
  }
};

template <class P>
struct ascend_rms_norm : testing::Test {};
TYPED_TEST_SUITE(ascend_rms_norm, chip_pairs, names);

template <class T, class Q>
void expect_equal(const problem<T, Q>& p, const problem<T, Q>& q, double bound) {
  const comparison with{.may_be_empty = p.x.rows() == 0};
  EXPECT_TRUE(close(p.y.f64(), q.y.f64(), bound, with));
  EXPECT_TRUE(close(p.rstd.f64(), q.rstd.f64(), parity.of<accumulator_t<T>>(), with));
  // Of one column the two terms of dx cancel.
  EXPECT_TRUE(close(p.dx.f64(), q.dx.f64(), bound, {p.x.cols() == 1 ? 1.0 : 0.0, with.may_be_empty}));
  EXPECT_TRUE(close(p.dw.f64(), q.dw.f64(), bound));
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
}

TYPED_TEST(ascend_rms_norm, agrees_with_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const shape s : chip_shapes())
    for (const variant& v : variants()) {
      SCOPED_TRACE(testing::Message() << s << ", variant with eps " << v.opt.eps << (v.weighted ? "" : ", no weight"));
      problem<T> p(s, v, s.rows % 2 == 0 ? guard::behind : guard::before), q(s, v);
      p.template both_ways<B>();
      q.template both_ways<usual_backend>();
      expect_equal(p, q, parity.of<T>() * (v.opt.casting == tigon::casting::llama ? 2 : 1));
    }
  if constexpr (compared_with_generic<T>) {
    problem<T> p({50, 300, 4}), q({50, 300, 4});
    p.template both_ways<B>();
    q.template both_ways<tigon::backends::generic>();
    expect_equal(p, q, 2 * parity.of<T>());
  }
}

TYPED_TEST(ascend_rms_norm, works_in_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{45, 300, 9}, shape{3, 30000}}) {
    problem<T> p(s), q(s), r(s);
    p.template both_ways<B>();
    q.rstd.assign(p.rstd.f64());
    r.rstd.assign(p.rstd.f64());
    tigon::rms_norm_backward<B>(q.dy, q.x, q.w, q.rstd, q.dy.view(), q.dw);
    EXPECT_EQ(q.dy.f64(), p.dx.f64());
    tigon::rms_norm_backward<B>(r.dy, r.x, r.w, r.rstd, r.x.view(), r.dw);
    EXPECT_EQ(r.x.f64(), p.dx.f64());
    EXPECT_EQ(r.dw.f64(), p.dw.f64());
  }
}

TYPED_TEST(ascend_rms_norm, gives_the_same_bits_for_any_threads) {
  for (const shape s : {shape{161, 301}, shape{83, 2100}})
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      problem<typename TypeParam::element> p(s);
      p.template both_ways<typename TypeParam::backend>(ctx);
      return bits_of(p.y, p.dx, p.dw, p.rstd);
    }));
}

TYPED_TEST(ascend_rms_norm, any_nan_in_rstd_stays_one) {
  check_norm_keeps_any_nan<problem<typename TypeParam::element>, typename TypeParam::backend>();
}

TEST(ascend_rms_norm_types, may_differ) {
  problem<tigon::bfloat16, float> p({50, 3000}), q({50, 3000});
  p.both_ways<usual_chip>();
  q.both_ways<usual_backend>();
  EXPECT_TRUE(close(p.y.f64(), q.y.f64(), 2 * parity.bf16));
  EXPECT_TRUE(close(p.dw.f64(), q.dw.f64(), 2 * parity.bf16));
}

// One block of columns: x comes in once and the weight once a program. Several: x twice, the weight for every row.
TEST(ascend_rms_norm_copies, depend_on_whether_a_row_fits) {
  constexpr std::size_t rows = 100, programs = 40;
  for (const std::size_t cols : {4096u, 4097u}) {
    problem<float> p({rows, cols});
    const audited ledger;
    tigon::rms_norm_forward<usual_chip>(p.x, p.w, p.y.view(), p.rstd);
    EXPECT_EQ(counting_ledger::total.programs, programs);
    const std::size_t in = cols == 4096 ? rows * cols + programs * cols : 3 * rows * cols;
    EXPECT_EQ(counting_ledger::total.copied_in, in * sizeof(float));
    EXPECT_EQ(counting_ledger::total.copied_out, (rows * cols + rows) * sizeof(float));
  }
}

// Short rows share a block: 2048 / 128 of them.
TEST(ascend_rms_norm_blocks, hold_several_short_rows) {
  problem<float> p({64, 100});
  const audited ledger;
  tigon::rms_norm_forward<usual_chip>(p.x, p.w, p.y.view(), p.rstd);
  EXPECT_EQ(counting_ledger::total.programs, 64u / 16);
}

}  // namespace
