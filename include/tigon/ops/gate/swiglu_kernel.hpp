// The generic kernel of swiglu.
#ifndef TIGON_OPS_GATE_SWIGLU_KERNEL_HPP
#define TIGON_OPS_GATE_SWIGLU_KERNEL_HPP

#include <tigon/ops/gate/gate_gradients.hpp>
#include <tigon/ops/gate/swiglu_options.hpp>
#include <tigon/ops/gate/swiglu_program.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// The default options as a type: an operator that contains a gate passes it, and no other form is compiled.
struct default_swiglu : swiglu_options {};
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::swiglu, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, class Options>
  static void forward(in_matrix<T> gate, in_matrix<T> up, matrix_view<T> y, Options opt, context& ctx) {
    with_program<B, T>(opt, [&]<class P>(P program) {
      map_rows<B>(ctx, program, reads(gate, up), writes(detail::gate_output<P>(y)));
    });
  }

  template <backend B, element T, class Options>
  static void backward(in_matrix<T> dy, in_matrix<T> gate, in_matrix<T> up, matrix_view<T> dgate, matrix_view<T> dup,
                       Options opt, context& ctx) {
    with_program<B, T>(opt, [&]<class P>(P program) {
      map_rows<B>(ctx, program, reads(dy, gate, up), writes(detail::gate_output<P>(dgate), dup));
    });
  }

  /// run(program) with the program that the options select.
  template <backend B, element T, class Run>
  static void with_program(const swiglu_options& opt, Run run) {
    with_form<T, detail::result_bits<B, T>>(opt, run);
  }
  template <backend B, element A, element T, class Run>
  static void with_program(const detail::gate_of_stored<T, swiglu_options>& opt, Run run) {
    with_form<T, detail::result_bits<B, A>>(opt, run);
  }
  template <element T, std::size_t bits, class Run>
  static void with_form(const swiglu_options& opt, Run run) {
    if (opt.limit != std::numeric_limits<double>::infinity() || opt.slope != 1 || opt.up_offset != 0) {
      const detail::clamped_swiglu_program<T, bits, true> bare(opt);
      if (bare.is_bare()) return run(bare);
      return run(detail::clamped_swiglu_program<T, bits, false>(opt));
    }
    const detail::scaled_swiglu_program<T, bits> scaled(opt);
    if (scaled.scales()) return run(scaled);
    run(detail::swiglu_program<T, bits>());
  }

  template <backend B, element T, class Run>
  static void with_program(const detail::default_swiglu&, Run run) {
    run(detail::swiglu_program<T, detail::result_bits<B, T>>());
  }
};

namespace detail {
inline namespace TIGON_ABI {
template <class A>
void expect_swiglu_options(const expects& expect, const swiglu_options& opt) {
  expect.finite<A>("gate_multiplier", opt.gate_multiplier);
  expect.finite<A>("down_multiplier", opt.down_multiplier);
  if (opt.limit != std::numeric_limits<double>::infinity())
    expect.number<A>(opt.limit > 0, "limit", opt.limit, "a number above 0");
  expect.above_zero<A>("slope", opt.slope);
  expect.finite<A>("up_offset", opt.up_offset);
  expect.number<A>(true, "gate_multiplier down_multiplier", opt.gate_multiplier * opt.down_multiplier, "");
  expect.made<A>("64 slope", 64 * opt.slope);  // of parts of log2(e)
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_GATE_SWIGLU_KERNEL_HPP
