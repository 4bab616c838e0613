// GEGLU of one column, forward and backward, as a struct with a map (rows/reduce_map.hpp): map(gate, up) is y, and
// map(dy, gate, up) is dgate and dup.
#ifndef TIGON_OPS_GATE_GEGLU_PROGRAM_HPP
#define TIGON_OPS_GATE_GEGLU_PROGRAM_HPP

#include <tigon/rows/reduce_map.hpp>

#include <array>
#include <numbers>

namespace tigon {

/// Which function is called GELU.
enum class gelu_form {
  tanh,  ///< x * sigmoid(2 k (x + 0.044715 x^3)), k = sqrt(2 / pi): the same as the usual form with tanh
  erf,   ///< x / 2 * (1 + erf(x / sqrt(2)))
};

namespace detail {
inline namespace TIGON_ABI {

/// GELU, and with its derivative, to Bits bits.
template <gelu_form F, std::size_t Bits>
struct gelu {
  static constexpr double k = 2 * std::numbers::inv_sqrtpi * std::numbers::sqrt2;  // 2 sqrt(2 / pi)
  static constexpr double l = 0.044715;

  /// Between these gelu(x) is neither 0 nor x. In the tanh form z stays within what gate_sigmoid takes.
  template <class A>
  static constexpr A lowest = F == gelu_form::erf ? A(-64)
                              : sizeof(A) == 4    ? A(-10.95)
                                                  : A(-21.7);
  template <class A>
  static constexpr A highest = F == gelu_form::erf ? A(64)
                               : sizeof(A) == 4    ? A(7.5)
                                                   : A(12);

  template <class V>
  static TIGON_INLINE V of(V x) {
    using A = typename V::value_type;
    if constexpr (F == gelu_form::erf && sizeof(A) == 4) {
      const auto [t, tail] = simd::normal_tail<Bits>(x);
      return fnma(t, tail, max(V(0), x));
    } else if constexpr (F == gelu_form::tanh && Bits == 8) {
      // e^-z is infinite at the lower limit and 0 at the upper one.
      const V low = max(V(A(-10.06)), x), clamped = min(V(A(10.03)), low);
      return low * simd::sigmoid_of_log2(clamped, log2_of_gate<1>(clamped * clamped));
    } else if constexpr (F == gelu_form::tanh) {
      const V low = max(V(lowest<A>), x), clamped = min(V(highest<A>), low);
      return low * (gate(clamped, clamped * clamped).inverse * V(simd::gate_parts<V>::unit));
    } else {
      const V low = max(V(lowest<A>), x);
      return low * simd::upper_normal(low);
    }
  }

  template <class V>
  static TIGON_INLINE std::array<V, 2> with_slope(V x) {
    using A = typename V::value_type;
    const V low = max(V(lowest<A>), x);
    const V clamped = min(V(highest<A>), low);
    const V square = clamped * clamped;
    if constexpr (F == gelu_form::erf && sizeof(A) == 4) {
      const auto [t, tail, slope] = simd::normal_tail_and_slope<Bits>(x);
      return {fnma(t, tail, max(V(0), x)), select(x >= V(0), V(1) - slope, slope)};
    } else if constexpr (F == gelu_form::tanh) {
      const auto [inverse, rest] = gate(clamped, square);
      const V s = inverse * V(simd::gate_parts<V>::unit);
      return {low * s, fma(clamped * s * (rest * inverse), fma(square, V(A(3 * k * l)), V(A(k))), s)};
    } else {
      const V s = simd::upper_normal(clamped);
      return {low * s, fma(clamped * V(A(simd::normal_density)), exp(square * V(A(-0.5))), s)};
    }
  }

  /// Parts z log2(e) / x, from the square of x.
  template <int Parts, class V>
  static TIGON_INLINE V log2_of_gate(V square) {
    using A = typename V::value_type;
    constexpr double by = Parts * k * std::numbers::log2e;
    return fma(square, V(A(by * l)), V(A(by)));
  }
  /// The gate of z, from x and its square.
  template <class V>
  static TIGON_INLINE simd::gate_parts<V> gate(V x, V square) {
    return simd::gate_of_log2<Bits>(x, log2_of_gate<simd::exp2_parts<V>>(square));
  }
};

/// y = gelu(gate) up,   dgate = dy up gelu'(gate),   dup = dy gelu(gate)                          gelu rounded, if
/// Rounds Results are stored as T and need be no more exact than Bits bits.
template <gelu_form F, element T, std::size_t Bits, bool Rounds>
struct geglu_program {
  template <class V>
  static TIGON_INLINE V rounded(V v) {
    if constexpr (Rounds)
      return round_to<T>(v);
    else
      return v;
  }
  template <class V>
  TIGON_INLINE V map(V gate, V up) const {
    return rounded(gelu<F, Bits>::of(gate)) * up;
  }
  template <class V>
  TIGON_INLINE pack<V, 2> map(V dy, V gate, V up) const {
    const auto [v, slope] = gelu<F, Bits>::with_slope(gate);
    return {{dy * up * slope, dy * rounded(v)}};
  }
};

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#endif  // TIGON_OPS_GATE_GEGLU_PROGRAM_HPP
