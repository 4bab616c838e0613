// Dynamic tanh: a block of columns keeps its gamma, its beta and its partial sums while rows pass under it.
#ifndef TIGON_BACKENDS_ASCEND_DYT_HPP
#define TIGON_BACKENDS_ASCEND_DYT_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/dyt.hpp>

#include <numeric>

namespace tigon {

template <>
struct kernel<op::dyt, backends::ascend> {
  using lanes = kernel<op::dyt, backends::generic>;
  template <class>
  using saved = no_state;

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> alpha, in_vector<W> gamma, in_vector<W> beta, matrix_view<T> y,
                      context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::dyt, tiling::pass::forward, A>;
    detail::with_tanh<B, T>(static_cast<A>(alpha.data[0]), [&](auto tanh_of) {
      ub::for_strips<plan>(
          ctx, x.rows, x.cols, ub::strips(plan::cut_of(x.cols), x.rows, x.cols),
          [=](auto& core, std::size_t, auto blocks, auto& xt, auto& gt, auto& bt, auto& yt) TIGON_LAMBDA {
            blocks([&]() TIGON_LAMBDA {
              core.part(ub::reads(xt, gt, bt), ub::writes(yt),
                        [=](auto row, auto xv, auto gv, auto bv, auto yv) TIGON_LAMBDA {
                          row.map(reads(xv, gv, bv), writes(yv),
                                  [=](auto v, auto g, auto b) { return fma(tanh_of(v), g, b); });
                        });
            });
          },
          x, gamma, or_zeros(beta), y);
    });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> alpha, in_vector<W> gamma, matrix_view<T> dx,
                       vector_view<W> dalpha, vector_view<W> dgamma, vector_view<W> dbeta, dyt_options opt,
                       context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::dyt, tiling::pass::backward, A>;
    const A factor = static_cast<A>(alpha.data[0]), twice = 2 * factor;
    // No more partial rows than the door has asked memory for: three gradients, of which one needs a number a strip.
    const std::size_t stride = workspace::padded<A>(x.cols);
    const std::size_t reserved =
        x.cols == 0 ? 0 : simd::partials_workspace<B, A>(x.rows, x.cols, 3) / (3 * stride * sizeof(A));
    ub::cut by = plan::cut_of(x.cols);
    by.rows = std::min(by.rows, simd::plain_rows);
    ub::strips s(by, x.rows, x.cols, reserved);
    const ub::sums_of_programs sums(s.down, s.row_blocks, by.rows, reserved);
    s.down = sums.programs;
    const std::size_t step = sums.rows * 2 * stride;
    using V = simd::vec<typename B::engine, A>;
    workspace::frame frame(ctx.workspace());
    A* partials = frame.template take<A>(s.down * step);
    double* by_strip = frame.template take<double>(s.count());
    const bool in_f64 = lanes::is_small(x.rows, x.cols);
    if (dalpha && in_f64) sum_in_f64<plan>(dy, x, static_cast<double>(factor), gamma, s, by_strip, frame, ctx);
    ub::for_strips<plan>(
        ctx, x.rows, x.cols, s,
        [=](auto& core, std::size_t strip, auto blocks, auto& pgt, auto& pbt, auto& dt, auto& xt, auto& gt, auto& dxt)
            TIGON_LAMBDA {
              A* own = partials + strip / s.across * step;
              ub::program_sums<V> partial_rows(own, 2, stride, sums.rows > 1, core.col, core.col_count);
              core.point(pgt, ub::partial<A>{own}), core.point(pbt, ub::partial<A>{own + stride});
              const auto flush = [&]() TIGON_LAMBDA { core.flush(pgt), core.flush(pbt); };
              double sum = 0;
              blocks([&]() TIGON_LAMBDA {
                partial_rows.before(by.rows, flush);
                core.part(ub::reads(pgt, pbt, dt, xt, gt), ub::writes(dxt),
                          [&](auto row, auto pgv, auto pbv, auto dv, auto xv, auto gv, auto dxv) TIGON_LAMBDA {
                            sum += row.map_sum(reads(dv, xv, gv, pgv, pbv), writes(dxv, pgv, pbv),
                                               [=](auto d, auto v, auto g, auto sg, auto sb) {
                                                 const auto [t, slope] = simd::tanh_and_slope(v * twice);
                                                 const auto q = slope * d;
                                                 return pack{q * (g * factor), fma(d, t, sg), sb + d, v * (q * g)};
                                               });
                          });
              });
              partial_rows.finish(flush);
              if (!in_f64) by_strip[strip] = sum;
            },
        ub::partial<A>{partials}, ub::partial<A>{partials}, dy, x, gamma, dx);
    const auto combine = [&](std::size_t k, vector_view<W> gradient) {
      const matrix_view<const A> of_strips(partials + k * stride, s.down, x.cols, step);
      if (x.cols != 0) ub::combine<plan>(ctx, of_strips, parameter_gradient<W>{gradient, opt.dparams});
    };
    combine(0, dgamma), combine(1, dbeta);
    if (!dalpha) return;
    double sum = opt.dparams == gradient::accumulate ? static_cast<double>(static_cast<A>(dalpha.data[0])) : 0;
    sum = std::accumulate(by_strip, by_strip + s.count(), sum);
    dalpha.data[0] = static_cast<W>(static_cast<A>(sum));
  }

  /// The terms of dalpha cancel. Where there are few, their sum is made anew in f64, as the parent does.
  template <class Plan, element T, element W>
  static void sum_in_f64(matrix_view<const T> dy, matrix_view<const T> x, double alpha, vector_view<const W> gamma,
                         ub::strips s, double* by_strip, workspace::frame& frame, context& ctx) {
    double* wide = frame.template take<double>(x.cols);  // gamma, so that lanes are of f64
    for (std::size_t j = 0; j < x.cols; ++j) wide[j] = static_cast<accumulator_t<T>>(gamma.data[j]);
    ub::for_strips<Plan>(
        ctx, x.rows, x.cols, s,
        [=](auto& core, std::size_t strip, auto blocks, auto& dt, auto& xt, auto& gt) TIGON_LAMBDA {
          double sum = 0;
          blocks([&]() TIGON_LAMBDA {
            core.part(ub::reads(dt, xt, gt), ub::writes(), [&](auto row, auto dv, auto xv, auto gv) TIGON_LAMBDA {
              sum += row.sum(reads(gv, dv, xv), [=](auto g, auto d, auto v) {
                return simd::tanh_and_slope(v * (2 * alpha))[1] * d * g * v;
              });
            });
          });
          by_strip[strip] = sum;
        },
        dy, x, vector_view<const double>{wide, x.cols});
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_DYT_HPP
