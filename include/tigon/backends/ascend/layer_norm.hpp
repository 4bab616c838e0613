// LayerNorm: up to eight whole rows in a tile, or three passes over the blocks of columns of one.
#ifndef TIGON_BACKENDS_ASCEND_LAYER_NORM_HPP
#define TIGON_BACKENDS_ASCEND_LAYER_NORM_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/layer_norm.hpp>

namespace tigon {

template <>
struct kernel<op::layer_norm, backends::ascend> {
  template <class A>
  using saved = std::span<A>;  // mean and rstd

  /// Whole rows while they fit, wide ones at the price of fewer live tiles; more programs where rows are few or many.
  template <class Plan>
  static constexpr ub::cut forward_cut(std::size_t rows, std::size_t cols) {
    using B = typename Plan::backend;
    ub::cut by{1, std::min(cols, Plan::block), 2 * B::vector_cores};
    if (cols > Plan::block) return by;
    const tiling::answer whole = tiling::strict(
        {B::tile_capacity_bits, Plan::rule.margin, {cols >= 2048 ? 4u : 6u}, sizeof(typename Plan::accumulator)},
        {{Plan::most_rows, cols}}, {{0}});
    if (whole) by.rows = whole[0][0];
    by.programs = (rows >= 8192 ? 4 : rows <= 1024 || rows >= 4096 ? 2 : 1) * B::vector_cores;
    return by;
  }

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> w, in_vector<W> b, matrix_view<T> y,
                      std::span<accumulator_t<T>> mean, std::span<accumulator_t<T>> rstd, layer_norm_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::layer_norm, tiling::pass::forward, A>;
    const A n = static_cast<A>(x.cols), eps = static_cast<A>(opt.eps);
    ub::for_row_blocks<plan>(
        ctx, x.rows, x.cols, forward_cut<plan>(x.rows, x.cols),
        [=](auto& core, auto& xt, auto& wt, auto& bt, auto& yt, auto& m, auto& r, auto& e, auto& of, auto& sum)
            TIGON_LAMBDA {
              // The sums of every row, until no row asks for another pass. All do after the first, for their mean.
              core.each_row([=](std::size_t i) TIGON_LAMBDA { of[i] = {}, e[i] = 1; });
              for (bool again = true; again;) {
                core.each_row([=](std::size_t i) TIGON_LAMBDA { sum[i] = {}; });
                core.pass(ub::reads(xt), ub::writes(), [=](auto row, auto xv) TIGON_LAMBDA {
                  const A p = of[row.i].scale, about = of[row.i].about;
                  if (e[row.i] == A(0)) return;
                  const auto s = row.sum(reads(xv), [=](auto v) {
                    const auto c = fma(v, p, -about);
                    return pack{c, c * c};
                  });
                  sum[row.i][0] += s[0], sum[row.i][1] += s[1];
                });
                again = false;
                core.each_row([&](std::size_t i) TIGON_LAMBDA {
                  if (e[i] != A(0))
                    e[i] = of[i].again(static_cast<A>(sum[i][0]) / n, static_cast<A>(sum[i][1]) / n, eps, true);
                  again |= e[i] != A(0);
                });
              }
              // The mean is rounded; what it lacks, e, shows in the sum of the centred row.
              core.each_row([=](std::size_t i) TIGON_LAMBDA {
                const auto result = of[i].about_mean_rstd(eps);
                m[i] = result[0], e[i] = result[1], r[i] = result[2];
              });
              core.pass(ub::reads(xt, wt, bt), ub::writes(yt),
                        [=](auto row, auto xv, auto wv, auto bv, auto yv) TIGON_LAMBDA {
                          const A about = m[row.i] / A(2), rest = e[row.i] / A(2), s = r[row.i] * A(2);
                          row.map(reads(xv, wv, bv), writes(yv), [=](auto v, auto g, auto c) {
                            return fma((fma(v, A(0.5), -about) - rest) * s, g, c);
                          });
                        });
              core.each_row([=](std::size_t i) TIGON_LAMBDA { m[i] += e[i]; });
              core.store(m);
              core.store(r);
            },
        x, or_ones(w), or_zeros(b), y, ub::column(mean.data()), ub::column(rstd.data()), ub::local<A>{},
        ub::local<detail::row_moments<A>>{}, ub::local<std::array<double, 2>>{});
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> mean,
                       std::span<const accumulator_t<T>> rstd, matrix_view<T> dx, vector_view<W> dw, vector_view<W> db,
                       layer_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::layer_norm, tiling::pass::backward, A>;
    using sums = std::array<double, 3>;  // of xh h, of h, and of x - m: what the rounded mean lacks
    const A n = static_cast<A>(x.cols);
    const parameter_gradient<W> to_dw{dw, opt.dparams}, to_db{db, opt.dparams};
    if (!detail::holds_products(rstd.data(), x.rows))
      return kernel<op::layer_norm, backends::generic>::backward_in_f64<B, T, W, A>(dy, x, w, mean.data(), rstd.data(),
                                                                                    dx, to_dw, to_db, ctx);
    ub::for_row_blocks_with_partials<plan, sums>(
        ctx, x.rows, x.cols, plan::cut_of(x.cols),
        [=](auto& core, sums* c, auto&, auto&, auto& dt, auto& xt, auto& wt, auto& mt, auto& rt, auto&) TIGON_LAMBDA {
          core.fetch(mt);
          core.fetch(rt);
          core.each_row([=](std::size_t i) TIGON_LAMBDA { c[i] = {}; });
          core.pass(ub::reads(dt, xt, wt), ub::writes(), [=](auto row, auto dv, auto xv, auto wv) TIGON_LAMBDA {
            const A m = mt[row.i];
            const auto s = row.sum(reads(dv, xv, wv), [=](auto d, auto v, auto g) {
              const auto h = d * g, centred = v - m;
              return pack{centred * h, h, centred};
            });
            for (std::size_t k = 0; k < 3; ++k) c[row.i][k] += s[k];
          });
          core.each_row([=](std::size_t i) TIGON_LAMBDA {
            const A xh_h = static_cast<A>(c[i][0]), h = static_cast<A>(c[i][1]), e = static_cast<A>(c[i][2]) / n;
            c[i] = {(xh_h - e * h) * rt[i] / n, h / n, e};
          });
        },
        [=](auto& core, const sums* c, auto& pwt, auto& pbt, auto& dt, auto& xt, auto& wt, auto& mt, auto& rt,
            auto& dxt) TIGON_LAMBDA {
          core.fetch(mt);
          core.fetch(rt);
          core.part(ub::reads(pwt, pbt, dt, xt, wt), ub::writes(dxt),
                    [=](auto row, auto pwv, auto pbv, auto dv, auto xv, auto wv, auto dxv) TIGON_LAMBDA {
                      const A m = mt[row.i], r = rt[row.i], c1 = static_cast<A>(c[row.i][0]),
                              c2 = static_cast<A>(c[row.i][1]), e = static_cast<A>(c[row.i][2]);
                      row.map(reads(dv, xv, wv, pwv, pbv), writes(dxv, pwv, pbv),
                              [=](auto d, auto v, auto g, auto sw, auto sb) {
                                const auto xh = (v - m - e) * r;
                                return pack{(fma(d, g, -c2) - xh * c1) * r, fma(d, xh, sw), sb + d};
                              });
                    });
        },
        std::tuple(to_dw, to_db), dy, x, or_ones(w), ub::column(mean.data()), ub::column(rstd.data()), dx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_LAYER_NORM_HPP
