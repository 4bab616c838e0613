// RMSNorm: short rows several at a time with the weight beside them, long rows in blocks of columns, twice.
#ifndef TIGON_BACKENDS_ASCEND_RMS_NORM_HPP
#define TIGON_BACKENDS_ASCEND_RMS_NORM_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/rms_norm.hpp>

namespace tigon {

template <>
struct kernel<op::rms_norm, backends::ascend> : ub::kernel_on_tiles<op::rms_norm> {
  using on_tiles = ub::kernel_on_tiles<op::rms_norm>;

  /// Rows of a few columns are computed in f64, as the parent does, who takes those without dw.
  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> rstd,
                       matrix_view<T> dx, vector_view<W> dw, rms_norm_options opt, context& ctx) {
    using plan = ub::plan<B, op::rms_norm, tiling::pass::backward, accumulator_t<T>>;
    if (x.cols > lanes::narrow || !dw) return on_tiles::backward<B, T>(dy, x, w, rstd, dx, dw, opt, ctx);
    opt = detail::options_for_weight(opt, w);
    detail::with_casting<T>(opt.casting, [&](auto rule) {
      const auto program = lanes::gradient_of<rule.value, T, accumulator_t<T>, true>(x.cols, opt);
      ub::for_row_blocks_with_partials<plan, std::byte>(
          ctx, x.rows, x.cols, plan::cut_of(x.cols), [](auto&, std::byte*, auto&...) TIGON_LAMBDA {},
          [=](auto& core, const std::byte*, auto& pt, auto& dt, auto& xt, auto& wt, auto& rt, auto& dxt) TIGON_LAMBDA {
            core.fetch(rt);
            core.part(ub::reads(pt, dt, xt, wt), ub::writes(dxt),
                      [=, r = rt.data](auto row, auto pv, auto dv, auto xv, auto wv, auto dxv) TIGON_LAMBDA {
                        using view = vector_view<const T>;
                        const detail::rms_norm_reads in{view(dv), view(xv), vector_view<const W>(wv), r};
                        lanes::row_in_f64(row, program, in, dxv, pv);
                      });
          },
          std::tuple(parameter_gradient<W>{dw, opt.dw}), dy, x, or_ones(w), ub::column(rstd.data()), dx);
    });
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_RMS_NORM_HPP
