// SwiGLU gate of gate and up in one buffer, forward and backward.
#ifndef TIGON_OPS_SWIGLU_FUSED_HPP
#define TIGON_OPS_SWIGLU_FUSED_HPP

#include <tigon/ops/swiglu.hpp>

namespace tigon {

/// Where gate and up lie in the one buffer that a projection of both leaves.
enum class gate_layout {
  halves,       ///< the gate in the first half of the columns, up in the second (Megatron, Phi-3)
  interleaved,  ///< the gate in even columns, up in odd ones (gpt-oss)
};

namespace op {
struct swiglu_fused {
  static constexpr std::string_view name = "swiglu_fused";
};
}  // namespace op

/// swiglu (see swiglu_options) of the gate a and the up projection b in one buffer.
///
///   halves:       a[i,j] = gate_up[i,j],    b[i,j] = gate_up[i,cols+j]
///   interleaved:  a[i,j] = gate_up[i,2j],   b[i,j] = gate_up[i,2j+1]
///   dgate_up has da where gate_up has a, db where it has b.
///
/// Formula    docs/formulas/swiglu.md.
/// Shapes     gate_up, dgate_up [rows, 2 cols]; c, dc [rows, cols]; both may be 0.
/// Types      f32, bf16, f16, f64, one for all.
/// Precision  as swiglu.
/// Writes     c, dgate_up.
/// Aliasing   backward: dgate_up may be gate_up; a second backward would then read gradients. forward: none; for c over
///            the gate use swiglu_forward with two views. Otherwise any layout in which no element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (as swiglu); before the first write.
/// Edges      as swiglu.
/// Max error  that of swiglu, and its bits (tests/ops/swiglu_fused_test.cpp).
using swiglu_fused_options = swiglu_options;

template <>
struct kernel<op::swiglu_fused, backends::generic> {
  template <class>
  using saved = no_state;
  using gate = kernel<op::swiglu, backends::generic>;

  template <backend B, element T>
  static void forward(in_matrix<T> gate_up, matrix_view<T> c, gate_layout layout, swiglu_options opt, context& ctx) {
    const std::size_t n = c.cols;
    if (layout == gate_layout::interleaved)
      gate::with_form<B, T>(opt, [&](auto form) { forward_pairs<B>(form, gate_up, c, ctx); });
    else
      kernel_for<op::swiglu, B>::template forward<B, T>(gate_up.cols_from(0, n), gate_up.cols_from(n, n), c, opt, ctx);
  }

  template <backend B, element T>
  static void backward(in_matrix<T> dc, in_matrix<T> gate_up, matrix_view<T> dgate_up, gate_layout layout,
                       swiglu_options opt, context& ctx) {
    const std::size_t n = dc.cols;
    if (layout == gate_layout::interleaved)
      gate::with_form<B, T>(opt, [&](auto form) { backward_pairs<B>(form, dc, gate_up, dgate_up, ctx); });
    else
      kernel_for<op::swiglu, B>::template backward<B, T>(dc, gate_up.cols_from(0, n), gate_up.cols_from(n, n),
                                                         dgate_up.cols_from(0, n), dgate_up.cols_from(n, n), opt, ctx);
  }

  template <backend B, element T, class Form>
  static void forward_pairs(Form form, matrix_view<const T> gate_up, matrix_view<T> c, context& ctx) {
    for_rows<B, accumulator_t<T>>(ctx, c.rows, c.cols, [=] TIGON_FN(auto row) {
      row.map(reads(even_columns<const T>{gate_up}, odd_columns<const T>{gate_up}), writes(form.output(c)), form);
    });
  }

  template <backend B, element T, class Form>
  static void backward_pairs(Form form, matrix_view<const T> dc, matrix_view<const T> gate_up, matrix_view<T> dgate_up,
                             context& ctx) {
    for_rows<B, accumulator_t<T>>(ctx, dc.rows, dc.cols, [=] TIGON_FN(auto row) {
      row.map(reads(dc, even_columns<const T>{gate_up}, odd_columns<const T>{gate_up}),
              writes(form.output(pair_columns<T>{dgate_up})), form);
    });
  }
};

/// c from gate_up. See swiglu_fused_options for the contract.
template <class B = default_backend, class T>
void swiglu_fused_forward(in_matrix<T> gate_up, matrix_view<T> c, gate_layout layout = gate_layout::halves,
                          swiglu_fused_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  arguments args("swiglu_fused_forward");
  args.in("gate_up", gate_up, c.rows, 2 * c.cols);
  args.out("c", c);
  detail::expect_swiglu_options(args, opt);
  args.check();
  kernel_for<op::swiglu_fused, B>::template forward<B, T>(gate_up, c, layout, opt, ctx);
}

/// dgate_up from dc and gate_up. See swiglu_fused_options for the contract.
template <class B = default_backend, class T>
void swiglu_fused_backward(in_matrix<T> dc, in_matrix<T> gate_up, matrix_view<T> dgate_up,
                           gate_layout layout = gate_layout::halves, swiglu_fused_options opt = {},
                           context& ctx = default_context()) {
  static_assert(admits<B, T>());
  arguments args("swiglu_fused_backward");
  args.in("dc", dc);
  args.in("gate_up", gate_up, dc.rows, 2 * dc.cols);
  args.out("dgate_up", dgate_up, dc.rows, 2 * dc.cols).may_be("gate_up");
  detail::expect_swiglu_options(args, opt);
  args.check();
  kernel_for<op::swiglu_fused, B>::template backward<B, T>(dc, gate_up, dgate_up, layout, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SWIGLU_FUSED_HPP
