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
    const detail::softmax_program<detail::result_bits<B, T>, A> program{static_cast<A>(opt.scale)};
    map_below_max<B>(ctx, program, x, y);
  }

  /// Below the row's maximum, which is looked for first, with sums of blocks in f64. What is kept stays in the buffer
  /// where a row has one block, and is made twice where it has several.
  template <backend B, class Program, element T>
  static void map_below_max(context& ctx, Program program, matrix_view<const T> x, matrix_view<T> y) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::softmax, tiling::pass::forward, A>;
    ub::for_row_blocks<plan>(
        ctx, x.rows, x.cols, ub::cut_of_rows<plan, op::softmax, tiling::pass::forward>(x.rows, x.cols),
        [=](auto& core, auto& xt, auto& yt, auto& kept, auto& top, auto& sum) TIGON_LAMBDA {
          core.each_row([=](std::size_t i) TIGON_LAMBDA { top[i] = -std::numeric_limits<A>::infinity(), sum[i] = 0; });
          core.pass(ub::reads(xt), ub::writes(), [=](auto row, auto xv) TIGON_LAMBDA {
            top[row.i] = math::max(top[row.i], row.max(tigon::reads(xv), [](auto v) { return v; }));
          });
          const auto reduce = [=](auto row, auto xv, auto ev) TIGON_LAMBDA {
            return row.map_sum(tigon::reads(xv), tigon::writes(ev), [=, below = top[row.i]](auto v) {
              const auto e = program.reduce(below, v);
              return simd::pack{e, e};
            });
          };
          core.pass(ub::reads(xt, kept), ub::writes(),
                    [=](auto row, auto xv, auto ev) TIGON_LAMBDA { sum[row.i] += reduce(row, xv, ev); });
          const bool gone = !core.whole_rows();
          core.pass(ub::reads(xt, kept), ub::writes(yt), [=](auto row, auto xv, auto ev, auto yv) TIGON_LAMBDA {
            if (gone) reduce(row, xv, ev);
            const A value = program.finish(static_cast<A>(sum[row.i]), A(1));
            row.map(tigon::reads(ev), tigon::writes(yv), [=](auto e) { return program.map(value, e); });
          });
        },
        x, y, ub::scratch<A>{}, ub::local<A>{}, ub::local<double>{});
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_SOFTMAX_HPP
