// The generic kernel of geglu.
#ifndef TIGON_OPS_GATE_GEGLU_KERNEL_HPP
#define TIGON_OPS_GATE_GEGLU_KERNEL_HPP

#include <tigon/ops/gate/gate_gradients.hpp>
#include <tigon/ops/gate/geglu_options.hpp>
#include <tigon/ops/gate/geglu_program.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// The default options as a type: an operator that contains a gate passes it, and no other form is compiled.
struct default_geglu : geglu_options {};
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::geglu, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, class Options>
  static void forward(in_matrix<T> gate, in_matrix<T> up, matrix_view<T> y, Options opt, context& ctx) {
    with_program<B, T>(opt, [&](auto program) { map_rows<B>(ctx, program, reads(gate, up), writes(y)); });
  }

  template <backend B, element T, class Options>
  static void backward(in_matrix<T> dy, in_matrix<T> gate, in_matrix<T> up, matrix_view<T> dgate, matrix_view<T> dup,
                       Options opt, context& ctx) {
    with_program<B, T>(opt, [&](auto program) { map_rows<B>(ctx, program, reads(dy, gate, up), writes(dgate, dup)); });
  }

  /// run(program) with the program that the options select. Rounding to the type of the accumulator is none.
  template <backend B, element T, class Run>
  static void with_program(const geglu_options& opt, Run run) {
    with_form<T, detail::result_bits<B, T>>(opt, run);
  }
  template <backend B, element A, element T, class Run>
  static void with_program(const detail::gate_of_stored<T, geglu_options>& opt, Run run) {
    with_form<T, detail::result_bits<B, A>>(opt, run);
  }
  template <element T, std::size_t bits, class Run>
  static void with_form(const geglu_options& opt, Run run) {
    const auto of_form = [&]<gelu_form F>(std::integral_constant<gelu_form, F>) {
      if constexpr (!std::same_as<T, accumulator_t<T>>)
        if (opt.round_gate) return run(detail::geglu_program<F, T, bits, true>());
      run(detail::geglu_program<F, T, bits, false>());
    };
    if (opt.form == gelu_form::tanh)
      of_form(std::integral_constant<gelu_form, gelu_form::tanh>{});
    else
      of_form(std::integral_constant<gelu_form, gelu_form::erf>{});
  }
  template <backend B, element T, class Run>
  static void with_program(const detail::default_geglu&, Run run) {
    run(detail::geglu_program<gelu_form::tanh, T, detail::result_bits<B, T>, false>());
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_GATE_GEGLU_KERNEL_HPP
