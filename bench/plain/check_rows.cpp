// Norms, row lookup, sparsemax, attention residuals and hyper-connections.
#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/mhc_coeffs.hpp>
#include <tigon/ops/mhc_post_res.hpp>
#include <tigon/ops/mhc_pre.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/sparsemax.hpp>

#include "plain/check.hpp"
#include "plain/embedding.hpp"
#include "plain/mhc_coeffs.hpp"
#include "plain/norms.hpp"
#include "plain/sparsemax.hpp"
#include "plain/streams.hpp"

namespace tigon_bench {
namespace {

using B = passes::lanes;
constexpr std::size_t rows = 37, cols = 301;
const float* numbers(const buffer<float>& b) { return b.data(); }

void norms(tigon::context& ctx) {
  const auto x = uniform_matrix<float>(rows, cols, -2, 3, 1), r = uniform_matrix<float>(rows, cols, -1, 2, 2),
             dy = uniform_matrix<float>(rows, cols, -1, 2, 3), ds = uniform_matrix<float>(rows, cols, -1, 1, 4);
  const auto w = uniform<float>(cols, 0.5, 1.5, 5);
  both_matrices y(rows, cols), s(rows, cols), dx(rows, cols);
  both_buffers dw(cols), rstd(rows);
  passes::fused_add_rms_norm_forward<float>(ctx, x.view(), r.view(), in(w), y.got.view(), s.got.view(), rstd.got.data(),
                                            1e-6);
  passes::fused_add_rms_norm_backward<float>(ctx, dy.view(), ds.view(), s.got.view(), in(w), numbers(rstd.got),
                                             dx.got.view(), out(dw.got));
  tigon::fused_add_rms_norm_forward<B>(x.view(), r.view(), w.span(), y.want.view(), s.want.view(), rstd.want.span(), {},
                                       ctx);
  tigon::fused_add_rms_norm_backward<B>(dy.view(), ds.view(), s.want.view(), w.span(), rstd.want.span(),
                                        tigon::fused_add_rms_norm_gradients{dx.want.view(), dw.want.span()}, {}, ctx);
  y.agree("fused_add_rms_norm y"), s.agree("fused_add_rms_norm s");
  dx.agree("fused_add_rms_norm dx"), dw.agree("fused_add_rms_norm dw");

  const auto scale = uniform_matrix<float>(rows, cols, -.5, .5, 6), shift = uniform_matrix<float>(rows, cols, -1, 1, 7);
  both_matrices dscale(rows, cols), dshift(rows, cols);
  const matrix<float> u(rows, cols);
  passes::modulated_rms_norm_forward<float>(ctx, x.view(), in(w), scale.view(), shift.view(), y.got.view(),
                                            rstd.got.data(), 1e-6);
  passes::modulated_rms_norm_backward<float>(ctx, dy.view(), x.view(), in(w), scale.view(), numbers(rstd.got), u.view(),
                                             {dx.got.view(), out(dw.got), dscale.got.view(), dshift.got.view()});
  const tigon::modulated_rms_norm_options by_row{.group_rows = 1};
  tigon::modulated_rms_norm_forward<B>(x.view(), w.span(), scale.view(), shift.view(), y.want.view(), rstd.want.span(),
                                       by_row, ctx);
  tigon::modulated_rms_norm_backward<B>(
      dy.view(), x.view(), w.span(), scale.view(), rstd.want.span(),
      tigon::modulated_rms_norm_gradients{dx.want.view(), dw.want.span(), dscale.want.view(), dshift.want.view()},
      by_row, ctx);
  y.agree("modulated_rms_norm y"), dx.agree("modulated_rms_norm dx"), dw.agree("modulated_rms_norm dw");
  dscale.agree("modulated_rms_norm dscale"), dshift.agree("modulated_rms_norm dshift");

  const auto of_powers = uniform<float>(3, 0.25, 0.5, 8), b = uniform<float>(1, 0.5, 1, 9);
  both_buffers three(3 * rows), dpowers(3), db(1);
  passes::poly_norm_forward<float>(ctx, x.view(), of_powers.data(), b[0], y.got.view(), three.got.data(), 1e-6);
  passes::poly_norm_backward<float>(ctx, dy.view(), x.view(), of_powers.data(), numbers(three.got), dx.got.view(),
                                    dpowers.got.data(), db.got.data());
  tigon::poly_norm_forward<B>(x.view(), of_powers.span(), b.span(), y.want.view(), three.want.span(), {}, ctx);
  tigon::poly_norm_backward<B>(dy.view(), x.view(), of_powers.span(), three.want.span(),
                               tigon::norm_gradients{dx.want.view(), dpowers.want.span(), db.want.span()}, {}, ctx);
  y.agree("poly_norm y"), dx.agree("poly_norm dx"), dpowers.agree("poly_norm dw"), db.agree("poly_norm db");
}

void groups(tigon::context& ctx) {
  constexpr std::size_t batch = 3, channels = 12, group_count = 4, positions = 77, all = batch * channels;
  const auto x = uniform_matrix<float>(all, positions, -2, 3, 1), dy = uniform_matrix<float>(all, positions, -1, 2, 2);
  const auto w = uniform<float>(channels, 0.5, 1.5, 3), b = uniform<float>(channels, -1, 1, 4);
  both_matrices y(all, positions), dx(all, positions);
  both_buffers mean(batch * group_count), rstd(batch * group_count), dw(channels), db(channels);
  const passes::channel_groups g{channels, group_count};
  passes::group_norm_forward<float>(ctx, x.view(), g, in(w), in(b), y.got.view(), mean.got.data(), rstd.got.data(),
                                    1e-6);
  passes::group_norm_backward<float>(ctx, dy.view(), x.view(), g, in(w), numbers(mean.got), numbers(rstd.got),
                                     dx.got.view(), out(dw.got), out(db.got));
  const tigon::group_norm_options opt{.groups = group_count};
  tigon::group_norm_forward<B>(x.view(), w.span(), b.span(), y.want.view(), mean.want.span(), rstd.want.span(), opt,
                               ctx);
  tigon::group_norm_backward<B>(dy.view(), x.view(), w.span(), mean.want.span(), rstd.want.span(),
                                tigon::norm_gradients{dx.want.view(), dw.want.span(), db.want.span()}, opt, ctx);
  y.agree("group_norm y"), dx.agree("group_norm dx"), dw.agree("group_norm dw"), db.agree("group_norm db");
}

void choices(tigon::context& ctx) {
  constexpr std::size_t vocab = 23;
  const auto table = uniform_matrix<float>(vocab, cols, -1, 1, 1), dy = uniform_matrix<float>(rows, cols, -1, 1, 2);
  const auto ids = uniform<std::int32_t>(rows, 0, vocab - 1, 3);
  both_matrices y(rows, cols), dtable(vocab, cols), dx(rows, cols);
  passes::embedding_forward<float>(ctx, table.view(), ids.span(), y.got.view());
  passes::embedding_backward<float>(ctx, dy.view(), ids.span(), dtable.got.view());
  tigon::embedding_forward<B>(table.view(), ids.span(), y.want.view(), {}, ctx);
  tigon::embedding_backward<B>(dy.view(), ids.span(), dtable.want.view(), {}, ctx);
  y.agree("embedding y"), dtable.agree("embedding dweight");

  const auto x = uniform_matrix<float>(rows, cols, -4, 4, 4);
  passes::sparsemax_forward<float>(ctx, x.view(), y.got.view());
  passes::sparsemax_backward<float>(ctx, dy.view(), y.got.view(), dx.got.view());
  tigon::sparsemax_forward<B>(x.view(), y.want.view(), {}, ctx);
  tigon::sparsemax_backward<B>(dy.view(), y.want.view(), dx.want.view(), {}, ctx);
  y.agree("sparsemax y"), dx.agree("sparsemax dx");
}

void attention_residuals(tigon::context& ctx) {
  constexpr std::size_t blocks = 5;
  const auto v = uniform_matrix<float>(blocks * rows, cols, -2, 2, 1), dy = uniform_matrix<float>(rows, cols, -2, 2, 2);
  const auto query = uniform<float>(cols, -0.1, 0.1, 3), norm = uniform<float>(cols, 0.5, 1.5, 4);
  both_matrices y(rows, cols), dv(blocks * rows, cols);
  both_buffers alpha(rows * blocks), rstd(rows * blocks), dquery(cols), dnorm(cols);
  const auto of = [](const matrix<float>& m) {
    return tigon::blocks_view<float>::stacked(m.view().data, blocks, rows, cols);
  };
  passes::attn_res_forward<float>(ctx, of(v), in(query), in(norm), y.got.view(), alpha.got.data(), rstd.got.data(),
                                  1e-6);
  passes::attn_res_backward<float>(ctx, dy.view(), of(v), in(query), in(norm), numbers(alpha.got), numbers(rstd.got),
                                   of(dv.got), out(dquery.got), out(dnorm.got));
  tigon::attn_res_forward<B>(of(v), query.span(), norm.span(), y.want.view(), alpha.want.span(), rstd.want.span(), {},
                             ctx);
  tigon::attn_res_backward<B>(dy.view(), of(v), query.span(), norm.span(), {alpha.want.span(), rstd.want.span()},
                              tigon::attn_res_gradients{of(dv.want), dquery.want.span(), dnorm.want.span()}, {}, ctx);
  y.agree("attn_res y"), dv.agree("attn_res dv");
  dquery.agree("attn_res dw_query"), dnorm.agree("attn_res dw_norm");
}

void hyper_connections(tigon::context& ctx) {
  constexpr std::size_t n = 3, all = n * cols, mixes = n * n + 2 * n;
  const auto x = uniform_matrix<float>(rows, all, -2, 2, 1), f = uniform_matrix<float>(rows, cols, -2, 2, 2),
             dy = uniform_matrix<float>(rows, all, -2, 2, 3);
  const auto pre = uniform_matrix<float>(rows, n, 0, 1, 4), post = uniform_matrix<float>(rows, n, 0, 2, 5),
             res = uniform_matrix<float>(rows, n * n, 0, 1, 6);
  both_matrices one(rows, cols), y(rows, all), dx(rows, all), df(rows, cols), dpre(rows, n), dpost(rows, n),
      dres(rows, n * n);
  passes::mhc_pre_forward<float, float>(ctx, x.view(), pre.view(), one.got.view());
  passes::mhc_pre_backward<float, float>(ctx, f.view(), x.view(), pre.view(), dx.got.view(), dpre.got.view());
  tigon::mhc_pre_forward<B>(x.view(), pre.view(), one.want.view(), ctx);
  tigon::mhc_pre_backward<B>(f.view(), x.view(), pre.view(),
                             tigon::mhc_pre_gradients<float>{dx.want.view(), dpre.want.view()}, {}, ctx);
  one.agree("mhc_pre y"), dx.agree("mhc_pre dx"), dpre.agree("mhc_pre dh_pre");

  passes::mhc_post_res_forward<float, float>(ctx, x.view(), f.view(), post.view(), res.view(), y.got.view());
  passes::mhc_post_res_backward<float, float>(ctx, dy.view(), x.view(), f.view(), post.view(), res.view(),
                                              {dx.got.view(), df.got.view(), dpost.got.view(), dres.got.view()});
  tigon::mhc_post_res_forward<B>(x.view(), f.view(), post.view(), res.view(), y.want.view(), ctx);
  tigon::mhc_post_res_backward<B>(
      dy.view(), x.view(), f.view(), post.view(), res.view(),
      tigon::mhc_post_res_gradients<float>{dx.want.view(), df.want.view(), dpost.want.view(), dres.want.view()}, {},
      ctx);
  y.agree("mhc_post_res y"), dx.agree("mhc_post_res dx"), df.agree("mhc_post_res df");
  dpost.agree("mhc_post_res dh_post"), dres.agree("mhc_post_res dh_res");

  const auto phi = uniform_matrix<float>(all, mixes, -0.05, 0.05, 7);
  const auto b = uniform<float>(mixes, -0.5, 0.5, 8), alpha = uniform<float>(3, 0.5, 1, 9);
  both_matrices h_pre(rows, n), h_post(rows, n), h_res(rows, n * n), dphi(all, mixes);
  both_buffers db(mixes), dalpha(3);
  const passes::mhc_coeffs_steps<float> steps(rows, n, all);
  steps.forward(ctx, x.view(), phi.view(), b.data(), alpha.data(), h_pre.got.view(), h_post.got.view(),
                h_res.got.view());
  steps.backward(ctx, x.view(), phi.view(), alpha.data(), {pre.view(), post.view(), res.view()}, h_pre.got.view(),
                 h_post.got.view(), {dx.got.view(), dphi.got.view(), db.got.data(), dalpha.got.data()});
  const matrix<float> mix(rows, mixes);
  const buffer<float> rstd(rows), history(tigon::mhc_coeffs_history<B, float>(rows, n));
  const tigon::mhc_weights weights{phi.view(), b.span(), alpha.span()};
  const tigon::mhc_coeffs_saved<float> saved{mix.view(), rstd.span(), history.span()};
  tigon::mhc_coeffs_forward<B>(x.view(), weights, {h_pre.want.view(), h_post.want.view(), h_res.want.view()}, saved, {},
                               ctx);
  tigon::mhc_coeffs_backward<B>(
      {pre.view(), post.view(), res.view()}, x.view(), weights, saved,
      tigon::mhc_coeffs_gradients{dx.want.view(), dphi.want.view(), db.want.span(), dalpha.want.span()}, {}, ctx);
  h_pre.agree("mhc_coeffs h_pre"), h_post.agree("mhc_coeffs h_post"), h_res.agree("mhc_coeffs h_res");
  dx.agree("mhc_coeffs dx"), dphi.agree("mhc_coeffs dphi"), db.agree("mhc_coeffs db"),
      dalpha.agree("mhc_coeffs dalpha");
}

}  // namespace

void check_rows(tigon::context& ctx) {
  norms(ctx), groups(ctx), choices(ctx), attention_residuals(ctx), hyper_connections(ctx);
}

}  // namespace tigon_bench
