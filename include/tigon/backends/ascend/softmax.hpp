// Softmax: short rows several at a time; where a row has several blocks its exponentials are made twice, because they
// cannot stay.
#ifndef TIGON_BACKENDS_ASCEND_SOFTMAX_HPP
#define TIGON_BACKENDS_ASCEND_SOFTMAX_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/softmax.hpp>

namespace tigon {

template <>
struct kernel<op::softmax, backends::ascend> : ub::kernel_on_tiles<op::softmax> {
  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, softmax_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::softmax, tiling::pass::forward, A>;
    const A scale = static_cast<A>(opt.scale);
    ub::for_row_blocks<plan>(
        ctx, x.rows, x.cols, plan::cut_of(x.cols),
        [=](auto& core, auto& xt, auto& yt, auto& et, auto& m, auto& sum) TIGON_LAMBDA {
          core.each_row([=](std::size_t i) TIGON_LAMBDA { m[i] = -std::numeric_limits<A>::infinity(), sum[i] = 0; });
          core.pass(ub::reads(xt), ub::writes(), [=](auto row, auto xv) TIGON_LAMBDA {
            m[row.i] = math::max(m[row.i], row.max(reads(xv), [](auto v) { return v; }));
          });
          const auto exponentials = [=](auto row, auto xv, auto ev) TIGON_LAMBDA {
            const A top = m[row.i];
            return row.map_sum(reads(xv), writes(ev), [=](auto v) {
              const auto p = exp_nonpositive((v - top) * scale);
              return pack{p, p};
            });
          };
          core.pass(ub::reads(xt, et), ub::writes(),
                    [=](auto row, auto xv, auto ev) TIGON_LAMBDA { sum[row.i] += exponentials(row, xv, ev); });
          const bool gone = !core.whole_rows();
          core.pass(ub::reads(xt, et), ub::writes(yt), [=](auto row, auto xv, auto ev, auto yv) TIGON_LAMBDA {
            if (gone) exponentials(row, xv, ev);
            const A r = A(1) / static_cast<A>(sum[row.i]);
            row.map(reads(ev), writes(yv), [=](auto p) { return p * r; });
          });
        },
        x, y, ub::scratch<A>{}, ub::local<A>{}, ub::local<double>{});
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_SOFTMAX_HPP
