// Hyper-connections whose coefficients are to be made: streams, weights, and memory for all results at guard pages.
#ifndef TIGON_TESTS_SUPPORT_MHC_PROBLEM_HPP
#define TIGON_TESTS_SUPPORT_MHC_PROBLEM_HPP

#include <tigon/ops/mhc_coeffs.hpp>

#include "backends.hpp"
#include "errors.hpp"
#include "guarded.hpp"
#include "mhc_reference.hpp"
#include "problem.hpp"

namespace tigon::test {

/// Operators of rows and of products, both tested on every engine by themselves; golden values are compared on all.
#if defined(TIGON_CONFORMANCE_BACKEND) || defined(TIGON_TESTS_ALL_PAIRS)
using mhc_pairs = every_product_pair;
#else
using mhc_pairs = with_engines<list<on<single_numbers, double>, on<usual_backend, float> >, on<usual_backend, bfloat16>,
                               on<backends::eigen, float16> >;
#endif

// In units of |reference| + its root mean square, or + the largest term of a sum. Where alpha mix + b is about 1, its
// error is that of a sum of k terms of size 1 / sqrt(k), rounded in no particular order: about eps sqrt(k / 12), 5 eps
// for the longest rows here. Each step of the iteration adds the error of a short sum and a division, and takes back
// most of what the steps before have added, for rows and columns are divided by sums that carry the same error. Half a
// unit of 16 bits for dx and dphi.
constexpr by_type mhc_mix_bound{.f32 = 2e-6, .bf16 = 0, .f16 = 0, .f64 = 4e-15};
constexpr by_type mhc_bound{.f32 = 3e-6, .bf16 = 0x1p-8 + 3e-6, .f16 = 0x1p-11 + 3e-6, .f64 = 6e-15};

/// Every buffer at a guard page, outputs full of canaries. phi is of P, b and alpha of A.
template <class T, class P = T>
struct mhc_problem {
  using A = accumulator_t<T>;
  mhc_shape s;
  mhc_coeffs_options opt{.rms_eps = 1e-5, .pre_eps = 1e-3, .sinkhorn_eps = 1e-4, .post_mult = 1.5, .tmax = 6};
  guarded_matrix<T> x, dx;
  guarded_matrix<P> phi, dphi;
  guarded<A> b, alpha, db, dalpha;
  guarded_matrix<A> h_pre, h_post, h_res, dh_pre, dh_post, dh_res, mix;
  guarded<A> rstd, history;

  TIGON_TEST_NOINLINE explicit mhc_problem(mhc_shape of, std::size_t history_size = 0, guard side = guard::behind)
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

  auto weights() const { return mhc_weights{phi.view(), b, alpha}; }
  auto saved() { return mhc_coeffs_saved<A>{mix.view(), rstd, history}; }
  auto incoming() const { return mhc_coefficients<const A>{dh_pre.view(), dh_post.view(), dh_res.view()}; }
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = default_context()) {
    mhc_coeffs_forward<B>(x.view(), weights(), {h_pre.view(), h_post.view(), h_res.view()}, saved(), opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(mhc_coefficients<const A> dh, context& ctx = default_context()) {
    mhc_coeffs_backward<B>(dh, x.view(), weights(), saved(), mhc_coeffs_gradients{dx.view(), dphi.view(), db, dalpha},
                           opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = default_context()) {
    forward<B>(ctx);
    backward<B>(incoming(), ctx);
  }

  mhc_reference wanted() const { return wanted(dh_pre.f64(), dh_post.f64(), dh_res.f64()); }
  /// For other gradients of the coefficients.
  TIGON_TEST_NOINLINE mhc_reference wanted(const std::vector<double>& pre, const std::vector<double>& post,
                                           const std::vector<double>& res) const {
    return {s,       mhc_numbers{opt.rms_eps, opt.pre_eps, opt.sinkhorn_eps, opt.post_mult, opt.tmax},
            x.f64(), phi.f64(),
            b.f64(), alpha.f64(),
            pre,     post,
            res};
  }
  TIGON_TEST_NOINLINE void check_forward(const mhc_reference& want) const {
    const comparison with{.may_be_empty = s.tokens == 0};
    EXPECT_TRUE(close(h_pre.f64(), want.h_pre, mhc_bound.of<A>(), with));
    EXPECT_TRUE(close(h_post.f64(), want.h_post, mhc_bound.of<A>(), with));
    EXPECT_TRUE(close(h_res.f64(), want.h_res, mhc_bound.of<A>(), with));
    EXPECT_TRUE(close(mix.f64(), want.mix, mhc_mix_bound.of<A>(), with));
    EXPECT_TRUE(close(rstd.f64(), want.rstd, mhc_mix_bound.of<A>(), with));
    EXPECT_TRUE(h_pre.padding_intact() && h_post.padding_intact() && h_res.padding_intact() && mix.padding_intact());
  }
  TIGON_TEST_NOINLINE void check_backward(const mhc_reference& want) const {
    EXPECT_TRUE(close(dx.f64(), want.dx, mhc_bound.of<T>(), {.scale = want.dx_terms, .may_be_empty = s.tokens == 0}));
    const comparison of_terms{.scale = want.terms};
    EXPECT_TRUE(close(dphi.f64(), want.dphi, mhc_bound.of<P>(), of_terms));
    EXPECT_TRUE(close(db.f64(), want.db, mhc_bound.of<A>(), of_terms));
    EXPECT_TRUE(close(dalpha.f64(), want.dalpha, mhc_bound.of<A>(), of_terms));
    EXPECT_TRUE(dx.padding_intact() && dphi.padding_intact());
  }
  auto bits() const { return bits_of(h_pre, h_post, h_res, mix, rstd, dx, dphi, db, dalpha); }
};

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_MHC_PROBLEM_HPP
