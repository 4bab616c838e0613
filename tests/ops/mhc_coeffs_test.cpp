// The contract of include/tigon/ops/mhc_coeffs.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/mhc_coeffs.hpp>

#include <string>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/mhc_reference.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type bound{.f32 = 5e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 2e-14};

/// Every buffer at a guard page, outputs full of canaries. phi is of P, b and alpha of A.
template <class T, class P = T>
struct problem {
  using A = accumulator_t<T>;
  mhc_shape s;
  tigon::mhc_coeffs_options opt{.rms_eps = 1e-5, .pre_eps = 1e-3, .sinkhorn_eps = 1e-4, .post_mult = 1.5, .tmax = 6};
  guarded_matrix<T> x, dx;
  guarded_matrix<P> phi, dphi;
  guarded<A> b, alpha, db, dalpha;
  guarded_matrix<A> h_pre, h_post, h_res, dh_pre, dh_post, dh_res, mix;
  guarded<A> rstd, history;

  TIGON_TEST_NOINLINE explicit problem(mhc_shape of, std::size_t history_size = 0, guard side = guard::behind)
      : s(of),
        x(random_matrix<T>({s.tokens, s.cols(), s.padding}, 1, side)),
        dx(s.tokens, s.cols(), s.padding, side),
        phi(random_matrix<P>({s.cols(), s.mixes(), s.padding}, 2, side,
                             {.deviation = 1 / std::sqrt(static_cast<double>(s.cols()))})),
        dphi(s.cols(), s.mixes(), s.padding, side),
        b(random_vector<A>(s.mixes(), 3, side, {.deviation = 0.5})),
        alpha({1.25, -0.75, 1.5}, side),
        db(s.mixes(), side),
        dalpha(3, side),
        h_pre(s.tokens, s.n, s.padding, side),
        h_post(s.tokens, s.n, s.padding, side),
        h_res(s.tokens, s.n * s.n, s.padding, side),
        dh_pre(random_matrix<A>({s.tokens, s.n, s.padding}, 4, side)),
        dh_post(random_matrix<A>({s.tokens, s.n, s.padding}, 5, side)),
        dh_res(random_matrix<A>({s.tokens, s.n * s.n, s.padding}, 6, side)),
        mix(s.tokens, s.mixes(), s.padding, side),
        rstd(s.tokens, side),
        history(history_size, side) {}

  auto weights() const { return tigon::mhc_weights{phi.view(), b, alpha}; }
  auto saved() { return tigon::mhc_coeffs_saved<A>{mix.view(), rstd, history}; }
  auto incoming() const { return tigon::mhc_coefficients<const A>{dh_pre.view(), dh_post.view(), dh_res.view()}; }
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::mhc_coeffs_forward<B>(x.view(), weights(), {h_pre.view(), h_post.view(), h_res.view()}, saved(), opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::mhc_coefficients<const A> dh, context& ctx = tigon::default_context()) {
    tigon::mhc_coeffs_backward<B>(dh, x.view(), weights(), saved(),
                                  tigon::mhc_coeffs_gradients{dx.view(), dphi.view(), db, dalpha}, opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(incoming(), ctx);
  }

  TIGON_TEST_NOINLINE mhc_reference wanted(bool pre = true, bool post = true, bool res = true) const {
    const auto given = [](bool is, const guarded_matrix<A>& m) {
      return is ? m.f64() : std::vector<double>(m.rows() * m.cols());
    };
    return {s,
            mhc_numbers{opt.rms_eps, opt.pre_eps, opt.sinkhorn_eps, opt.post_mult, opt.tmax},
            x.f64(),
            phi.f64(),
            b.f64(),
            alpha.f64(),
            given(pre, dh_pre),
            given(post, dh_post),
            given(res, dh_res)};
  }
  TIGON_TEST_NOINLINE void check_forward(const mhc_reference& want) const {
    const comparison with{.may_be_empty = s.tokens == 0};
    EXPECT_TRUE(close(h_pre.f64(), want.h_pre, bound.of<A>(), with));
    EXPECT_TRUE(close(h_post.f64(), want.h_post, bound.of<A>(), with));
    EXPECT_TRUE(close(h_res.f64(), want.h_res, bound.of<A>(), with));
    EXPECT_TRUE(close(mix.f64(), want.mix, bound.of<A>(), with));
    EXPECT_TRUE(close(rstd.f64(), want.rstd, bound.of<A>(), with));
    EXPECT_TRUE(h_pre.padding_intact() && h_post.padding_intact() && h_res.padding_intact() && mix.padding_intact());
  }
  TIGON_TEST_NOINLINE void check_backward(const mhc_reference& want) const {
    const comparison with{.may_be_empty = s.tokens == 0};
    EXPECT_TRUE(close(dx.f64(), want.dx, bound.of<T>(), with));
    const comparison of_terms{.scale = want.terms};
    EXPECT_TRUE(close(dphi.f64(), want.dphi, bound.of<P>(), of_terms));
    EXPECT_TRUE(close(db.f64(), want.db, bound.of<A>(), of_terms));
    EXPECT_TRUE(close(dalpha.f64(), want.dalpha, bound.of<A>(), of_terms));
    EXPECT_TRUE(dx.padding_intact() && dphi.padding_intact());
  }
  auto bits() const { return bits_of(h_pre, h_post, h_res, mix, rstd, dx, dphi, db, dalpha); }
};

template <class On>
class mhc_coeffs : public testing::Test {};
/// An operator of rows and of products, both tested on every engine by themselves; golden values are compared on every
/// backend.
using pairs = testing::Types<on<tigon::backends::generic, double>, on<tigon::backends::highway, float>,
                             on<tigon::backends::highway, bfloat16>>;
TYPED_TEST_SUITE(mhc_coeffs, pairs, names);

TYPED_TEST(mhc_coeffs, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = lanes<B, T>;
  for (const mhc_shape s : {mhc_shape{0, 2, 3},
                            {1, 1, 1},
                            {n + 1, 1, 5, 3},
                            {n, 2, n + 3},
                            {2 * n + 1, 3, 7, 1},
                            {3, 4, 65},
                            {n - 1, 5, 2},
                            {70, 4, 33, 2}})
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      problem<T> p(s, 0, side);
      p.template both_ways<B>();
      const mhc_reference want = p.wanted();
      p.check_forward(want);
      p.check_backward(want);
    }
}

/// The same backend, which keeps the steps of Sinkhorn's iteration.
template <class B>
struct keeping : B {
  static constexpr tigon::hyper_connection_tuning hyper_connections{.keep_history = true};
};

TYPED_TEST(mhc_coeffs, history_kept_or_made_again_has_the_same_bits) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const mhc_shape s{2 * lanes<B, T> + 3, 3, 5};
  problem<T> again(s);
  const std::size_t tmax = again.opt.tmax, blocks = (s.tokens + lanes<B, T> - 1) / lanes<B, T>;
  const std::size_t kept = tigon::mhc_coeffs_history<keeping<B>, T>(s.tokens, s.n, tmax);
  EXPECT_EQ(kept, (blocks * lanes<B, T> * tmax * s.n * s.n));
  EXPECT_EQ((tigon::mhc_coeffs_history<B, T>(s.tokens, s.n, tmax)), 0u);
  problem<T> keeps(s, kept);
  again.template both_ways<B>();
  keeps.template both_ways<keeping<B>>();
  EXPECT_FALSE(keeps.history.untouched());
  EXPECT_EQ(keeps.bits(), again.bits());
  // Backward reads what forward kept: other steps are other gradients.
  for (std::size_t k = 0; k < kept; ++k) keeps.history[k] *= 2;
  keeps.dx.clear();
  keeps.template backward<keeping<B>>(keeps.incoming());
  EXPECT_NE(bits_of(keeps.dx), bits_of(again.dx));
}

TYPED_TEST(mhc_coeffs, gradients_of_coefficients_may_be_absent) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (int given = 0; given < 8; ++given) {
    SCOPED_TRACE(given);
    problem<T> p({5, 2, 9});
    p.template forward<B>();
    tigon::mhc_coefficients<const A> dh = p.incoming();
    if ((given & 1) == 0) dh.h_pre = {};
    if ((given & 2) == 0) dh.h_post = {};
    if ((given & 4) == 0) dh.h_res = {};
    p.template backward<B>(dh);
    p.check_backward(p.wanted((given & 1) != 0, (given & 2) != 0, (given & 4) != 0));
    if (given == 0) {
      for (const double v : p.dphi.f64()) ASSERT_EQ(v, 0);
      for (const double v : p.dx.f64()) ASSERT_EQ(v, 0);
    }
  }
}

TYPED_TEST(mhc_coeffs, each_result_of_backward_may_be_absent) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> all({5, 2, 9}), some({5, 2, 9});
  all.template both_ways<B>();
  some.template forward<B>();
  const auto run = [&](tigon::matrix_view<T> dx, tigon::matrix_view<T> dphi, auto&& db, auto&& dalpha) {
    some.dx.clear(), some.dphi.clear(), some.db.clear(), some.dalpha.clear();
    tigon::mhc_coeffs_backward<B>(some.incoming(), some.x.view(), some.weights(), some.saved(),
                                  tigon::mhc_coeffs_gradients{dx, dphi, db, dalpha}, some.opt);
  };
  run(some.dx.view(), {}, tigon::absent, tigon::absent);
  EXPECT_EQ(bits_of(some.dx), bits_of(all.dx));
  EXPECT_TRUE(some.dphi.untouched() && some.db.untouched() && some.dalpha.untouched());
  run({}, some.dphi.view(), tigon::absent, some.dalpha);
  EXPECT_EQ(bits_of(some.dphi, some.dalpha), bits_of(all.dphi, all.dalpha));
  EXPECT_TRUE(some.dx.untouched() && some.db.untouched());
  run({}, {}, some.db, tigon::absent);
  EXPECT_EQ(bits_of(some.db), bits_of(all.db));
  EXPECT_TRUE(some.dx.untouched() && some.dphi.untouched() && some.dalpha.untouched());
}

TYPED_TEST(mhc_coeffs, gradients_are_overwritten_or_added_to) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t tokens : {0u, 4u}) {
    const mhc_shape s{tokens, 2, 9, 2};
    problem<T> once(s), added(s);
    once.template both_ways<B>();
    added.opt.dx = added.opt.dparams = tigon::gradient::accumulate;
    added.dx.assign(normal_values(tokens * s.cols(), 10)), added.dphi.assign(normal_values(s.cols() * s.mixes(), 11));
    added.db.assign(normal_values(s.mixes(), 12)), added.dalpha.assign(normal_values(3, 13));
    const auto sum = [](std::vector<double> a, const std::vector<double>& b) {
      for (std::size_t k = 0; k < a.size(); ++k) a[k] += b[k];
      return a;
    };
    const auto dx = sum(added.dx.f64(), once.dx.f64()), dphi = sum(added.dphi.f64(), once.dphi.f64()),
               db = sum(added.db.f64(), once.db.f64()), dalpha = sum(added.dalpha.f64(), once.dalpha.f64());
    added.template both_ways<B>();
    const comparison with{.scale = 1, .may_be_empty = tokens == 0};
    EXPECT_TRUE(close(added.dx.f64(), dx, bound.of<T>(), with));
    EXPECT_TRUE(close(added.dphi.f64(), dphi, bound.of<T>(), with));
    EXPECT_TRUE(close(added.db.f64(), db, bound.of<accumulator_t<T>>(), with));
    EXPECT_TRUE(close(added.dalpha.f64(), dalpha, bound.of<accumulator_t<T>>(), with));
    for (const double v : once.dphi.f64()) ASSERT_TRUE(tokens != 0 || v == 0);
    for (const double v : once.db.f64()) ASSERT_TRUE(tokens != 0 || v == 0);
  }
}

TYPED_TEST(mhc_coeffs, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  EXPECT_TRUE(same_bits_for_any_threads([](context& ctx) {
    problem<T> p({150, 2, 9});
    p.template both_ways<B>(ctx);
    return p.bits();
  }));
}

TYPED_TEST(mhc_coeffs, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const mhc_shape s{19, 3, 7};
  for (const std::size_t threads : {1u, 3u}) {
    problem<T> p(s);
    std::size_t forward = 0, backward = 0;
    with_workspace_of(
        64,
        [&](context& ctx) {
          forward = tigon::mhc_coeffs_workspace<B, T>(s.tokens, s.channels, s.n, ctx);
          backward = tigon::mhc_coeffs_backward_workspace<B, T>(s.tokens, s.channels, s.n, p.opt.tmax, {}, ctx);
        },
        threads);
    const auto run_forward = [&](context& ctx) { p.template forward<B>(ctx); };
    const auto run_backward = [&](context& ctx) { p.template backward<B>(p.incoming(), ctx); };
    EXPECT_TIGON_ERROR(with_workspace_of(forward - 1, run_forward, threads), workspace,
                       "mhc_coeffs_forward: workspace is of", p.h_pre, p.mix);
    with_workspace_of(forward, run_forward, threads);
    EXPECT_TIGON_ERROR(with_workspace_of(backward - 1, run_backward, threads), workspace,
                       "mhc_coeffs_backward: workspace is of", p.dx, p.dphi);
    with_workspace_of(backward, run_backward, threads);
    p.check_backward(p.wanted());
  }
}

TEST(mhc_coeffs_types, phi_and_its_gradient_may_have_other_types) {
  using B = tigon::backends::highway;
  problem<bfloat16, float> p({9, 2, 17, 1});
  p.both_ways<B>();
  const mhc_reference want = p.wanted();
  p.check_forward(want);
  p.check_backward(want);
}

TEST(mhc_coeffs_doors, refuse_before_the_first_write) {
  using B = tigon::backends::highway;
  problem<float> p({3, 2, 4});
  const auto forward = [&](auto change, tigon::error_code code, std::string_view says) {
    problem<float> q({3, 2, 4});
    auto x = q.x.view();
    auto w = q.weights();
    tigon::mhc_coefficients<float> h{q.h_pre.view(), q.h_post.view(), q.h_res.view()};
    auto saved = q.saved();
    change(x, w, h, saved, q.opt);
    EXPECT_TRUE(refuses([&] { tigon::mhc_coeffs_forward<B>(x, w, h, saved, q.opt); }, code, says, q.h_pre, q.h_post,
                        q.h_res, q.mix, q.rstd));
  };
  using tigon::error_code;
  const std::string op = "mhc_coeffs_forward: ";
  forward([](auto& x, auto&...) { x.cols = 7; }, error_code::shape, op + "x is of columns that n does not divide");
  forward([](auto& x, auto&...) { x.row_stride = 7; }, error_code::stride, op + "x is of row stride 7");
  forward([](auto&, auto& w, auto&...) { w.phi.cols = 7; }, error_code::shape, op + "phi is 8 x 7; expected 8 x 8");
  forward([](auto&, auto&, auto& h, auto&...) { h.h_pre.cols = 0; }, error_code::shape, op + "streams is 0");
  forward([](auto&, auto&, auto& h, auto&...) { h.h_post.cols = 1; }, error_code::shape, op + "h_post is 3 x 1");
  forward([](auto&, auto&, auto& h, auto&...) { h.h_res.cols = 3; }, error_code::shape, op + "h_res is 3 x 3");
  forward([](auto&, auto&, auto& h, auto&...) { h.h_post = h.h_pre; }, error_code::alias, op + "h_post overlaps h_pre");
  forward([](auto&, auto&, auto&, auto& s, auto&) { s.mix.rows = 2; }, error_code::shape, op + "mix is 2 x 8");
  forward([](auto&, auto&, auto&, auto& s, auto&) { s.rstd = s.rstd.first(2); }, error_code::shape,
          op + "rstd is of 2");
  forward([](auto&, auto&, auto&, auto&, auto& o) { o.tmax = 0; }, error_code::shape, op + "tmax is 0");
  for (const double bad : {-1.0, nan}) {
    forward([=](auto&, auto&, auto&, auto&, auto& o) { o.rms_eps = bad; }, error_code::argument, op + "rms_eps is");
    forward([=](auto&, auto&, auto&, auto&, auto& o) { o.sinkhorn_eps = bad; }, error_code::argument,
            op + "sinkhorn_eps is");
  }
  for (const double bad : {infinity, nan}) {
    forward([=](auto&, auto&, auto&, auto&, auto& o) { o.pre_eps = bad; }, error_code::argument, op + "pre_eps is");
    forward([=](auto&, auto&, auto&, auto&, auto& o) { o.post_mult = bad; }, error_code::argument, op + "post_mult is");
  }
  p.forward<B>();
  const auto backward = [&](auto dh, auto dx, auto dphi, error_code code, std::string_view says) {
    EXPECT_TRUE(refuses(
        [&] {
          tigon::mhc_coeffs_backward<B>(dh, p.x.view(), p.weights(), p.saved(),
                                        tigon::mhc_coeffs_gradients{dx, dphi, p.db, p.dalpha}, p.opt);
        },
        code, says, p.dx, p.dphi, p.db, p.dalpha));
  };
  auto dh = p.incoming();
  backward(dh, p.x.view(), p.dphi.view(), error_code::alias, "mhc_coeffs_backward: dx overlaps x");
  backward(dh, p.dx.view().rows_from(0, 2), p.dphi.view(), error_code::shape, "mhc_coeffs_backward: dx is 2 x 8");
  backward(dh, p.dx.view(), p.dphi.view().rows_from(0, 2), error_code::shape, "mhc_coeffs_backward: dphi is 2 x 8");
  dh.h_res.cols = 3;
  backward(dh, p.dx.view(), p.dphi.view(), error_code::shape, "mhc_coeffs_backward: dh_res is 3 x 3");
}

}  // namespace
