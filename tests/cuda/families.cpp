// Operators of backend cuda that are made of row programs beside numbers of the device's memory, on the model of a GPU.
#include "problem.hpp"
// Behind it: it says how these are compiled.
#include <cstdint>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/kl_div.hpp>
#include <tigon/losses/tvd.hpp>
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/poly_norm.hpp>

namespace {

using namespace cuda_tests;

template <class T>
auto fused_add_both_ways() {
  return [](problem<T>& p) {
    const auto x = p.matrix(1), r = p.matrix(2), dy = p.matrix(3), ds = p.matrix(4), w = p.row(5);
    const auto y = p.made("y"), s = p.made("s"), dx = p.made("dx"), alone = p.made("dx of s alone");
    const auto dw = p.made("dw", 1, p.of().cols), none = p.made("dw of s alone", 1, p.of().cols);
    const numbers<accumulator_t<T>> rstd(1, p.of().rows);
    return [=]<class B>(context& ctx) {
      fused_add_rms_norm_forward<B>(x.matrix(), r.matrix(), w.vector(), y.matrix(), s.matrix(), rstd.vector(), {}, ctx);
      fused_add_rms_norm_backward<B>(dy.matrix(), ds.matrix(), s.matrix(), w.vector(), rstd.vector(),
                                     fused_add_rms_norm_gradients{dx.matrix(), dw.vector()}, {}, ctx);
      fused_add_rms_norm_backward<B>(matrix_view<const T>(), ds.matrix(), s.matrix(), w.vector(), rstd.vector(),
                                     fused_add_rms_norm_gradients{alone.matrix(), none.vector()}, {}, ctx);
    };
  };
}
// Groups of rows with one row of scale each.
template <class T>
auto modulated_both_ways(std::size_t groups, gradient mode) {
  return [=](problem<T>& p) {
    const std::size_t rows = p.of().rows, cols = p.of().cols;
    const auto x = p.matrix(1), dy = p.matrix(2), w = p.row(3);
    const auto scale = numbers<T>(groups, cols, 8).fill(4), shift = numbers<T>(groups, cols, 16).fill(5);
    const auto y = p.made("y"), dx = p.made("dx"), dw = p.made("dw", 1, cols);
    numbers<T> dscale = p.made("dscale", groups, cols), dshift = p.made("dshift", groups, cols);
    if (mode == gradient::accumulate) dscale.fill(6), dshift.fill(7);
    const numbers<accumulator_t<T>> rstd(1, rows);
    const modulated_rms_norm_options opt{.group_rows = rows / groups, .dscale = mode};
    return [=]<class B>(context& ctx) {
      modulated_rms_norm_forward<B>(x.matrix(), w.vector(), scale.matrix(), shift.matrix(), y.matrix(), rstd.vector(),
                                    opt, ctx);
      modulated_rms_norm_backward<B>(
          dy.matrix(), x.matrix(), w.vector(), scale.matrix(), rstd.vector(),
          modulated_rms_norm_gradients{dx.matrix(), dw.vector(), dscale.matrix(), dshift.matrix()}, opt, ctx);
    };
  };
}
template <class T>
auto poly_norm_both_ways() {
  return [](problem<T>& p) {
    const auto x = p.matrix(1), dy = p.matrix(2), w = numbers<T>(1, 3).fill(3), b = numbers<T>(1, 1).fill(4);
    const auto y = p.made("y"), dx = p.made("dx"), dw = p.made("dw", 1, 3), db = p.made("db", 1, 1);
    const numbers<accumulator_t<T>> rstd(1, 3 * p.of().rows);
    return [=]<class B>(context& ctx) {
      poly_norm_forward<B>(x.matrix(), w.vector(), b.vector(), y.matrix(), rstd.vector(), {}, ctx);
      poly_norm_backward<B>(dy.matrix(), x.matrix(), w.vector(), rstd.vector(),
                            norm_gradients{dx.matrix(), dw.vector(), db.vector()}, {}, ctx);
    };
  };
}
template <class T>
auto dyt_both_ways(gradient mode) {
  return [=](problem<T>& p) {
    const std::size_t cols = p.of().cols;
    const auto x = p.matrix(1), dy = p.matrix(2), alpha = numbers<T>(1, 1).fill(8, 1), gamma = p.row(3),
               beta = p.row(4);
    const auto y = p.made("y"), dx = p.made("dx");
    numbers<T> dalpha = p.made("dalpha", 1, 1), dgamma = p.made("dgamma", 1, cols), dbeta = p.made("dbeta", 1, cols);
    if (mode == gradient::accumulate) dalpha.fill(5), dgamma.fill(6), dbeta.fill(7);
    return [=]<class B>(context& ctx) {
      dyt_forward<B>(x.matrix(), alpha.vector(), gamma.vector(), beta.vector(), y.matrix(), {}, ctx);
      dyt_backward<B>(dy.matrix(), x.matrix(), alpha.vector(), gamma.vector(),
                      dyt_gradients{dx.matrix(), dalpha.vector(), dgamma.vector(), dbeta.vector()}, {.dparams = mode},
                      ctx);
    };
  };
}
// Every third row is ignored, where rows may be.
auto divergences_both_ways() {
  return [](problem<float>& p) {
    const std::size_t rows = p.of().rows;
    const auto x = p.matrix(1, -4), t = p.matrix(2, -4), q = p.matrix(3, 2), r = p.matrix(4, 2);
    const auto j = p.made("jsd dx"), k = p.made("kl_div dx"), kt = p.made("kl_div dt"), v = p.made("tvd dq"),
               e = p.made("tvd of elements"), vb = p.made("tvd dq by upstream");
    const auto losses = p.made("losses", 1, 3), upstream = numbers<float>(1, 1).fill(9, 2);
    auto* const labels = static_cast<std::int32_t*>(device_memory::instance().take(rows * sizeof(std::int32_t)));
    for (std::size_t i = 0; i < rows; ++i) labels[i] = i % 3 == 1 ? -100 : 7;
    const std::span<const std::int32_t> ids(labels, rows);
    return [=]<class B>(context& ctx) {
      const auto loss = [=](std::size_t n) { return losses.vector().subspan(n, 1); };
      for (const double beta : {0.3, 0.0}) {
        jsd_forward<B>(x.matrix(), t.matrix(), loss(0), j.matrix(), {.beta = beta}, ids, ctx);
        jsd_backward<B>(j.matrix(), upstream.vector(), j.matrix(), ctx);
      }
      kl_div_forward<B>(x.matrix(), t.matrix(), loss(1), k.matrix(), {.log_target = true}, ctx);
      kl_div_backward<B>(t.matrix(), upstream.vector(), k.matrix(), {.log_target = true}, ctx);
      kl_div_teacher_backward<B>(x.matrix(), t.matrix(), upstream.vector(), kt.matrix(), {.log_target = true}, ctx);
      tvd_forward<B>(q.matrix(), r.matrix(), loss(2), v.matrix(), {}, ids, ctx);
      tvd_backward<B>(q.matrix(), r.matrix(), upstream.vector(), vb.matrix(), {}, ids, ctx);
      tvd_forward<B>(q.matrix(), r.matrix(), e.matrix(), v.matrix(), {.reduction = divergence_reduction::none}, ids,
                     ctx);
    };
  };
}

TEST(cuda_families, fused_add_rms_norm) {
  for (const shape& s : {shape{300, 128}, shape{3, 4104}, shape{2, 40000}, shape{40, 37}, shape{5, 6}})
    expect_as_single_numbers<float>(s, fused_add_both_ways<float>());
  expect_as_single_numbers<bfloat16>({9, 504, 16}, fused_add_both_ways<bfloat16>());
}
TEST(cuda_families, modulated_rms_norm) {
  for (const shape& s : {shape{84, 24}, shape{6, 4104}, shape{12, 37}, shape{12, 6}})
    for (const std::size_t groups : {std::size_t{3}, s.rows})
      expect_as_single_numbers<float>(s, modulated_both_ways<float>(groups, gradient::overwrite));
  expect_as_single_numbers<double>({200, 128}, modulated_both_ways<double>(2, gradient::accumulate));
}
TEST(cuda_families, poly_norm) {
  for (const shape& s : {shape{300, 128}, shape{9, 4104}, shape{40, 37}, shape{40, 6}})
    expect_as_single_numbers<float>(s, poly_norm_both_ways<float>());
  expect_as_single_numbers<bfloat16>({70, 512}, poly_norm_both_ways<bfloat16>());
}
TEST(cuda_families, dyt) {
  for (const shape& s : {shape{300, 128}, shape{9, 4104}, shape{40, 37}})
    for (const gradient mode : {gradient::overwrite, gradient::accumulate})
      expect_as_single_numbers<float>(s, dyt_both_ways<float>(mode));
  expect_as_single_numbers<bfloat16>({70, 512}, dyt_both_ways<bfloat16>(gradient::overwrite));
}
TEST(cuda_families, divergences) {
  for (const shape& s : {shape{70, 128}, shape{9, 4104}, shape{40, 37}})
    expect_as_single_numbers<float>(s, divergences_both_ways());
}

}  // namespace
