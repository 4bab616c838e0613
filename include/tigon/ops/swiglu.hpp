// SwiGLU gate, forward and backward.
#ifndef TIGON_OPS_SWIGLU_HPP
#define TIGON_OPS_SWIGLU_HPP

#include <tigon/ops/gate.hpp>

namespace tigon {

namespace op {
struct swiglu {
  static constexpr std::string_view name = "swiglu";
};
}  // namespace op

/// Gated SiLU.
///
///   z  = gate_multiplier * a,   v = z * sigmoid(z),   c = down_multiplier * v * b
///   db = down_multiplier * dc * v
///   da = down_multiplier * gate_multiplier * dc * b * (s + v (1 - s)),   s = sigmoid(z)
///
/// Formula    docs/formulas/swiglu.md; Shazeer, "GLU Variants Improve Transformer", 2020.
/// Shapes     a (gate), b (up), c, dc, da, db [rows, cols]; both may be 0. The halves of one buffer are two views with
///            the buffer's row stride: gate = y.cols_from(0, n), up = y.cols_from(n, n).
/// Types      f32, bf16, f16, f64, one for all.
/// Precision  f32 (f64 for f64), one rounding at c, da, db; round_gate also rounds silu to the storage type.
/// Writes     c, da, db.
/// Aliasing   forward: c may be a or b. backward: da and db may each be a, b or dc, but not one another; written over
///            a and b, a second backward would read gradients.
/// Throws     tigon::error: shape, stride, alias, argument (a multiplier that is not finite); before the first write.
/// Edges      silu(-inf) = 0, silu(+inf) = inf, NaN stays NaN.
/// Max error  f32 6e-7, bf16 4e-3 of |reference| + its root mean square, both ways; twice that in 16 bits with
///            round_gate (tests/ops/swiglu_test.cpp).
struct swiglu_options {
  double gate_multiplier = 1;
  double down_multiplier = 1;
  bool round_gate = false;  ///< the gate is rounded to the storage type before the product, as frameworks do
};

template <>
struct kernel<op::swiglu, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T>
  static void forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, swiglu_options opt, context& ctx) {
    using A = accumulator_t<T>;
    [[maybe_unused]] static constexpr std::size_t bits = detail::gate_bits<B, T>;
    const A g = static_cast<A>(opt.gate_multiplier), d = static_cast<A>(opt.down_multiplier);
    const bool plain = g == A(1) && d == A(1) && !opt.round_gate, round_gate = opt.round_gate;
    for_rows<B, A>(ctx, c.rows, c.cols, [=] TIGON_FN(auto row) {
      if (plain)
        row.map(
            c, [](auto av, auto bv) { return silu<bits>(av) * bv; }, a, b);
      else if (round_gate)
        row.map(
            c, [=](auto av, auto bv) { return round_to<T>(silu<bits>(av * g)) * bv * d; }, a, b);
      else
        row.map(
            c, [=](auto av, auto bv) { return silu<bits>(av * g) * bv * d; }, a, b);
    });
  }

  template <backend B, element T>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       swiglu_options opt, context& ctx) {
    using A = accumulator_t<T>;
    [[maybe_unused]] static constexpr std::size_t bits = detail::gate_bits<B, T>;
    const A g = static_cast<A>(opt.gate_multiplier), d = static_cast<A>(opt.down_multiplier);
    const bool plain = g == A(1) && d == A(1) && !opt.round_gate, round_gate = opt.round_gate;
    for_rows<B, A>(ctx, dc.rows, dc.cols, [=] TIGON_FN(auto row) {
      if (plain)
        row.map(
            outs(da, db),
            [](auto dv, auto av, auto bv) {
              const auto [v, slope] = silu_and_slope<bits>(av);
              return pack{dv * bv * slope, dv * v};
            },
            dc, a, b);
      else if (round_gate)
        row.map(
            outs(da, db),
            [=](auto dv, auto av, auto bv) {
              const auto [v, slope] = silu_and_slope<bits>(av * g);
              return pack{dv * bv * slope * (d * g), dv * round_to<T>(v) * d};
            },
            dc, a, b);
      else
        row.map(
            outs(da, db),
            [=](auto dv, auto av, auto bv) {
              const auto [v, slope] = silu_and_slope<bits>(av * g);
              return pack{dv * bv * slope * (d * g), dv * v * d};
            },
            dc, a, b);
    });
  }

  /// z * sigmoid(z); the product of -inf and 0 is 0.
  template <std::size_t Bits = 53, class V>
  static TIGON_INLINE V silu(V z) {
    using A = typename V::value_type;
    const V low = max(V(simd::gate_lowest<A>), z);
    return low * gate_sigmoid<Bits>(min(V(simd::gate_highest<A>), low)).of_x;
  }

  /// silu(z) and its derivative s + z s (1 - s); 1 - s comes from the same exponential, without cancellation.
  template <std::size_t Bits = 53, class V>
  static TIGON_INLINE std::array<V, 2> silu_and_slope(V z) {
    using A = typename V::value_type;
    const V low = max(V(simd::gate_lowest<A>), z);
    const V near = min(V(simd::gate_highest<A>), low);
    const auto [s, t] = gate_sigmoid<Bits>(near);
    return {low * s, fma(near * s, t, s)};
  }
};

/// c from a and b. See swiglu_options for the contract.
template <class B = default_backend, class T>
void swiglu_forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, swiglu_options opt = {},
                    context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const expects expect("swiglu_forward");
  expect.memory("c", c);
  expect.matrix("a", a, c.rows, c.cols);
  expect.matrix("b", b, c.rows, c.cols);
  expect.finite("gate_multiplier", opt.gate_multiplier);
  expect.finite("down_multiplier", opt.down_multiplier);
  expect.same_or_disjoint("c", c, "a", a);
  expect.same_or_disjoint("c", c, "b", b);
  kernel_for<op::swiglu, B>::template forward<B, T>(a, b, c, opt, ctx);
}

/// da and db from dc, a and b. See swiglu_options for the contract.
template <class B = default_backend, class T>
void swiglu_backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                     swiglu_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const expects expect("swiglu_backward");
  detail::expect_gate_gradients(expect, dc, a, b, da, db);
  expect.finite("gate_multiplier", opt.gate_multiplier);
  expect.finite("down_multiplier", opt.down_multiplier);
  kernel_for<op::swiglu, B>::template backward<B, T>(dc, a, b, da, db, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SWIGLU_HPP
