// The generic kernel of swiglu_fused.
#ifndef TIGON_OPS_GATE_SWIGLU_FUSED_KERNEL_HPP
#define TIGON_OPS_GATE_SWIGLU_FUSED_KERNEL_HPP

#include <tigon/ops/gate/swiglu_fused_options.hpp>
#include <tigon/ops/gate/swiglu_kernel.hpp>

namespace tigon {

template <>
struct kernel<op::swiglu_fused, backends::generic> {
  template <class>
  using saved = no_state;
  using apart = kernel<op::swiglu, backends::generic>;

  template <backend B, element T>
  static void forward(in_matrix<T> gate_up, matrix_view<T> y, gate_layout layout, swiglu_options opt, context& ctx) {
    const std::size_t n = y.cols;
    if (layout == gate_layout::halves)
      return kernel_for<op::swiglu, B>::template forward<B, T>(gate_up.cols_from(0, n), gate_up.cols_from(n, n), y, opt,
                                                               ctx);
    apart::with_program<B, T>(opt, [&]<class P>(P program) {
      map_rows<B>(ctx, program, reads(pair_column<0>(gate_up), pair_column<1>(gate_up)),
                  writes(detail::gate_output<P>(y)));
    });
  }

  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> gate_up, matrix_view<T> dgate_up, gate_layout layout,
                       swiglu_options opt, context& ctx) {
    const std::size_t n = dy.cols;
    if (layout == gate_layout::halves)
      return kernel_for<op::swiglu, B>::template backward<B, T>(dy, gate_up.cols_from(0, n), gate_up.cols_from(n, n),
                                                                dgate_up.cols_from(0, n), dgate_up.cols_from(n, n), opt,
                                                                ctx);
    apart::with_program<B, T>(opt, [&]<class P>(P program) {
      map_rows<B>(ctx, program, reads(dy, pair_column<0>(gate_up), pair_column<1>(gate_up)),
                  writes(detail::gate_output<P>(pair_columns<T>{dgate_up})));
    });
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_GATE_SWIGLU_FUSED_KERNEL_HPP
