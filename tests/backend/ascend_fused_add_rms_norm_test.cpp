// fused_add_rms_norm on ascend: what the parents give, through tiles.
#include <tigon/ops/fused_add_rms_norm.hpp>

#include "ascend_chips.hpp"
#include "support/row_norm.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::default_context, tigon::matrix_view;

struct variant {
  tigon::fused_add_rms_norm_options opt;
  bool weighted = true, later_use = true, copy = false;
};
std::vector<variant> variants() {
  using tigon::casting, tigon::gradient;
  return {{{}},
          {{.eps = 1e-3, .offset = 1, .casting = casting::gemma, .dw = gradient::accumulate}, true, false, true},
          {{.casting = casting::none}, false}};
}

template <class T>
struct problem {
  variant v;
  guarded_matrix<T> x, r, dy, ds, s, y, dx, dr;
  guarded<T> w, dw;
  guarded<accumulator_t<T>> rstd;

  TIGON_TEST_NOINLINE problem(shape of, variant with = {}, guard side = guard::behind)
      : v(with),
        x(random_matrix<T>(of, 1, side, {.mean = 0.3, .deviation = 2})),
        r(random_matrix<T>(of, 5, side)),
        dy(random_matrix<T>(of, 2, side)),
        ds(random_matrix<T>(of, 6, side)),
        s(of.rows, of.cols, of.padding, side),
        y(of.rows, of.cols, of.padding, side),
        dx(of.rows, of.cols, of.padding, side),
        dr(of.rows, of.cols, of.padding, side),
        w(random_vector<T>(of.cols, 3, side)),
        dw(random_vector<T>(of.cols, 4, side)),
        rstd(of.rows, side) {}
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = default_context()) {
    if (v.weighted)
      tigon::fused_add_rms_norm_forward<B>(x, r, w, y.view(), s.view(), rstd, v.opt, ctx);
    else
      tigon::fused_add_rms_norm_forward<B>(x, r, tigon::absent, y.view(), s.view(), rstd, v.opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(matrix_view<T> to, context& ctx = default_context()) {
    const auto later = v.later_use ? ds.view() : matrix_view<T>{}, to_r = v.copy ? dr.view() : matrix_view<T>{};
    if (v.weighted)
      tigon::fused_add_rms_norm_backward<B>(dy, later, s, w, rstd, tigon::fused_add_rms_norm_gradients{to, dw, to_r},
                                            v.opt, ctx);
    else
      tigon::fused_add_rms_norm_backward<B>(dy, later, s, tigon::absent, rstd,
                                            tigon::fused_add_rms_norm_gradients{to, tigon::absent, to_r}, v.opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void both_ways(context& ctx = default_context()) {
    forward<B>(ctx);
    backward<B>(dx.view(), ctx);
  }
};

template <class P>
struct ascend_fused_add_rms_norm : testing::Test {};
TYPED_TEST_SUITE(ascend_fused_add_rms_norm, chip_pairs, names);

template <class T>
void expect_equal(const problem<T>& p, const problem<T>& q, double bound) {
  const comparison with{.may_be_empty = p.x.rows() == 0};
  EXPECT_EQ(p.s.f64(), q.s.f64());
  EXPECT_TRUE(close(p.y.f64(), q.y.f64(), bound, with));
  EXPECT_TRUE(close(p.rstd.f64(), q.rstd.f64(), parity.of<accumulator_t<T>>(), with));
  // Of one column the two terms of dx cancel.
  EXPECT_TRUE(close(p.dx.f64(), q.dx.f64(), bound, {p.x.cols() == 1 ? 1.0 : 0.0, with.may_be_empty}));
  EXPECT_TRUE(close(p.dw.f64(), q.dw.f64(), bound));
  if (p.v.copy)
    EXPECT_EQ(p.dr.f64(), p.dx.f64());
  else
    EXPECT_TRUE(p.dr.untouched());
  EXPECT_TRUE(p.y.padding_intact() && p.s.padding_intact() && p.dx.padding_intact() && p.dr.padding_intact());
}

TYPED_TEST(ascend_fused_add_rms_norm, agrees_with_its_parents) {
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

TYPED_TEST(ascend_fused_add_rms_norm, works_in_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{45, 300, 9}, shape{3, 30000}}) {
    problem<T> p(s), q(s), r(s);
    p.template both_ways<B>();
    // s over r and y over x; then the other way round.
    tigon::fused_add_rms_norm_forward<B>(q.x, q.r, q.w, q.x.view(), q.r.view(), q.rstd);
    EXPECT_EQ(q.r.f64(), p.s.f64());
    EXPECT_EQ(q.x.f64(), p.y.f64());
    tigon::fused_add_rms_norm_forward<B>(r.x, r.r, r.w, r.r.view(), r.x.view(), r.rstd);
    EXPECT_EQ(r.x.f64(), p.s.f64());
    EXPECT_EQ(r.r.f64(), p.y.f64());
    tigon::fused_add_rms_norm_backward<B>(q.dy, q.ds, p.s, q.w, p.rstd,
                                          tigon::fused_add_rms_norm_gradients{q.dy.view(), q.dw});
    EXPECT_EQ(q.dy.f64(), p.dx.f64());
    tigon::fused_add_rms_norm_backward<B>(r.dy, r.ds, p.s, r.w, p.rstd,
                                          tigon::fused_add_rms_norm_gradients{r.ds.view(), r.dw});
    EXPECT_EQ(r.ds.f64(), p.dx.f64());
    EXPECT_EQ(r.dw.f64(), p.dw.f64());
  }
}

TYPED_TEST(ascend_fused_add_rms_norm, gives_the_same_bits_for_any_threads) {
  for (const shape s : {shape{161, 301}, shape{83, 2100}})
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      problem<typename TypeParam::element> p(s);
      p.template both_ways<typename TypeParam::backend>(ctx);
      return bits_of(p.y, p.s, p.dx, p.dw, p.rstd);
    }));
}

TYPED_TEST(ascend_fused_add_rms_norm, any_nan_in_rstd_stays_one) {
  check_norm_keeps_any_nan<problem<typename TypeParam::element>, typename TypeParam::backend>();
}

}  // namespace
