// GEGLU gate, forward and backward.
#ifndef TIGON_OPS_GEGLU_HPP
#define TIGON_OPS_GEGLU_HPP

#include <tigon/ops/gate.hpp>

#include <numbers>

namespace tigon {

/// Which function is called GELU.
enum class gelu_form {
  tanh,  ///< a * sigmoid(2 k (a + 0.044715 a^3)), k = sqrt(2 / pi): the same as the usual form with tanh
  erf,   ///< a / 2 * (1 + erf(a / sqrt(2)))
};

namespace op {
struct geglu {
  static constexpr std::string_view name = "geglu";
};
}  // namespace op

/// Gated GELU.
///
///   c  = gelu(a) * b,   db = dc * gelu(a),   da = dc * b * gelu'(a)
///   tanh form: z = 2 k (a + l a^3), s = sigmoid(z), gelu = a s, gelu' = s + a s (1 - s) 2 k (1 + 3 l a^2)
///   erf form:  gelu = a (1 + erf(a / sqrt 2)) / 2,  gelu' = (1 + erf(a / sqrt 2)) / 2 + a exp(-a^2 / 2) / sqrt(2 pi)
///
/// Formula    docs/formulas/geglu.md; Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016; Shazeer, 2020.
/// Shapes     a (gate), b (up), c, dc, da, db [rows, cols]; both may be 0. Halves of one buffer as in swiglu.
/// Types      f32, bf16, f16, f64, one for all.
/// Precision  f32 (f64 for f64), one rounding at c, da, db; round_gate also rounds gelu to the storage type.
/// Writes     c, da, db.
/// Aliasing   forward: c may be a or b. backward: da and db may each be a, b or dc, but not one another. Otherwise any
///            layout in which no element is shared.
/// Throws     tigon::error: shape, stride, alias; before the first write.
/// Edges      gelu(-inf) = 0, gelu(+inf) = inf, NaN stays NaN.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square, both ways; twice that in 16 bits with
///            round_gate (tests/ops/geglu_test.cpp).
struct geglu_options {
  gelu_form form = gelu_form::tanh;
  bool round_gate = false;  ///< the gate is rounded to the storage type before the product, as frameworks do
};

namespace detail {
inline namespace TIGON_ABI {
/// The default options, known to the compiler: what an operator with a gate inside passes, for one form instead of all.
struct default_geglu : geglu_options {};
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::geglu, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, class Options>
  static void forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, Options opt, context& ctx) {
    with_form<T>(opt, [&](auto form, auto rounds) { forward_rows<B, form.value, rounds.value>(a, b, c, ctx); });
  }

  template <backend B, element T, class Options>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       Options opt, context& ctx) {
    with_form<T>(opt,
                 [&](auto form, auto rounds) { backward_rows<B, form.value, rounds.value>(dc, a, b, da, db, ctx); });
  }

  /// run(form, rounds) with the form and whether gelu(a) is rounded, which is nothing in the type of the accumulator.
  template <element T, class Run>
  static void with_form(const geglu_options& opt, Run run) {
    const auto rounding = [&](auto form) {
      if constexpr (!std::same_as<T, accumulator_t<T>>)
        if (opt.round_gate) return run(form, std::true_type{});
      run(form, std::false_type{});
    };
    if (opt.form == gelu_form::tanh)
      rounding(std::integral_constant<gelu_form, gelu_form::tanh>{});
    else
      rounding(std::integral_constant<gelu_form, gelu_form::erf>{});
  }
  template <element T, class Run>
  static void with_form(const detail::default_geglu&, Run run) {
    run(std::integral_constant<gelu_form, gelu_form::tanh>{}, std::false_type{});
  }

  template <backend B, gelu_form F, bool Rounds, element T>
  static void forward_rows(matrix_view<const T> a, matrix_view<const T> b, matrix_view<T> c, context& ctx) {
    for_rows<B, accumulator_t<T>>(ctx, c.rows, c.cols, [=] TIGON_FN(auto row) {
      row.map(
          c, [](auto av, auto bv) { return rounded<T, Rounds>(gelu<F, detail::result_bits<B, T>>(av)) * bv; }, a, b);
    });
  }

  template <backend B, gelu_form F, bool Rounds, element T>
  static void backward_rows(matrix_view<const T> dc, matrix_view<const T> a, matrix_view<const T> b, matrix_view<T> da,
                            matrix_view<T> db, context& ctx) {
    for_rows<B, accumulator_t<T>>(ctx, dc.rows, dc.cols, [=] TIGON_FN(auto row) {
      row.map(
          outs(da, db),
          [](auto dv, auto av, auto bv) {
            const auto [v, slope] = gelu_and_slope<F, detail::result_bits<B, T>>(av);
            return pack{dv * bv * slope, dv * rounded<T, Rounds>(v)};
          },
          dc, a, b);
    });
  }

  template <element T, bool Rounds, class V>
  static TIGON_INLINE V rounded(V v) {
    if constexpr (Rounds)
      return round_to<T>(v);
    else
      return v;
  }

  static constexpr double k = 2 * std::numbers::inv_sqrtpi * std::numbers::sqrt2;  // 2 sqrt(2 / pi)
  static constexpr double l = 0.044715;
  static constexpr double density = std::numbers::inv_sqrtpi / std::numbers::sqrt2;  // of the normal distribution at 0

  /// Between these gelu(a) is neither 0 nor a. In the tanh form z stays within what gate_sigmoid takes.
  template <gelu_form F, class A>
  static constexpr A lowest = F == gelu_form::erf ? A(-64)
                              : sizeof(A) == 4    ? A(-10.95)
                                                  : A(-21.7);
  template <gelu_form F, class A>
  static constexpr A highest = F == gelu_form::erf ? A(64)
                               : sizeof(A) == 4    ? A(7.5)
                                                   : A(12);

  template <gelu_form F, std::size_t Bits = 53, class V>
  static TIGON_INLINE V gelu(V a) {
    using A = typename V::value_type;
    if constexpr (F == gelu_form::erf && sizeof(A) == 4) {
      const auto [t, tail] = normal_tail<Bits>(a);
      return fnma(t, tail, max(V(0), a));
    } else if constexpr (F == gelu_form::tanh && Bits == 8) {
      // e^-z is infinite at the lower limit and 0 at the upper one.
      const V low = max(V(A(-10.06)), a), near = min(V(A(10.03)), low);
      return low * simd::sigmoid_of_log2(near, log2_of_gate<1>(near * near));
    } else if constexpr (F == gelu_form::tanh) {
      const V low = max(V(lowest<F, A>), a), near = min(V(highest<F, A>), low);
      return low * (gate<Bits>(near, near * near).inverse * V(simd::gate_parts<V>::unit));
    } else {
      const V low = max(V(lowest<F, A>), a);
      return low * upper_normal(low);
    }
  }

  template <gelu_form F, std::size_t Bits = 53, class V>
  static TIGON_INLINE std::array<V, 2> gelu_and_slope(V a) {
    using A = typename V::value_type;
    const V low = max(V(lowest<F, A>), a);
    const V near = min(V(highest<F, A>), low);
    const V square = near * near;
    if constexpr (F == gelu_form::erf && sizeof(A) == 4) {
      const auto [t, tail, slope] = normal_tail_and_slope<Bits>(a);
      return {fnma(t, tail, max(V(0), a)), select(a >= V(0), V(1) - slope, slope)};
    } else if constexpr (F == gelu_form::tanh) {
      const auto [inverse, rest] = gate<Bits>(near, square);
      const V s = inverse * V(simd::gate_parts<V>::unit);
      return {low * s, fma(near * s * (rest * inverse), fma(square, V(A(3 * k * l)), V(A(k))), s)};
    } else {
      const V s = upper_normal(near);
      return {low * s, fma(near * V(A(density)), exp(square * V(A(-0.5))), s)};
    }
  }

  /// Parts z log2(e) / a, from the square of a.
  template <int Parts, class V>
  static TIGON_INLINE V log2_of_gate(V square) {
    using A = typename V::value_type;
    constexpr double by = Parts * k * std::numbers::log2e;
    return fma(square, V(A(by * l)), V(A(by)));
  }
  /// The gate of z, from a and its square.
  template <std::size_t Bits, class V>
  static TIGON_INLINE simd::gate_parts<V> gate(V a, V square) {
    return simd::gate_of_log2<Bits>(a, log2_of_gate<simd::detail::exp2_parts<V>>(square));
  }

  /// t = |a| and P(-t), the tail of the normal distribution, in f32: gelu(a) = max(a, 0) - t P(-t). Error of t P(-t):
  /// 5e-8, relative to that 1e-6 for t <= 2.5. With Bits = 8, for results of so many bits, 4.5e-4 of it for t <= 5, more
  /// where it is below 3e-7. 0 for the highest t.
  template <class V>
  struct tail_parts {
    V t, tail;
  };
  template <std::size_t Bits, class V>
  static TIGON_INLINE tail_parts<V> normal_tail(V a) {
    using A = typename V::value_type;
    using c = simd::detail::constants<A>;
    constexpr bool rough = Bits == 8;
    if constexpr (rough && simd::detail::looks_up<V>) {
      const V t = min(V(tail_end), abs(a));
      return {t, by_tail_pieces(t, tail_pieces)};
    }
    // At the limit minus_log2 is 127, an exponent field of 0.
    constexpr int parts = simd::detail::exp2_parts<V>;
    const V t = min(V(A(rough ? 12.59 : 13.0035)), abs(a));
    const V minus_log2 = simd::detail::polynomial_in_pairs(t, of_bits<Bits>(tail_log2_q8, tail_log2_q24<parts>));
    const V magic(c::whole + parts * c::bias), power = magic - minus_log2, f = (magic - power) - minus_log2;
    if constexpr (rough)
      return {t, simd::detail::polynomial_in_pairs(f, c::exp2_q8) * simd::detail::exp2_field(power)};
    else
      return {t, simd::detail::exp2_of_parts(power, f)};
  }
  /// Coefficients for results of so many bits.
  template <std::size_t Bits, std::size_t N, std::size_t M>
  static TIGON_INLINE constexpr const auto& of_bits(const float (&q8)[N], const float (&q24)[M]) {
    if constexpr (Bits == 8)
      return q8;
    else
      return q24;
  }
  // -log2(P(-t)): within 1e-7 for t <= 2 and what is 2e-9 of P(-t) beyond; of 8 bits within 5.2e-4 for t <= 5. Linear
  // programs; each coefficient is rounded and the next ones make up for it.
  template <int Parts>
  static constexpr float tail_log2_q24[] = {
      Parts * 0x1.fffffcp-1f,  Parts * 0x1.26af1ap+0f,   Parts * 0x1.d6334ap-2f,  Parts * 0x1.ae994ep-5f,
      Parts * -0x1.d3200ep-8f, Parts * 0x1.3a58b8p-13f,  Parts * 0x1.b0aa6cp-13f, Parts * -0x1.ce36fcp-15f,
      Parts * 0x1.f2df3cp-18f, Parts * -0x1.3470f6p-21f, Parts * 0x1.9bc5dap-26f, Parts * -0x1.cb1522p-32f};
  static constexpr float tail_log2_q8[] = {0x1.00220ep+0f, 0x1.24fe1ep+0f,  0x1.e40526p-2f,
                                           0x1.5f0918p-5f, -0x1.2441b4p-8f, 0x1.a335eap-13f};

  /// The same, and the slope of gelu at -t, P(-t) - t p(t), where p is the density, from which P(-t) is made here. Error of
  /// P(-t): 1e-6 of itself for t <= 5; of the slope: 1.3e-7. With Bits = 8, P(-t) as above and 7.2e-4 of the slope or of
  /// P(-t) / 20.
  template <class V>
  struct tail_and_slope {
    V t, tail, slope;
  };
  template <std::size_t Bits, class V>
  static TIGON_INLINE tail_and_slope<V> normal_tail_and_slope(V a) {
    using A = typename V::value_type;
    using c = simd::detail::constants<A>;
    if constexpr (Bits == 8) {
      const auto [t, tail] = normal_tail<Bits>(a);
      V slope;  // of itself
      if constexpr (simd::detail::looks_up<V>)
        slope = by_tail_pieces(t, tail_slope_pieces);
      else
        slope = simd::detail::polynomial_in_pairs(t, tail_slope);
      return {t, tail, tail * slope};
    } else {
      // At the limit e^(-t^2 / 2) is 2^-127, an exponent field of 0.
      constexpr int parts = simd::detail::exp2_parts<V>;
      const V t = min(V(A(13.2686)), abs(a)), square = t * t, by(A(parts * std::numbers::log2e / 2));
      const V magic(c::whole + parts * c::bias), power = fnma(square, by, magic), f = fnma(square, by, magic - power);
      const V decay = simd::detail::exp2_of_parts(power, f);
      const V mills = simd::quotient(simd::detail::polynomial(t, mills_p), simd::detail::monic_polynomial(t, mills_q));
      return {t, decay * mills, decay * fnma(t, V(A(density)), mills)};
    }
  }
  // 1 - t p(t) / P(-t), for 8 bits: within 2.7e-4 of itself or of 0.05.
  static constexpr float tail_slope[] = {0x1.ffdc62p-1f,  -0x1.9668a6p-1f, -0x1.4c2476p-1f,
                                         -0x1.895212p-4f, 0x1.dfe47p-7f,   -0x1.e5f39p-11f};
  // The tail and its slope of itself for 8 bits by pieces, which grow narrower from 0 to 5: cubics in t - 2.5, within 4.1e-4
  // of the one, 6.7e-5 of the other or of 0.05. The last piece, from 5.02 on, is 0. Linear programs, as above.
  static constexpr float tail_end = 0x1.4676fap+2f;
  template <class V, class A>
  static TIGON_INLINE V by_tail_pieces(V t, const A (&pieces)[4][16]) {
    const V piece = fma(t, fma(t, V(A(0x1.a5a604p-2)), V(A(0x1.ae2ab2p-1))), V(simd::detail::constants<A>::whole));
    return simd::detail::polynomial_by_pieces(t - V(A(2.5)), piece, pieces);
  }
  alignas(64) static constexpr float tail_pieces[4][16] = {
      {0x1.d090acp-2f, 0x1.ecd82ep-4f, 0x1.5b5b38p-7f, 0x1.717dfap-8f, 0x1.96665p-8f, 0x1.97012cp-8f, 0x1.8e3b02p-8f,
       0x1.626ea2p-8f, 0x1.16ea4ap-8f, 0x1.88186cp-9f, 0x1.f5d1d8p-10f, 0x1.2986c8p-10f, 0x1.4b827cp-11f,
       0x1.5ee2bp-12f, 0x1.5e231cp-13f, 0},
      {0x1.78c8d2p-1f, 0x1.cb919cp-3f, -0x1.ae600cp-8f, -0x1.6276ccp-6f, -0x1.22d1e8p-6f, -0x1.1f39bcp-6f,
       -0x1.0934bcp-6f, -0x1.a25914p-7f, -0x1.1f91dcp-7f, -0x1.6382d8p-8f, -0x1.950e72p-9f, -0x1.b0ecacp-10f,
       -0x1.b79ep-11f, -0x1.ac1ca8p-12f, -0x1.8b86d4p-13f, 0},
      {0x1.ce15dp-2f, 0x1.828f36p-3f, 0x1.a86402p-6f, 0x1.635cfep-7f, 0x1.4915fap-6f, 0x1.621d1ep-6f, 0x1.148beep-6f,
       0x1.67dde8p-7f, 0x1.a07d02p-8f, 0x1.bc1376p-9f, 0x1.bd8aacp-10f, 0x1.aa6c38p-11f, 0x1.89025ap-12f,
       0x1.5f2a2p-13f, 0x1.2bcc66p-14f, 0},
      {0x1.e9d08cp-5f, 0x1.e3339ep-7f, -0x1.84ea0ap-6f, -0x1.d5bf84p-6f, -0x1.599ffap-6f, -0x1.a044cep-7f,
       -0x1.bf3018p-8f, -0x1.bd65c4p-9f, -0x1.a415a4p-10f, -0x1.7c1b62p-11f, -0x1.4cd254p-12f, -0x1.1bb726p-13f,
       -0x1.d90688p-15f, -0x1.82eafap-16f, -0x1.30bb42p-17f, 0}};
  alignas(64) static constexpr float tail_slope_pieces[4][16] = {
      {-0x1.9aaab4p+2f, -0x1.8902c6p+2f, -0x1.844022p+2f, -0x1.83aec6p+2f, -0x1.83a3b8p+2f, -0x1.83a3a2p+2f,
       -0x1.83a47p+2f, -0x1.83a998p+2f, -0x1.83b572p+2f, -0x1.83c8bp+2f, -0x1.83e2dep+2f, -0x1.8402fp+2f,
       -0x1.8427dcp+2f, -0x1.845082p+2f, -0x1.847cd2p+2f, 0},
      {-0x1.6cbb0ap+2f, -0x1.525c28p+2f, -0x1.488d04p+2f, -0x1.46b204p+2f, -0x1.466db2p+2f, -0x1.466b9p+2f,
       -0x1.466306p+2f, -0x1.4648a8p+2f, -0x1.461fb2p+2f, -0x1.45ecdcp+2f, -0x1.45b45p+2f, -0x1.457946p+2f,
       -0x1.453dbcp+2f, -0x1.450326p+2f, -0x1.44c94p+2f, 0},
      {-0x1.516b18p+0f, -0x1.1cbcf6p+0f, -0x1.019c9ep+0f, -0x1.f2e6e8p-1f, -0x1.ee67a8p-1f, -0x1.ede154p-1f,
       -0x1.eee6fap-1f, -0x1.f051a2p-1f, -0x1.f1cc94p-1f, -0x1.f33388p-1f, -0x1.f479bep-1f, -0x1.f59bc6p-1f,
       -0x1.f69bfap-1f, -0x1.f77d4p-1f, -0x1.f8471p-1f, 0},
      {-0x1.70de46p-4f, -0x1.c8387p-5f, -0x1.fd62f4p-6f, -0x1.3bd964p-6f, -0x1.a7b942p-7f, -0x1.3563b2p-7f,
       -0x1.b68a44p-8f, -0x1.4d994cp-8f, -0x1.044196p-8f, -0x1.9eabe4p-9f, -0x1.5029p-9f, -0x1.14bd7cp-9f,
       -0x1.cd8d78p-10f, -0x1.85551ep-10f, -0x1.4ab0bep-10f, 0}};
  // P(-t) e^(t^2 / 2), Mills' ratio but for a factor, is p(t) / q(t), where q goes on with t^5, within 1.5e-8 of itself for
  // t <= 13.3. Linear programs, too.
  static constexpr float mills_p[] = {0x1.8d0b34p+5f, 0x1.59f29p+5f, 0x1.1fe8f4p+4f, 0x1.fbeb6cp+1f, 0x1.9885dp-2f};
  static constexpr float mills_q[] = {0x1.8d0b34p+6f, 0x1.4b5f12p+7f, 0x1.da3944p+6f, 0x1.70b5d4p+5f, 0x1.3e509cp+3f};

  /// (1 + erf(a / sqrt 2)) / 2.
  template <class V>
  static TIGON_INLINE V upper_normal(V a) {
    using A = typename V::value_type;
    return fma(V(A(0.5)), erf(a * V(A(1 / std::numbers::sqrt2))), V(A(0.5)));
  }
};

/// c from a and b. See geglu_options for the contract.
template <class B = default_backend, class T>
void geglu_forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, geglu_options opt = {},
                   context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const expects expect("geglu_forward");
  expect.memory("c", c);
  expect.matrix("a", a, c.rows, c.cols);
  expect.matrix("b", b, c.rows, c.cols);
  expect.same_or_disjoint("c", c, "a", a);
  expect.same_or_disjoint("c", c, "b", b);
  kernel_for<op::geglu, B>::template forward<B, T>(a, b, c, opt, ctx);
}

/// da and db from dc, a and b. See geglu_options for the contract.
template <class B = default_backend, class T>
void geglu_backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                    geglu_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  detail::expect_gate_gradients(expects("geglu_backward"), dc, a, b, da, db);
  kernel_for<op::geglu, B>::template backward<B, T>(dc, a, b, da, db, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_GEGLU_HPP
