// SwiGLU gate, forward and backward.
#ifndef TIGON_OPS_SWIGLU_HPP
#define TIGON_OPS_SWIGLU_HPP

#include <tigon/ops/gate/gate_gradients.hpp>
#include <tigon/ops/gate/swiglu_program.hpp>

namespace tigon {

namespace op {
struct swiglu {
  static constexpr std::string_view name = "swiglu";
};
}  // namespace op

/// Gated SiLU.
///
///   z     = gate_multiplier * gate,   v = z * sigmoid(z),   y = down_multiplier * v * up
///   dup   = down_multiplier * dy * v
///   dgate = down_multiplier * gate_multiplier * dy * up * (s + v (1 - s)),   s = sigmoid(z)
/// and where limit, slope or up_offset say so
///   z     = min(gate_multiplier * gate, limit),   s = sigmoid(slope * z),   u = min(max(up, -limit), limit) + up_offset
///   y     = down_multiplier * z s * u
///   dup   = down_multiplier * dy * z s                            0 where |up| > limit
///   dgate = down_multiplier * gate_multiplier * dy * u * (s + slope * z s (1 - s))
///                                                                 0 where gate_multiplier * gate > limit
///
/// Formula    docs/formulas/swiglu.md; Shazeer, "GLU Variants Improve Transformer", 2020.
/// Shapes     gate, up, y, dy, dgate, dup [rows, cols]; both may be 0. The halves of one buffer are two views with
///            the buffer's row stride: gate = b.cols_from(0, n), up = b.cols_from(n, n); or see swiglu_fused.
/// Types      f32, bf16, f16, f64, one for all.
/// Precision  f32 (f64 for f64), one rounding at y, dgate, dup; round_gate also rounds silu to the storage type.
/// Options    backward: as in forward.
/// Writes     y, dgate, dup.
/// Aliasing   forward: y may be gate or up. backward: dgate and dup may each be gate, up or dy, but not one another;
///            written over gate and up, a second backward would read gradients. Otherwise any layout in which no
///            written element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (a slope or limit that is not above 0; a number, 64 slope or
///            the product of the multipliers outside option_range); before the first write.
/// Edges      silu(-inf) = 0, silu(+inf) = inf, NaN stays NaN, also under a limit.
/// Max error  f32 6e-7, bf16 4e-3 of |reference| + its root mean square, both ways; twice that in 16 bits with
///            round_gate (tests/ops/swiglu_test.cpp).
struct swiglu_options {
  double gate_multiplier = 1;
  double down_multiplier = 1;
  bool round_gate = false;  ///< the gate is rounded to the storage type before the product, as frameworks do
  double limit = std::numeric_limits<double>::infinity();  ///< of the gate and of |up|; no gradient passes beyond
  double slope = 1;                                        ///< of the sigmoid's argument; 1.702 is close to GELU
  double up_offset = 0;                                    ///< added to up; gpt-oss: limit 7, slope 1.702, up_offset 1
};

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

/// y from gate and up. See swiglu_options for the contract.
template <class B = default_backend, class T>
void swiglu_forward(in_matrix<T> gate, in_matrix<T> up, matrix_view<T> y, swiglu_options opt = {},
                    context& ctx = default_context()) {
  static_assert(admits<B, T>());
  arguments args("swiglu_forward");
  args.in("gate", gate, y.rows, y.cols);
  args.in("up", up, y.rows, y.cols);
  args.out("y", y).may_be("gate", "up");
  detail::expect_swiglu_options<accumulator_t<T>>(args, opt);
  args.check();
  kernel_for<op::swiglu, B>::template forward<B, T>(gate, up, y, opt, ctx);
}

/// dgate and dup from dy, gate and up. See swiglu_options for the contract.
template <class B = default_backend, class T>
void swiglu_backward(in_matrix<T> dy, in_matrix<T> gate, in_matrix<T> up, matrix_view<T> dgate, matrix_view<T> dup,
                     swiglu_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  detail::expect_gate_gradients("swiglu_backward", dy, gate, up, dgate, dup);
  detail::expect_swiglu_options<accumulator_t<T>>(expects("swiglu_backward"), opt);
  kernel_for<op::swiglu, B>::template backward<B, T>(dy, gate, up, dgate, dup, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SWIGLU_HPP
