// Fuzzing of hyper-connections: coefficients, the input of a layer, and the streams after it.
#include <tigon/ops/mhc_coeffs.hpp>
#include <tigon/ops/mhc_post_res.hpp>
#include <tigon/ops/mhc_pre.hpp>

#include "layers.hpp"
#include "support/kernels.hpp"

namespace {

using namespace tigon::fuzz;

/// Beside one rounding of results of 16 bits: about three times what was measured, where contracts state 2e-6 and more.
constexpr bounds within(double f32, double f64) { return {f32, 0x1p-8 + f32, 0x1p-11 + f32, f64}; }

template <class P>
void mhc_coeffs(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  const std::size_t tokens = p.some_rows(40), n = p.in.between(1, 4), channels = p.some_cols(40), cols = n * (n + 2);
  tigon::mhc_coeffs_options opt{.rms_eps = p.in.pick({1e-6, 1e-3}), .pre_eps = p.in.pick({0.0, 0.01})};
  opt.tmax = p.in.template pick<std::size_t>({20, 1, 3}), opt.post_mult = p.in.pick({2.0, 1.0});
  opt.dx = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate});
  opt.dparams = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate});
  some_hyper_connections<P> given(p, tokens, n, channels, opt.tmax);
  auto &pre = given.pre, &post = given.post, &res = given.res, &mix = given.mix, &rstd = given.rstd;
  auto& x = given.x;
  auto& history = given.history;
  auto& dpre = p.filled(p.template matrix<A>("dh_pre", tokens, n), 0, 1, false);
  auto& dpost = p.filled(p.template matrix<A>("dh_post", tokens, n), 0, 1, false);
  auto& dres = p.filled(p.template matrix<A>("dh_res", tokens, n * n), 0, 1, false);
  auto &dx = p.matrix("dx", tokens, n * channels), &dphi = p.matrix("dphi", n * channels, cols);
  auto &db = p.template vector<A>("db", cols), &dalpha = p.template vector<A>("dalpha", 3);
  if (opt.dx == tigon::gradient::accumulate) p.fill(dx, 0, 1, false);
  if (opt.dparams == tigon::gradient::accumulate)
    for (argument* g : {static_cast<argument*>(&dphi), static_cast<argument*>(&db), static_cast<argument*>(&dalpha)})
      p.fill(*g, 0, 1, false);
  p.call({&pre, &post, &res, &mix, &rstd}, [&](auto s) {
    using S = decltype(s);
    using N = std::conditional_t<S::is_reference, double, A>;
    tigon::mhc_coeffs_forward<typename S::backend>(
        x.at(s), given.weights(s), tigon::mhc_coefficients<N>{pre.at(s), post.at(s), res.at(s)},
        tigon::mhc_coeffs_saved<N>{mix.at(s), rstd.vec(s), history.at(s)}, opt, s.ctx);
  });
  constexpr bounds of_h{.f32 = 1e-6, .bf16 = 4e-7, .f16 = 6e-7, .f64 = 5e-16};  // products of 16 bits are exact in f32
  p.compare(rstd, {.bound = within(3e-7, 4e-16).of<A>()});
  p.compare(mix, {.bound = within(2e-6, 2e-15).of<A>(), .scale = 1});
  p.compare(pre, {.bound = of_h.of<T>(), .scale = 1});
  p.compare(post, {.bound = of_h.of<T>(), .scale = 1});
  p.compare(res, {.bound = within(1e-6, 8e-16).of<A>(), .scale = 1});
  p.call({&dx, &dphi, &db, &dalpha}, [&](auto s) {
    using S = decltype(s);
    using N = std::conditional_t<S::is_reference, double, A>;
    tigon::mhc_coeffs_backward<typename S::backend>(
        tigon::mhc_coefficients<const N>{dpre.at(s), dpost.at(s), dres.at(s)}, x.at(s), given.weights(s),
        tigon::mhc_coeffs_saved<const N>{mix.at(s), rstd.vec(s), history.at(s)},
        tigon::mhc_coeffs_gradients{dx.at(s), dphi.at(s), db.vec(s), dalpha.vec(s)}, opt, s.ctx);
  });
  double steepest = 0;
  for (std::size_t t = 0; t < tokens; ++t) steepest = std::max(steepest, rstd.wanted(t));
  const double dh = p.stretch() * static_cast<double>(n), sum = dh * std::sqrt(static_cast<double>(tokens + 1));
  const double of_x = std::max(1.0, p.size_of_terms({&x}) * steepest);
  p.compare(dx, {.bound = within(3e-6, 1.5e-15).of<T>(),
                 .scale = steepest * dh * given.of_phi * std::sqrt(static_cast<double>(cols))});
  p.compare(dphi, {.bound = within(2e-6, 1.5e-15).of<T>(), .scale = sum * of_x});
  p.compare(db, {.bound = within(5e-7, 3e-16).of<A>(), .scale = sum});
  p.compare(dalpha, {.bound = within(1.5e-6, 4e-16).of<A>(), .scale = sum * std::sqrt(static_cast<double>(cols))});
}

template <class P>
void mhc_pre(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  const std::size_t tokens = p.some_rows(20), n = p.in.between(1, 9), channels = p.some_cols(100);
  const tigon::mhc_pre_options opt{.dx = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate})};
  auto& x = p.filled(p.matrix("x", tokens, n * channels));
  auto& h = p.filled(p.template matrix<A>("h_pre", tokens, n), 0.5, 0.3, false);
  auto &y = p.matrix("y", tokens, channels), &dy = p.filled(p.matrix("dy", tokens, channels));
  auto& dx = p.matrix("dx", tokens, n * channels);
  auto& dh = p.template matrix<A>("dh_pre", tokens, n);
  if (opt.dx == tigon::gradient::accumulate) p.fill(dx, 0, 1, false);
  p.call({&y}, [&](auto s) {
    using S = decltype(s);
    tigon::mhc_pre_forward<typename S::backend, typename S::element>(x.at(s), h.at(s), y.at(s), s.ctx);
  });
  const double of_h = p.size_of_terms({&h}), of_x = p.size_of_terms({&x}), of_dy = p.size_of_terms({&dy});
  p.compare(
      y, {.bound = within(8e-7, 6e-15).of<T>(), .scale = of_h * of_x * std::sqrt(static_cast<double>(n)), .of = {&x}});
  p.call({&dx, &dh}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    tigon::mhc_pre_backward<typename S::backend, E>(dy.at(s), x.at(s), h.at(s),
                                                    tigon::mhc_pre_gradients<E>{dx.at(s), dh.at(s)}, opt, s.ctx);
  });
  p.compare(dx, {.bound = within(2e-7, 6e-15).of<T>(), .scale = of_h * of_dy, .of = {&dy}});
  p.compare(dh, {.bound = within(1e-6, 1.2e-15).of<A>(),
                 .scale = of_x * of_dy * std::sqrt(static_cast<double>(channels)),
                 .of = {&x, &dy}});
}

template <class P>
void mhc_post_res(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  const std::size_t tokens = p.some_rows(12), n = p.in.between(1, 9), channels = p.some_cols(60), cols = n * channels;
  const tigon::mhc_post_res_options opt{.dx = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate})};
  auto &x = p.filled(p.matrix("x", tokens, cols)), &f = p.filled(p.matrix("f", tokens, channels));
  auto& post = p.filled(p.template matrix<A>("h_post", tokens, n), 1, 0.3, false);
  auto& res = p.filled(p.template matrix<A>("h_res", tokens, n * n), 0.3, 0.2, false);
  auto &y = p.matrix("y", tokens, cols), &dy = p.filled(p.matrix("dy", tokens, cols));
  auto &dx = p.matrix("dx", tokens, cols), &df = p.matrix("df", tokens, channels);
  auto &dpost = p.template matrix<A>("dh_post", tokens, n), &dres = p.template matrix<A>("dh_res", tokens, n * n);
  if (opt.dx == tigon::gradient::accumulate) p.fill(dx, 0, 1, false);
  p.call({&y}, [&](auto s) {
    using S = decltype(s);
    tigon::mhc_post_res_forward<typename S::backend, typename S::element>(x.at(s), f.at(s), post.at(s), res.at(s),
                                                                          y.at(s), s.ctx);
  });
  const double of_x = p.size_of_terms({&x}), of_f = p.size_of_terms({&f}), of_dy = p.size_of_terms({&dy});
  const double of_res = p.size_of_terms({&res}) * std::sqrt(static_cast<double>(n)), of_post = p.size_of_terms({&post});
  p.compare(y, {.bound = within(8e-7, 6e-15).of<T>(), .scale = of_res * of_x + of_post * of_f, .of = {&x, &f}});
  p.call({&dx, &df, &dpost, &dres}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    tigon::mhc_post_res_backward<typename S::backend, E>(
        dy.at(s), x.at(s), f.at(s), post.at(s), res.at(s),
        tigon::mhc_post_res_gradients<E>{dx.at(s), df.at(s), dpost.at(s), dres.at(s)}, opt, s.ctx);
  });
  const double sum = of_dy * std::sqrt(static_cast<double>(channels));
  p.compare(dx, {.bound = within(2e-6, 6e-15).of<T>(), .scale = of_res * of_dy, .of = {&dy}});
  p.compare(df, {.bound = within(7e-7, 6e-15).of<T>(),
                 .scale = of_post * of_dy * std::sqrt(static_cast<double>(n)),
                 .of = {&dy}});
  p.compare(dpost, {.bound = within(1e-6, 1.2e-15).of<A>(), .scale = of_f * sum, .of = {&dy, &f}});
  p.compare(dres, {.bound = within(1.5e-6, 1.2e-15).of<A>(), .scale = of_x * sum, .of = {&dy, &x}});
}

constexpr target all[] = {TIGON_FUZZ_TARGET(mhc_coeffs), TIGON_FUZZ_TARGET(mhc_pre), TIGON_FUZZ_TARGET(mhc_post_res)};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }
