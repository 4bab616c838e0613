// Residual addition and RMSNorm, cut as rms_norm.
#ifndef TIGON_BACKENDS_ASCEND_FUSED_ADD_RMS_NORM_HPP
#define TIGON_BACKENDS_ASCEND_FUSED_ADD_RMS_NORM_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>

namespace tigon {

template <>
struct kernel<op::fused_add_rms_norm, backends::ascend> {
  template <class A>
  using saved = std::span<A>;  // rstd

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_matrix<T> r, in_vector<W> w, matrix_view<T> y, matrix_view<T> s,
                      std::span<accumulator_t<T>> rstd, rms_norm_options opt, context& ctx) {
    opt = detail::options_for_weight(opt, w);
    detail::with_casting<T>(
        opt.casting, [&](auto rule) { forward_blocks<B, rule.value>(x, r, or_ones(w), y, s, rstd.data(), opt, ctx); });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> ds, in_matrix<T> s, in_vector<W> w,
                       std::span<const accumulator_t<T>> rstd, matrix_view<T> dx, matrix_view<T> dr, vector_view<W> dw,
                       rms_norm_options opt, context& ctx) {
    opt = detail::options_for_weight(opt, w);
    if (!detail::holds_products(rstd.data(), s.rows))
      return kernel<op::fused_add_rms_norm, backends::generic>::backward_in_f64<B, T>(dy, ds, s, w, rstd, dx, dr, dw,
                                                                                      opt, ctx);
    detail::with_casting<T>(opt.casting, [&](auto rule) {
      backward_blocks<B, rule.value>(dy, ds, s, or_ones(w), rstd.data(), dx, dr, dw, opt, ctx);
    });
  }

  template <backend B, casting C, element T, class Weight, class A>
  static void forward_blocks(matrix_view<const T> x, matrix_view<const T> r, Weight w, matrix_view<T> y,
                             matrix_view<T> s, A* rstd, rms_norm_options opt, context& ctx) {
    using plan = ub::plan<B, op::fused_add_rms_norm, tiling::pass::forward, A>;
    const A n = static_cast<A>(x.cols), eps = static_cast<A>(opt.eps), offset = static_cast<A>(opt.offset);
    ub::for_row_blocks<plan>(
        ctx, x.rows, x.cols, plan::cut_of(x.cols),
        [=](auto& core, auto& xt, auto& rt, auto& wt, auto& yt, auto& st, auto& q, auto& p, auto& sum) TIGON_LAMBDA {
          core.each_row([=](std::size_t i) TIGON_LAMBDA { sum[i] = 0; });
          core.pass(ub::reads(xt, rt), ub::writes(), [=](auto row, auto xv, auto rv) TIGON_LAMBDA {
            sum[row.i] += row.sum(reads(xv, rv), [](auto a, auto b) {
              const auto v = round_computed_to<T>(a + b);
              return v * v;
            });
          });
          // Rows whose squares leave the range are multiplied by a power of two.
          bool held = true;
          core.each_row([&](std::size_t i) TIGON_LAMBDA {
            const A square = static_cast<A>(sum[i]) / n + eps;
            p[i] = detail::scale_for_squares<A>(square);
            held &= p[i] == A(1);
            q[i] = math::rsqrt(square), sum[i] = 0;
          });
          if (!held) {
            core.pass(ub::reads(xt, rt), ub::writes(), [=](auto row, auto xv, auto rv) TIGON_LAMBDA {
              const A scale = p[row.i];
              if (scale == A(1)) return;
              sum[row.i] += row.sum(reads(xv, rv), [=](auto a, auto b) {
                const auto v = round_computed_to<T>(a + b) * scale;
                return v * v;
              });
            });
            core.each_row([=](std::size_t i) TIGON_LAMBDA {
              if (p[i] != A(1)) q[i] = detail::rstd_of_scaled(static_cast<A>(sum[i]) / n + eps * p[i] * p[i], p[i]);
            });
          }
          core.pass(ub::reads(xt, rt, wt), ub::writes(st, yt),
                    [=](auto row, auto xv, auto rv, auto wv, auto sv, auto yv) TIGON_LAMBDA {
                      const A scale = q[row.i];
                      row.map(reads(xv, rv, wv), writes(sv, yv), [=](auto a, auto b, auto g) {
                        const auto v = round_computed_to<T>(a + b);
                        return pack{v, detail::cast_normalised<C, T>(v * scale) * (g + offset)};
                      });
                    });
          core.store(q);
        },
        x, r, w, y, s, ub::column(rstd), ub::local<A>{}, ub::local<double>{});
  }

  template <backend B, casting C, element T, class Weight, element W, class A>
  static void backward_blocks(matrix_view<const T> dy, matrix_view<const T> ds, matrix_view<const T> s, Weight w,
                              const A* rstd, matrix_view<T> dx, matrix_view<T> dr, vector_view<W> dw,
                              rms_norm_options opt, context& ctx) {
    using plan = ub::plan<B, op::fused_add_rms_norm, tiling::pass::backward, A>;
    const A n = static_cast<A>(s.cols), offset = static_cast<A>(opt.offset);
    ub::for_row_blocks_with_partials<plan, double>(
        ctx, s.rows, s.cols, plan::cut_of(s.cols),
        [=](auto& core, double* c, auto&, auto& dt, auto&, auto& st, auto& wt, auto& rt, auto&, auto&) TIGON_LAMBDA {
          core.each_row([=](std::size_t i) TIGON_LAMBDA { c[i] = 0; });
          core.pass(ub::reads(dt, st, wt), ub::writes(), [=](auto row, auto dv, auto sv, auto wv) TIGON_LAMBDA {
            c[row.i] += row.sum(reads(dv, sv, wv), [=](auto d, auto v, auto g) { return d * (g + offset) * v; });
          });
          core.fetch(rt);
          core.each_row([=](std::size_t i) TIGON_LAMBDA { c[i] = rt[i] * static_cast<A>(c[i]) / n * rt[i] * rt[i]; });
        },
        [=](auto& core, const double* c, auto& pt, auto& dt, auto& et, auto& st, auto& wt, auto& rt, auto& dxt,
            auto& drt) TIGON_LAMBDA {
          core.fetch(rt);
          core.part(ub::reads(pt, dt, et, st, wt), ub::writes(dxt, drt),
                    [=](auto row, auto pv, auto dv, auto ev, auto sv, auto wv, auto dxv, auto drv) TIGON_LAMBDA {
                      const A r = detail::canonical(rt[row.i]), k = static_cast<A>(c[row.i]);
                      row.map(reads(dv, ev, sv, wv, pv), writes(dxv, drv, pv),
                              [=](auto d, auto e, auto v, auto g, auto acc) {
                                const auto to_x = d * (g + offset) * r - v * k + e;
                                return pack{to_x, to_x, fma(d, detail::cast_normalised_again<C, T>(v * r), acc)};
                              });
                    });
        },
        std::tuple(parameter_gradient<W>{dw, opt.dw}), dy, ds, s, w, ub::column(rstd), dx, dr);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_FUSED_ADD_RMS_NORM_HPP
