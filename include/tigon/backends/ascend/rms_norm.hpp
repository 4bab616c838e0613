// RMSNorm: short rows several at a time with the weight beside them, long rows in blocks of columns, twice.
#ifndef TIGON_BACKENDS_ASCEND_RMS_NORM_HPP
#define TIGON_BACKENDS_ASCEND_RMS_NORM_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/rms_norm.hpp>

namespace tigon {

template <>
struct kernel<op::rms_norm, backends::ascend> {
  template <class A>
  using saved = std::span<A>;  // rstd

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> w, matrix_view<T> y, std::span<accumulator_t<T>> rstd,
                      rms_norm_options opt, context& ctx) {
    opt = detail::options_for_weight(opt, w);
    detail::with_casting<T>(opt.casting,
                            [&](auto rule) { forward_blocks<B, rule.value>(x, or_ones(w), y, rstd.data(), opt, ctx); });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> rstd,
                       matrix_view<T> dx, vector_view<W> dw, rms_norm_options opt, context& ctx) {
    opt = detail::options_for_weight(opt, w);
    if (!detail::holds_products(rstd.data(), x.rows))
      return kernel<op::rms_norm, backends::generic>::backward_in_f64<B, T>(x.rows, dy, x, {}, w, rstd.data(), dx, dw,
                                                                            opt, ctx);
    detail::with_casting<T>(opt.casting, [&](auto rule) {
      backward_blocks<B, rule.value>(dy, x, or_ones(w), rstd.data(), dx, dw, opt, ctx);
    });
  }

  template <backend B, casting C, element T, class Weight, class A>
  static void forward_blocks(matrix_view<const T> x, Weight w, matrix_view<T> y, A* rstd, rms_norm_options opt,
                             context& ctx) {
    using plan = ub::plan<B, op::rms_norm, tiling::pass::forward, A>;
    const A n = static_cast<A>(x.cols), eps = static_cast<A>(opt.eps), offset = static_cast<A>(opt.offset);
    ub::for_row_blocks<plan>(
        ctx, x.rows, x.cols, plan::cut_of(x.cols),
        [=](auto& core, auto& xt, auto& wt, auto& yt, auto& r, auto& p, auto& sum) TIGON_LAMBDA {
          core.each_row([=](std::size_t i) TIGON_LAMBDA { sum[i] = 0; });
          core.pass(ub::reads(xt), ub::writes(), [=](auto row, auto xv) TIGON_LAMBDA {
            sum[row.i] += row.sum(reads(xv), [](auto v) { return v * v; });
          });
          // Rows whose squares leave the range are multiplied by a power of two.
          bool held = true;
          core.each_row([&](std::size_t i) TIGON_LAMBDA {
            const A square = static_cast<A>(sum[i]) / n + eps;
            p[i] = detail::scale_for_squares<A>(square);
            held &= p[i] == A(1);
            r[i] = math::rsqrt(square), sum[i] = 0;
          });
          if (!held) {
            core.pass(ub::reads(xt), ub::writes(), [=](auto row, auto xv) TIGON_LAMBDA {
              const A scale = p[row.i];
              if (scale == A(1)) return;
              sum[row.i] += row.sum(reads(xv), [=](auto v) {
                const auto c = v * scale;
                return c * c;
              });
            });
            core.each_row([=](std::size_t i) TIGON_LAMBDA {
              if (p[i] != A(1)) r[i] = detail::rstd_of_scaled(static_cast<A>(sum[i]) / n + eps * p[i] * p[i], p[i]);
            });
          }
          core.pass(ub::reads(xt, wt), ub::writes(yt), [=](auto row, auto xv, auto wv, auto yv) TIGON_LAMBDA {
            const A s = r[row.i];
            row.map(reads(xv, wv), writes(yv),
                    [=](auto v, auto g) { return detail::cast_normalised<C, T>(v * s) * (g + offset); });
          });
          core.store(r);
        },
        x, w, y, ub::column(rstd), ub::local<A>{}, ub::local<double>{});
  }

  template <backend B, casting C, element T, class Weight, element W, class A>
  static void backward_blocks(matrix_view<const T> dy, matrix_view<const T> x, Weight w, const A* rstd,
                              matrix_view<T> dx, vector_view<W> dw, rms_norm_options opt, context& ctx) {
    using plan = ub::plan<B, op::rms_norm, tiling::pass::backward, A>;
    using narrow = kernel<op::rms_norm, backends::generic>;
    const A n = static_cast<A>(x.cols), offset = static_cast<A>(opt.offset);
    if (x.cols <= narrow::narrow) return backward_narrow<B, C, T>(dy, x, w, dx, dw, opt, ctx);
    ub::for_row_blocks_with_partials<plan, double>(
        ctx, x.rows, x.cols, plan::cut_of(x.cols),
        [=](auto& core, double* c, auto&, auto& dt, auto& xt, auto& wt, auto& rt, auto&) TIGON_LAMBDA {
          core.each_row([=](std::size_t i) TIGON_LAMBDA { c[i] = 0; });
          core.pass(ub::reads(dt, xt, wt), ub::writes(), [=](auto row, auto dv, auto xv, auto wv) TIGON_LAMBDA {
            c[row.i] += row.sum(reads(dv, xv, wv), [=](auto d, auto v, auto g) { return d * (g + offset) * v; });
          });
          core.fetch(rt);
          core.each_row([=](std::size_t i) TIGON_LAMBDA { c[i] = rt[i] * static_cast<A>(c[i]) / n * rt[i] * rt[i]; });
        },
        [=](auto& core, const double* c, auto& pt, auto& dt, auto& xt, auto& wt, auto& rt, auto& dxt) TIGON_LAMBDA {
          core.fetch(rt);
          core.part(
              ub::reads(pt, dt, xt, wt), ub::writes(dxt),
              [=](auto row, auto pv, auto dv, auto xv, auto wv, auto dxv) TIGON_LAMBDA {
                const A r = detail::canonical(rt[row.i]), k = static_cast<A>(c[row.i]);
                row.map(reads(dv, xv, wv, pv), writes(dxv, pv), [=](auto d, auto v, auto g, auto acc) {
                  return pack{d * (g + offset) * r - v * k, fma(d, detail::cast_normalised_again<C, T>(v * r), acc)};
                });
              });
        },
        std::tuple(parameter_gradient<W>{dw, opt.dw}), dy, x, w, ub::column(rstd), dx);
  }

  /// In a row of a few columns the two terms of dx nearly cancel: everything anew in f64, as the parent does.
  template <backend B, casting C, element T, class Weight, element W>
  static void backward_narrow(matrix_view<const T> dy, matrix_view<const T> x, Weight w, matrix_view<T> dx,
                              vector_view<W> dw, rms_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::rms_norm, tiling::pass::backward, A>;
    const A offset = static_cast<A>(opt.offset);
    const double eps = opt.eps;
    ub::for_row_blocks_with_partials<plan, A>(
        ctx, x.rows, x.cols, plan::cut_of(x.cols), [](auto&, A*, auto&...) TIGON_LAMBDA {},
        [=](auto& core, const A*, auto& pt, auto& dt, auto& xt, auto& wt, auto& dxt) TIGON_LAMBDA {
          core.part(ub::reads(pt, dt, xt, wt), ub::writes(dxt),
                    [=](auto row, auto pv, auto dv, auto xv, auto wv, auto dxv) TIGON_LAMBDA {
                      const double n = static_cast<double>(row.cols);
                      const auto weight = [=](std::size_t j) TIGON_LAMBDA {
                        return static_cast<double>(row.at(wv, j)) + static_cast<double>(offset);
                      };
                      double square = 0, k = 0;
                      for (std::size_t j = 0; j < row.cols; ++j) {
                        const double v = row.at(xv, j);
                        square += v * v;
                        k += row.at(dv, j) * weight(j) * v;
                      }
                      const double r = math::rsqrt(square / n + eps), c = r * r * k / n;
                      for (std::size_t j = 0; j < row.cols; ++j) {
                        const double v = row.at(xv, j);
                        const A xh = static_cast<A>(v * r);
                        pv.data[j] += row.at(dv, j) * (C == casting::llama ? static_cast<A>(static_cast<T>(xh)) : xh);
                        dxv.data[j] = static_cast<T>(static_cast<A>(r * (row.at(dv, j) * weight(j) - v * c)));
                      }
                    });
        },
        std::tuple(parameter_gradient<W>{dw, opt.dw}), dy, x, w, dx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_RMS_NORM_HPP
