// The contract of include/tigon/ops/mhc_coeffs.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "support/mhc_problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

template <class T, class P = T>
using problem = mhc_problem<T, P>;

template <class On>
class mhc_coeffs : public testing::Test {};
TYPED_TEST_SUITE(mhc_coeffs, mhc_pairs, names);

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
struct keeping : usual_backend {
  static constexpr tigon::hyper_connection_tuning hyper_connections{.keep_history = true};
};

TEST(mhc_coeffs_history, kept_or_made_again_has_the_same_bits) {
  constexpr std::size_t n = lanes<usual_backend, float>;
  const mhc_shape s{2 * n + 3, 3, 5};
  problem<float> again(s);
  const std::size_t tmax = again.opt.tmax, kept = tigon::mhc_coeffs_history<keeping, float>(s.tokens, s.n, tmax);
  EXPECT_EQ(kept, (s.tokens + n - 1) / n * n * tmax * s.n * s.n);
  EXPECT_EQ((tigon::mhc_coeffs_history<usual_backend, float>(s.tokens, s.n, tmax)), 0u);
  problem<float> keeps(s, kept);
  again.both_ways<usual_backend>();
  keeps.both_ways<keeping>();
  EXPECT_FALSE(keeps.history.untouched());
  EXPECT_EQ(keeps.bits(), again.bits());
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    problem<float> p(s, kept);
    p.both_ways<keeping>(ctx);
    return p.bits();
  }));
  // Backward reads what forward kept: other steps are other gradients.
  for (std::size_t k = 0; k < kept; ++k) keeps.history[k] *= 2;
  keeps.dx.clear();
  keeps.backward<keeping>(keeps.incoming());
  EXPECT_NE(bits_of(keeps.dx), bits_of(again.dx));
  // What is kept needs no room in the workspace of backward.
  EXPECT_LT((tigon::mhc_coeffs_backward_workspace<keeping, float>(s.tokens, 5, 3, 1000)),
            (tigon::mhc_coeffs_backward_workspace<usual_backend, float>(s.tokens, 5, 3, 1000)));
  problem<float> without(s), with(s, kept);
  EXPECT_TIGON_ERROR(without.forward<keeping>(), shape, "mhc_coeffs_forward: history is of 0 elements", without.h_res);
  EXPECT_TIGON_ERROR(with.forward<usual_backend>(), shape, "mhc_coeffs_forward: history is of", with.h_res,
                     with.history);
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
    const auto zeros = [](std::size_t size) { return std::vector<double>(size); };
    p.check_backward(p.wanted((given & 1) != 0 ? p.dh_pre.f64() : zeros(10),
                              (given & 2) != 0 ? p.dh_post.f64() : zeros(10),
                              (given & 4) != 0 ? p.dh_res.f64() : zeros(20)));
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
    problem<T> p(s);
    p.opt.dx = p.opt.dparams = tigon::gradient::accumulate;
    p.dx.assign(normal_values(tokens * s.cols(), 10)), p.dphi.assign(normal_values(s.cols() * s.mixes(), 11));
    p.db.assign(normal_values(s.mixes(), 12)), p.dalpha.assign(normal_values(3, 13));
    mhc_reference want = p.wanted();
    const auto add = [](std::vector<double>& a, const std::vector<double>& b) {
      for (std::size_t k = 0; k < a.size(); ++k) a[k] += b[k];
    };
    add(want.dx, p.dx.f64()), add(want.dphi, p.dphi.f64()), add(want.db, p.db.f64()), add(want.dalpha, p.dalpha.f64());
    p.template both_ways<B>();
    p.check_backward(want);
  }
}

TYPED_TEST(mhc_coeffs, bad_tokens_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const double bad : {nan, infinity}) {
    problem<T> clean({20, 3, 7}), p({20, 3, 7});
    p.x(6, 4) = from_f64<T>(bad);
    for (problem<T>* each : {&clean, &p}) each->template both_ways<B>();
    for (std::size_t t = 0; t < 20; ++t) {
      const auto each = [&](auto f) {
        return f(p.h_pre, clean.h_pre) && f(p.h_post, clean.h_post) && f(p.h_res, clean.h_res) && f(p.dx, clean.dx);
      };
      const auto same = [=](const auto& a, const auto& b) {
        for (std::size_t j = 0; j < a.cols(); ++j)
          if (to_f64(a(t, j)) != to_f64(b(t, j))) return false;
        return true;
      };
      const auto is_nan = [=](const auto& a, const auto&) {
        for (std::size_t j = 0; j < a.cols(); ++j)
          if (!std::isnan(to_f64(a(t, j)))) return false;
        return true;
      };
      EXPECT_TRUE(t == 6 ? each(is_nan) : each(same)) << t << ' ' << bad;
    }
    for (const double v : p.dphi.f64()) ASSERT_TRUE(std::isnan(v));
    for (const double v : p.db.f64()) ASSERT_TRUE(std::isnan(v));
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
  problem<T> square({1, 8, 1});
  EXPECT_TRUE(touches_what_it_takes([&](context& ctx) { square.template forward<B>(ctx); }));
}

TEST(mhc_coeffs_types, phi_and_its_gradient_and_the_parameters_may_have_other_types) {
  using B = usual_backend;
  // Of the last, dx is made of 256 tokens and of the others.
  for (const mhc_shape s : {mhc_shape{9, 2, 17, 1}, {3, 4, 40}, {300, 1, 8192}}) {
    problem<bfloat16, float> p(s);
    p.both_ways<B>();
    const mhc_reference want = p.wanted();
    p.check_forward(want);
    p.check_backward(want);
  }
  // b and alpha of 16 bits, dphi wider than phi.
  problem<bfloat16> p({9, 2, 17, 1});
  const auto b = random_vector<bfloat16>(8, 3, guard::behind, {.deviation = 0.5});
  const guarded<bfloat16> alpha({1.25, -0.75, 1.5});
  guarded<bfloat16> db(8), dalpha(3);
  guarded_matrix<float> dphi(34, 8);
  const tigon::mhc_weights weights{p.phi.view(), b, alpha};
  tigon::mhc_coeffs_forward<B>(p.x.view(), weights, {p.h_pre.view(), p.h_post.view(), p.h_res.view()}, p.saved(),
                               p.opt);
  tigon::mhc_coeffs_backward<B>(p.incoming(), p.x.view(), weights, p.saved(),
                                tigon::mhc_coeffs_gradients{p.dx.view(), dphi.view(), db, dalpha}, p.opt);
  p.b.assign(b.f64());
  const mhc_reference want = p.wanted();
  p.check_forward(want);
  EXPECT_TRUE(close(p.dx.f64(), want.dx, mhc_bound.bf16));
  EXPECT_TRUE(close(dphi.f64(), want.dphi, mhc_bound.f32, {.scale = want.terms}));
  EXPECT_TRUE(close(db.f64(), want.db, mhc_bound.bf16, {.scale = want.terms}));
  EXPECT_TRUE(close(dalpha.f64(), want.dalpha, mhc_bound.bf16, {.scale = want.terms}));
}

// Logits 0, ln 3; ln 2, 0 by b alone, and the matrices after so many steps, from a table.
TEST(mhc_coeffs_values, of_sinkhorns_iteration) {
  struct row {
    std::size_t tmax;
    std::vector<double> h_res;
  };
  const row table[] = {{1, {.2727275, .6923067, .7272714, .3076924}},
                       {2, {.2868218, .7070052, .7131771, .2929938}},
                       {8, {.2898980, .7101008, .7101010, .2898982}},
                       {20, {.2898981, .7101009, .7101009, .2898981}}};
  for (const row& r : table) {
    problem<double> p({3, 2, 4});
    p.b.assign({0, 0, 0, 0, 0, std::log(3.0), std::log(2.0), 0});
    p.alpha.assign({0, 0, 0});
    p.opt = {.tmax = r.tmax};
    p.forward<usual_backend>();
    const auto got = p.h_res.f64();
    for (std::size_t k = 0; k < got.size(); ++k) EXPECT_NEAR(got[k], r.h_res[k % 4], 6e-8) << r.tmax << ' ' << k;
    for (const double h : p.h_pre.f64()) EXPECT_EQ(h, 0.5);
    for (const double h : p.h_post.f64()) EXPECT_EQ(h, 1);
  }
}

// One token of two streams of two channels, from a table: seven digits.
TEST(mhc_coeffs_values, of_one_token) {
  problem<double> p({1, 2, 2});
  p.x.assign({1, 2, -1, 0.5});
  std::vector<double> phi(32), b(8);
  for (std::size_t k = 0; k < 32; ++k) phi[k] = (static_cast<double>(k) - 15.5) / 16;
  for (std::size_t k = 0; k < 8; ++k) b[k] = -0.3 + 0.1 * static_cast<double>(k);
  p.phi.assign(phi), p.b.assign(b), p.alpha.assign({1, 0.5, 2});
  p.dh_pre.assign({1, 1}), p.dh_post.assign({1, 1}), p.dh_res.assign({1, 0, 0, 0});
  p.opt = {.pre_eps = 1e-4, .tmax = 4};
  p.both_ways<usual_backend>();
  const auto is = [](const std::vector<double>& got, const std::vector<double>& want) {
    for (std::size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k], 6e-8) << k;
  };
  is(p.rstd.f64(), {.7999997});
  is(p.mix.f64(), {-1.3374996, -1.2124996, -1.0874997, -.9624997, -.8374997, -.7124998, -.5874998, -.4624999});
  is(p.h_pre.f64(), {.1629056, .1959401});
  is(p.h_post.f64(), {.6887988, .7639141});
  is(p.h_res.f64(), {.4999995, .4999995, .4999995, .4999995});
  is(p.dx.f64(), {-.3843967, .0532214, -.0506078, .4546913});
  is(p.db.f64(), {.1362999, .1574868, .4515769, .4721317, .1249996, -.1249996, -.1249996, .1249996});
  is(p.dalpha.f64(), {-.3732537, -.9455163, 0});
  is(p.dphi.f64(), {.1090399, .1259894, .1806307, .1888526, .1999993, -.1999993, -.1999993, .1999993});
}

TEST(mhc_coeffs_range, rows_whose_squares_overflow) {
  problem<float> p({5, 2, 9});
  for (std::size_t j = 0; j < 18; ++j) p.x(2, j) *= 0x1p90F, p.x(3, j) *= 0x1p-90F;
  p.opt.rms_eps = 0;
  p.forward<usual_backend>();
  const mhc_reference want = p.wanted();
  EXPECT_TRUE(close(p.mix.f64(), want.mix, mhc_mix_bound.f32));
  EXPECT_TRUE(close(p.h_res.f64(), want.h_res, mhc_bound.f32));
  const auto rstd = p.rstd.f64();
  for (std::size_t t = 0; t < 5; ++t) EXPECT_NEAR(rstd[t] / want.rstd[t], 1, mhc_mix_bound.f32) << t;
}

TEST(mhc_coeffs_doors, refuse_before_the_first_write) {
  using B = usual_backend;
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
  for (const double bad : {-1.0, infinity, nan}) {
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
  for (const std::size_t cols : {0, 7}) {  // n (n + 2) of no n
    auto saved = p.saved();
    saved.mix.cols = cols;
    const tigon::mhc_coeffs_gradients to{p.dx.view(), p.dphi.view(), p.db, p.dalpha};
    EXPECT_TRUE(refuses([&] { tigon::mhc_coeffs_backward<B>(dh, p.x.view(), p.weights(), saved, to, p.opt); },
                        error_code::shape, "mhc_coeffs_backward: streams is 0; expected at least 1", p.dx, p.dphi, p.db,
                        p.dalpha));
  }
  dh.h_res.cols = 3;
  backward(dh, p.dx.view(), p.dphi.view(), error_code::shape, "mhc_coeffs_backward: dh_res is 3 x 3");
}

}  // namespace
