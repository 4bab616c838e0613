// SwiGLU of one column, forward and backward, as structs with a map (rows/reduce_map.hpp): map(gate, up) is y, and
// map(dy, gate, up) is dgate and dup.
#ifndef TIGON_OPS_GATE_SWIGLU_PROGRAM_HPP
#define TIGON_OPS_GATE_SWIGLU_PROGRAM_HPP

#include <tigon/rows/reduce_map.hpp>

#include <array>
#include <limits>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// z * sigmoid(z); the product of -inf and 0 is 0.
template <std::size_t Bits, class V>
TIGON_INLINE V silu(V z) {
  using A = typename V::value_type;
  const V low = max(V(simd::gate_lowest<A>), z);
  return low * gate_sigmoid<Bits>(min(V(simd::gate_highest<A>), low)).of_x;
}

/// silu(z) and its derivative s + z s (1 - s); 1 - s comes from the same exponential, without cancellation.
template <std::size_t Bits, class V>
TIGON_INLINE std::array<V, 2> silu_and_slope(V z) {
  using A = typename V::value_type;
  const V low = max(V(simd::gate_lowest<A>), z);
  const V clamped = min(V(simd::gate_highest<A>), low);
  const auto [s, t] = gate_sigmoid<Bits>(clamped);
  return {low * s, fma(clamped * s, t, s)};
}

/// y = silu(gate) up,   dgate = dy up silu'(gate),   dup = dy silu(gate)
/// Results are stored as T and need be no more exact than Bits bits.
template <element T, std::size_t Bits>
struct swiglu_program {
  static constexpr bool often_zero = false;

  template <class V>
  TIGON_INLINE V map(V gate, V up) const {
    return silu<Bits>(gate) * up;
  }
  template <class V>
  TIGON_INLINE pack<V, 2> map(V dy, V gate, V up) const {
    const auto [v, slope] = silu_and_slope<Bits>(gate);
    return {dy * up * slope, dy * v};
  }
};

/// y = d silu(g gate) up,   dgate = d g dy up silu'(g gate),   dup = d dy silu(g gate)        silu rounded, if `rounds`
template <element T, std::size_t Bits>
struct scaled_swiglu_program {
  using A = accumulator_t<T>;
  static constexpr bool often_zero = false;
  A g, d;
  bool rounds;

  template <class Options>
  explicit scaled_swiglu_program(const Options& opt)
      : g(static_cast<A>(opt.gate_multiplier)),
        d(static_cast<A>(opt.down_multiplier)),
        rounds(opt.round_gate && !std::same_as<T, A>) {}

  /// Whether it is more than a swiglu_program.
  bool scales() const { return g != A(1) || d != A(1) || rounds; }

  template <class V>
  TIGON_INLINE V rounded(V v) const {
    return rounds ? round_to<T>(v) : v;
  }
  template <class V>
  TIGON_INLINE V map(V gate, V up) const {
    return rounded(silu<Bits>(gate * V(g))) * up * V(d);
  }
  template <class V>
  TIGON_INLINE pack<V, 2> map(V dy, V gate, V up) const {
    const auto [v, slope] = silu_and_slope<Bits>(gate * V(g));
    return {dy * up * slope * V(d * g), dy * rounded(v) * V(d)};
  }
};

/// z = min(g gate, limit),   u = clamp(up, -limit, limit) + up_offset,   s = sigmoid(slope z)
/// y = d z s u,   dup = d dy z s,   dgate = d g dy u (s + slope z s (1 - s)): the gradients 0 beyond the limit
///
/// z is clamped where slope * z keeps within what a sigmoid takes. Bare: multipliers of 1, no rounding of the gate, and
/// the limit alone keeps it there.
template <element T, std::size_t Bits, bool Bare>
struct clamped_swiglu_program : scaled_swiglu_program<T, Bits> {
  using scaled = scaled_swiglu_program<T, Bits>;
  using A = accumulator_t<T>;
  using scaled::g, scaled::d;
  static constexpr bool often_zero = true;  ///< y and dgate where up is -up_offset, which in 16 bits is not seldom
  A limit, slope, up_offset, lowest, highest;
  simd::scaled_gate<Bits, A> gate_of;

  template <class Options>
  explicit clamped_swiglu_program(const Options& opt)
      : scaled(opt),
        limit(static_cast<A>(opt.limit)),
        slope(static_cast<A>(opt.slope)),
        up_offset(static_cast<A>(opt.up_offset)),
        lowest(math::max(std::numeric_limits<A>::lowest(), simd::gate_lowest<A> * A(0.999) / slope)),
        highest(math::min(std::numeric_limits<A>::max(), simd::gate_highest<A> * A(0.999) / slope)),
        gate_of(opt.slope) {}

  bool is_bare() const { return !this->scales() && limit <= highest; }

  template <class V>
  TIGON_INLINE V times(V v, A factor) const {
    if constexpr (Bare)
      return v;
    else
      return v * V(factor);
  }
  template <class V>
  TIGON_INLINE V rounded(V v) const {
    if constexpr (Bare)
      return v;
    else
      return scaled::rounded(v);
  }
  template <class V>
  TIGON_INLINE V clamped_gate(V z) const {
    if constexpr (Bare)
      return z;
    else
      return min(V(highest), z);
  }
  template <class V>
  TIGON_INLINE V clamped_up(V up) const {
    return max(V(-limit), min(V(limit), up));
  }
  template <class V>
  TIGON_INLINE V map(V gate, V up) const {
    const V z = max(V(lowest), min(V(limit), times(gate, g)));
    const V unit(simd::gate_parts<V>::unit), inverse = gate_of(clamped_gate(z)).inverse;
    if constexpr (Bare && sizeof(T) == 2)  // one product less after the division
      return fma(clamped_up(up), unit, V(up_offset) * unit) * inverse * z;
    else
      return times(rounded(z * (inverse * unit)) * (clamped_up(up) + V(up_offset)), d);
  }
  template <class V>
  TIGON_INLINE pack<V, 2> map(V dy, V gate, V up) const {
    const V open = times(gate, g), z = max(V(lowest), min(V(limit), open));
    const auto [inverse, rest] = gate_of(clamped_gate(z));
    const V s = inverse * V(simd::gate_parts<V>::unit), u = clamped_up(up) + V(up_offset);
    V dgate, dup;
    if constexpr (Bare) {  // by few products; clamped_gate(z) is z. In 16 bits the order of those of dup does not show.
      const V ds = dy * s;
      dup = sizeof(T) == 2 ? ds * z : dy * (z * s), dgate = u * fma(dup * (rest * inverse), V(slope), ds);
    } else {
      dgate = times(dy * u * s * fma(clamped_gate(z) * V(slope), rest * inverse, V(1)), d * g);
      dup = times(dy * rounded(z * s), d);
    }
    return {{select(not_above(open, V(limit)), dgate, V(0)), select(not_above(abs(up), V(limit)), dup, V(0))}};
  }
};

/// Output of y, or of dgate: often_zero where the program's results are.
template <class Program, class Output>
TIGON_INLINE auto gate_output(Output out) {
  if constexpr (Program::often_zero)
    return often_zero<Output>{out};
  else
    return out;
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_GATE_SWIGLU_PROGRAM_HPP
