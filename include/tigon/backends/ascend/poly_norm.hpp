// PolyNorm: short rows several at a time, long rows in blocks of columns, twice; rows that f32 does not hold in f64.
#ifndef TIGON_BACKENDS_ASCEND_POLY_NORM_HPP
#define TIGON_BACKENDS_ASCEND_POLY_NORM_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/poly_norm.hpp>

namespace tigon {

template <>
struct kernel<op::poly_norm, backends::ascend> : ub::kernel_on_tiles<op::poly_norm> {
  // Rows in f64: through the buffer where they fit.
  template <backend B, element T, class A>
  static void forward_in_f64(matrix_view<const T> x, detail::of_powers<A> w, A bias, matrix_view<T> y,
                             detail::of_powers<A>* rstd, double eps, context& ctx) {
    using plan = ub::plan<B, op::poly_norm, tiling::pass::forward, A>;
    if (x.cols > plan::block) return lanes::forward_in_f64<B>(x, w, bias, y, rstd, eps, ctx);
    ub::for_row_blocks<plan>(
        ctx, x.rows, x.cols, plan::cut_of(x.cols),
        [=](auto& core, auto& xt, auto& yt) TIGON_LAMBDA {
          core.part(ub::reads(xt), ub::writes(yt), [=, first = core.row](auto row, auto xv, auto yv) TIGON_LAMBDA {
            detail::of_powers<A>& r = rstd[first + row.i];
            const bool extreme = !lanes::holds(r[0]);
            if (extreme) r = lanes::forward_row_in_f64(row, xv, w, bias, yv, eps);
            return extreme;
          });
        },
        x, y);
  }
  template <backend B, element T, class A>
  static void backward_in_f64(matrix_view<const T> dy, matrix_view<const T> x, matrix_view<T> dx,
                              detail::poly_norm_in_f64<A> of, context& ctx) {
    using plan = ub::plan<B, op::poly_norm, tiling::pass::backward, A>;
    if (x.cols > plan::block) return lanes::backward_in_f64<B>(dy, x, dx, of, ctx);
    ub::for_row_blocks<plan>(
        ctx, x.rows, x.cols, plan::cut_of(x.cols),
        [=](auto& core, auto& dt, auto& xt, auto& dxt, auto& wide_dy, auto& wide_x) TIGON_LAMBDA {
          core.part(ub::reads(dt, xt, wide_dy, wide_x), ub::writes(dxt),
                    [=, first = core.row](auto row, auto dv, auto xv, auto wdv, auto wxv, auto dxv) TIGON_LAMBDA {
                      const std::size_t i = first + row.i;
                      const bool wide = of.all || !lanes::holds(of.rstd[i][0]);
                      if (wide) lanes::backward_row_in_f64(row, i, dv, xv, dxv, wdv, wxv, of);
                      return wide;
                    });
        },
        dy, x, dx, ub::scratch<double>{}, ub::scratch<double>{});
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_POLY_NORM_HPP
