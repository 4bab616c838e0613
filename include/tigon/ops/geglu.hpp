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
      row.map(reads(a, b), writes(c),
              [](auto av, auto bv) { return rounded<T, Rounds>(gelu<F, detail::result_bits<B, T>>(av)) * bv; });
    });
  }

  template <backend B, gelu_form F, bool Rounds, element T>
  static void backward_rows(matrix_view<const T> dc, matrix_view<const T> a, matrix_view<const T> b, matrix_view<T> da,
                            matrix_view<T> db, context& ctx) {
    for_rows<B, accumulator_t<T>>(ctx, dc.rows, dc.cols, [=] TIGON_FN(auto row) {
      row.map(reads(dc, a, b), writes(da, db), [](auto dv, auto av, auto bv) {
        const auto [v, slope] = gelu_and_slope<F, detail::result_bits<B, T>>(av);
        return pack{dv * bv * slope, dv * rounded<T, Rounds>(v)};
      });
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
      const auto [t, tail] = simd::normal_tail<Bits>(a);
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
      return low * simd::upper_normal(low);
    }
  }

  template <gelu_form F, std::size_t Bits = 53, class V>
  static TIGON_INLINE std::array<V, 2> gelu_and_slope(V a) {
    using A = typename V::value_type;
    const V low = max(V(lowest<F, A>), a);
    const V near = min(V(highest<F, A>), low);
    const V square = near * near;
    if constexpr (F == gelu_form::erf && sizeof(A) == 4) {
      const auto [t, tail, slope] = simd::normal_tail_and_slope<Bits>(a);
      return {fnma(t, tail, max(V(0), a)), select(a >= V(0), V(1) - slope, slope)};
    } else if constexpr (F == gelu_form::tanh) {
      const auto [inverse, rest] = gate<Bits>(near, square);
      const V s = inverse * V(simd::gate_parts<V>::unit);
      return {low * s, fma(near * s * (rest * inverse), fma(square, V(A(3 * k * l)), V(A(k))), s)};
    } else {
      const V s = simd::upper_normal(near);
      return {low * s, fma(near * V(A(simd::normal_density)), exp(square * V(A(-0.5))), s)};
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
    return simd::gate_of_log2<Bits>(a, log2_of_gate<simd::exp2_parts<V>>(square));
  }
};

/// c from a and b. See geglu_options for the contract.
template <class B = default_backend, class T>
void geglu_forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, geglu_options opt = {},
                   context& ctx = default_context()) {
  static_assert(admits<B, T>());
  arguments args("geglu_forward");
  args.in("a", a, c.rows, c.cols);
  args.in("b", b, c.rows, c.cols);
  args.out("c", c).may_be("a", "b");
  args.check();
  kernel_for<op::geglu, B>::template forward<B, T>(a, b, c, opt, ctx);
}

/// da and db from dc, a and b. See geglu_options for the contract.
template <class B = default_backend, class T>
void geglu_backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                    geglu_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  detail::expect_gate_gradients("geglu_backward", dc, a, b, da, db);
  kernel_for<op::geglu, B>::template backward<B, T>(dc, a, b, da, db, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_GEGLU_HPP
