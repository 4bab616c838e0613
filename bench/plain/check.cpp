// The elementary steps compute what the operators compute: a baseline that did less would be no baseline.
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/kl_div.hpp>
#include <tigon/losses/tvd.hpp>
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu.hpp>

#include "plain/check.hpp"
#include "plain/gates.hpp"
#include "plain/linear_losses.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace {
int failures = 0;
}  // namespace

namespace tigon_bench {

void expect(const char* name, std::span<const float> got, std::span<const float> want) {
  double largest = 0, off = 0;
  for (std::size_t k = 0; k < want.size(); ++k) {
    largest = std::max(largest, std::abs(static_cast<double>(want[k])));
    const double d = std::abs(static_cast<double>(got[k]) - want[k]);
    off = std::isnan(d) ? d : std::max(off, d);
    if (std::isnan(off)) break;
  }
  const bool same = off <= 1e-5 * largest && largest > 0;
  std::printf("%-40s %s, %.2g of %.2g\n", name, same ? "agrees" : "DIFFERS", off, largest);
  failures += same ? 0 : 1;
}

}  // namespace tigon_bench

namespace {

using namespace tigon_bench;
using B = passes::lanes;
constexpr std::size_t rows = 37, cols = 301;

matrix<float> empty() { return uniform_matrix<float>(rows, cols, 0, 0, 1); }

void norms(tigon::context& ctx) {
  const auto x = uniform_matrix<float>(rows, cols, -2, 3, 1), dy = uniform_matrix<float>(rows, cols, -1, 2, 2);
  const auto w = uniform<float>(cols, 0.5, 1.5, 3), b = uniform<float>(cols, -1, 1, 4),
             alpha = uniform<float>(1, .5, .5, 5);
  const matrix<float> y = empty(), dx = empty(), y2 = empty(), dx2 = empty();
  const buffer<float> mean(rows), rstd(rows), dw(cols), db(cols), dw2(cols), db2(cols), da(1), da2(1);

  passes::rms_norm_forward<float>(ctx, x.view(), in(w), y2.view(), rstd.data(), 1e-6);
  passes::rms_norm_backward<float>(ctx, dy.view(), x.view(), in(w), rstd.data(), dx2.view(), out(dw2));
  tigon::rms_norm_forward<B>(x.view(), w.span(), y.view(), rstd.span(), {}, ctx);
  tigon::rms_norm_backward<B>(dy.view(), x.view(), w.span(), rstd.span(), dx.view(), dw.span(), {}, ctx);
  expect("rms_norm y", y2, y), expect("rms_norm dx", dx2, dx), expect("rms_norm dw", dw2.span(), dw.span());

  passes::layer_norm_forward<float>(ctx, x.view(), in(w), in(b), y2.view(), mean.data(), rstd.data(), 1e-6);
  passes::layer_norm_backward<float>(ctx, dy.view(), x.view(), in(w), mean.data(), rstd.data(), dx2.view(), out(dw2),
                                     out(db2));
  tigon::layer_norm_forward<B>(x.view(), w.span(), b.span(), y.view(), mean.span(), rstd.span(), {}, ctx);
  tigon::layer_norm_backward<B>(dy.view(), x.view(), w.span(), mean.span(), rstd.span(),
                                tigon::norm_gradients{dx.view(), dw.span(), db.span()}, {}, ctx);
  expect("layer_norm y", y2, y), expect("layer_norm dx", dx2, dx);
  expect("layer_norm dw", dw2.span(), dw.span()), expect("layer_norm db", db2.span(), db.span());

  passes::dyt_forward<float>(ctx, x.view(), alpha[0], in(w), in(b), y2.view());
  passes::dyt_backward<float>(ctx, dy.view(), x.view(), alpha[0], in(w), dx2.view(), da2.data(), out(dw2), out(db2));
  tigon::dyt_forward<B>(x.view(), alpha.span(), w.span(), b.span(), y.view(), {}, ctx);
  tigon::dyt_backward<B>(dy.view(), x.view(), alpha.span(), w.span(),
                         tigon::dyt_gradients{dx.view(), da.span(), dw.span(), db.span()}, {}, ctx);
  expect("dyt y", y2, y), expect("dyt dx", dx2, dx), expect("dyt dalpha", da2.span(), da.span());
  expect("dyt dgamma", dw2.span(), dw.span()), expect("dyt dbeta", db2.span(), db.span());

  passes::relu_squared_forward<float>(ctx, x.view(), y2.view());
  passes::relu_squared_backward<float>(ctx, dy.view(), x.view(), dx2.view());
  tigon::relu_squared_forward<B>(x.view(), y.view(), {}, ctx);
  tigon::relu_squared_backward<B>(dy.view(), x.view(), dx.view(), {}, ctx);
  expect("relu_squared y", y2, y), expect("relu_squared dx", dx2, dx);

  passes::softmax_forward<float>(ctx, x.view(), y2.view());
  passes::softmax_backward<float>(ctx, dy.view(), y2.view(), dx2.view());
  tigon::softmax_forward<B>(x.view(), y.view(), {}, ctx);
  tigon::softmax_backward<B>(dy.view(), y.view(), dx.view(), {}, ctx);
  expect("softmax y", y2, y), expect("softmax dx", dx2, dx);
}

void gates(tigon::context& ctx) {
  const auto a = uniform_matrix<float>(rows, cols, -3, 3, 1), b = uniform_matrix<float>(rows, cols, -2, 2, 2),
             dc = uniform_matrix<float>(rows, cols, -1, 1, 3);
  const matrix<float> c = empty(), da = empty(), db = empty(), c2 = empty(), da2 = empty(), db2 = empty();
  constexpr std::size_t bits = passes::bits<float>;
  const auto silu = [](auto v) { return tigon::detail::silu<bits>(v); };
  const auto slope = [](auto v) { return tigon::detail::silu_and_slope<bits>(v)[1]; };
  passes::gate_forward<float>(ctx, a.view(), b.view(), c2.view(), silu);
  passes::gate_backward<float>(ctx, dc.view(), a.view(), b.view(), da2.view(), db2.view(), silu, slope);
  tigon::swiglu_forward<B>(a.view(), b.view(), c.view(), {}, ctx);
  tigon::swiglu_backward<B>(dc.view(), a.view(), b.view(), da.view(), db.view(), {}, ctx);
  expect("swiglu c", c2, c), expect("swiglu da", da2, da), expect("swiglu db", db2, db);
  using gelu = tigon::detail::gelu<tigon::gelu_form::tanh, bits>;
  const auto of = [](auto v) { return gelu::of(v); };
  const auto slope_of = [](auto v) { return gelu::with_slope(v)[1]; };
  passes::gate_forward<float>(ctx, a.view(), b.view(), c2.view(), of);
  passes::gate_backward<float>(ctx, dc.view(), a.view(), b.view(), da2.view(), db2.view(), of, slope_of);
  tigon::geglu_forward<B>(a.view(), b.view(), c.view(), {}, ctx);
  tigon::geglu_backward<B>(dc.view(), a.view(), b.view(), da.view(), db.view(), {}, ctx);
  expect("geglu c", c2, c), expect("geglu da", da2, da), expect("geglu db", db2, db);
}

void losses(tigon::context& ctx) {
  const auto z = uniform_matrix<float>(rows, cols, -4, 4, 1);
  const auto target = uniform<std::int32_t>(rows, 0, cols - 1, 2);
  const matrix<float> d = empty(), d2 = empty();
  const buffer<float> loss(1), loss2(1);
  passes::cross_entropy<float>(ctx, z.view(), target.span(), loss2.data(), d2.view());
  tigon::cross_entropy_forward<B>(z.view(), target.span(), loss.span(), d.view(), {}, tigon::absent, {}, ctx);
  expect("cross_entropy loss", loss2.span(), loss.span()), expect("cross_entropy dlogits", d2, d);

  const auto logs = uniform_matrix<float>(rows, cols, -7, -4, 3), other = uniform_matrix<float>(rows, cols, -7, -4, 4);
  const auto p = uniform_matrix<float>(rows, cols, 1e-4, 6e-3, 5), q = uniform_matrix<float>(rows, cols, 1e-4, 6e-3, 6);
  passes::kl_div<float>(ctx, logs.view(), p.view(), loss2.data(), d2.view());
  tigon::kl_div_forward<B>(logs.view(), p.view(), loss.span(), d.view(), {}, ctx);
  expect("kl_div loss", loss2.span(), loss.span()), expect("kl_div d", d2, d);
  passes::jsd<float>(ctx, logs.view(), other.view(), loss2.data(), d2.view());
  tigon::jsd_forward<B>(logs.view(), other.view(), loss.span(), d.view(), {}, tigon::absent, ctx);
  expect("jsd loss", loss2.span(), loss.span()), expect("jsd d", d2, d);
  passes::tvd<float>(ctx, p.view(), q.view(), loss2.data(), d2.view());
  tigon::tvd_forward<B>(p.view(), q.view(), loss.span(), d.view(), {}, tigon::absent, ctx);
  expect("tvd loss", loss2.span(), loss.span()), expect("tvd d", d2, d);

  constexpr std::size_t hidden = 24;
  const auto x = uniform_matrix<float>(rows, hidden, -1, 1, 7), w = uniform_matrix<float>(cols, hidden, -1, 1, 8);
  const matrix<float> dx(rows, hidden), dx2(rows, hidden), dw(cols, hidden), dw2(cols, hidden), logits = empty();
  passes::linear_cross_entropy<float>(ctx, {x.view(), w.view(), {}, dx2.view(), dw2.view(), {}}, target.span(),
                                      loss2.data(), logits, d2);
  tigon::fused_linear_cross_entropy_forward<B, float>({x.view(), w.view()}, target.span(), {loss.span()},
                                                      {dx.view(), dw.view()}, {}, tigon::absent, {}, ctx);
  expect("linear + cross entropy loss", loss2.span(), loss.span());
  expect("linear + cross entropy dx", dx2, dx), expect("linear + cross entropy dw", dw2, dw);
}

}  // namespace

int main() {
  tigon::context& ctx = tigon::default_context();
  norms(ctx), gates(ctx), losses(ctx);
  check_rows(ctx), check_heads(ctx), check_products(ctx), check_losses(ctx);
  std::printf("%d differ\n", failures);
  return failures == 0 ? 0 : 1;
}
