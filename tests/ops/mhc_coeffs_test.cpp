// The contract of include/tigon/ops/mhc_coeffs.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/mhc_coeffs.hpp>

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
TYPED_TEST_SUITE(mhc_coeffs, every_product_pair, names);

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

}  // namespace
