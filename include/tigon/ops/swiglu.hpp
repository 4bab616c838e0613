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
/// and where limit, slope or up_offset say so
///   z  = min(gate_multiplier * a, limit),   s = sigmoid(slope * z),   u = min(max(b, -limit), limit) + up_offset
///   c  = down_multiplier * z s * u
///   db = down_multiplier * dc * z s                                              0 where |b| > limit
///   da = down_multiplier * gate_multiplier * dc * u * (s + slope * z s (1 - s))  0 where gate_multiplier * a > limit
///
/// Formula    docs/formulas/swiglu.md; Shazeer, "GLU Variants Improve Transformer", 2020.
/// Shapes     a (gate), b (up), c, dc, da, db [rows, cols]; both may be 0. The halves of one buffer are two views with
///            the buffer's row stride: gate = y.cols_from(0, n), up = y.cols_from(n, n); or see swiglu_fused.
/// Types      f32, bf16, f16, f64, one for all.
/// Precision  f32 (f64 for f64), one rounding at c, da, db; round_gate also rounds silu to the storage type.
/// Writes     c, da, db.
/// Aliasing   forward: c may be a or b. backward: da and db may each be a, b or dc, but not one another; written over a
///            and b, a second backward would read gradients. Otherwise any layout in which no element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (a multiplier, slope or up_offset that is not finite, a
///            slope or limit that is not above 0); before the first write.
/// Edges      silu(-inf) = 0, silu(+inf) = inf, NaN stays NaN, also under a limit.
/// Max error  f32 6e-7, bf16 4e-3 of |reference| + its root mean square, both ways; twice that in 16 bits with
///            round_gate (tests/ops/swiglu_test.cpp).
struct swiglu_options {
  double gate_multiplier = 1;
  double down_multiplier = 1;
  bool round_gate = false;  ///< the gate is rounded to the storage type before the product, as frameworks do
  double limit = std::numeric_limits<double>::infinity();  ///< of the gate and of |b|; no gradient passes beyond
  double slope = 1;                                        ///< of the sigmoid's argument; 1.702 is close to GELU
  double up_offset = 0;                                    ///< added to b; gpt-oss: limit 7, slope 1.702, up_offset 1
};

namespace detail {
inline namespace TIGON_ABI {
/// The default options, known to the compiler: what an operator with a gate inside passes, for one form instead of all.
struct default_swiglu : swiglu_options {};
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::swiglu, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, class Options>
  static void forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, Options opt, context& ctx) {
    with_form<B, T>(opt, [&](auto form) { forward_rows<B>(form, a, b, c, ctx); });
  }

  template <backend B, element T, class Options>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       Options opt, context& ctx) {
    with_form<B, T>(opt, [&](auto form) { backward_rows<B>(form, dc, a, b, da, db, ctx); });
  }

  /// run(form) with what the options make of one element: form(a, b) is c, form(dc, a, b) is da and db.
  template <backend B, element T, class Run>
  static void with_form(const swiglu_options& opt, Run run) {
    using A = accumulator_t<T>;
    const bool rounds = opt.round_gate && !std::same_as<T, A>;
    if (holds(opt)) {
      const held<B, T, true> bare(opt);
      if (bare.is_bare())
        run(bare);
      else
        run(held<B, T>(opt));
    } else if (static_cast<A>(opt.gate_multiplier) != A(1) || static_cast<A>(opt.down_multiplier) != A(1) || rounds)
      run(scaled<B, T>(opt));
    else
      run(plain<B, T>());
  }

  template <backend B, element T, class Run>
  static void with_form(const detail::default_swiglu&, Run run) {
    run(plain<B, T>());
  }

  static bool holds(const swiglu_options& opt) {
    return opt.limit != std::numeric_limits<double>::infinity() || opt.slope != 1 || opt.up_offset != 0;
  }

  template <backend B, element T, class Form>
  static void forward_rows(Form form, matrix_view<const T> a, matrix_view<const T> b, matrix_view<T> c, context& ctx) {
    for_rows<B, accumulator_t<T>>(ctx, c.rows, c.cols,
                                  [=] TIGON_FN(auto row) { row.map(reads(a, b), writes(form.output(c)), form); });
  }
  template <backend B, element T, class Form>
  static void backward_rows(Form form, matrix_view<const T> dc, matrix_view<const T> a, matrix_view<const T> b,
                            matrix_view<T> da, matrix_view<T> db, context& ctx) {
    for_rows<B, accumulator_t<T>>(
        ctx, dc.rows, dc.cols, [=] TIGON_FN(auto row) { row.map(reads(dc, a, b), writes(form.output(da), db), form); });
  }

  struct seldom_zero {
    /// How c and da are written.
    template <class Output>
    TIGON_INLINE Output output(Output out) const {
      return out;
    }
  };

  template <class B, element T>
  struct plain : seldom_zero {
    static constexpr std::size_t bits = detail::result_bits<B, T>;

    template <class V>
    TIGON_INLINE V operator()(V a, V b) const {
      return silu<bits>(a) * b;
    }
    template <class V>
    TIGON_INLINE pack<V, 2> operator()(V dc, V a, V b) const {
      const auto [v, slope] = silu_and_slope<bits>(a);
      return {dc * b * slope, dc * v};
    }
  };

  template <class B, element T>
  struct scaled : seldom_zero {
    using A = accumulator_t<T>;
    static constexpr std::size_t bits = detail::result_bits<B, T>;
    A g, d;
    bool round_gate;

    explicit scaled(const swiglu_options& opt)
        : g(static_cast<A>(opt.gate_multiplier)),
          d(static_cast<A>(opt.down_multiplier)),
          round_gate(opt.round_gate && !std::same_as<T, A>) {}

    template <class V>
    TIGON_INLINE V rounded(V v) const {
      return round_gate ? round_to<T>(v) : v;
    }
    template <class V>
    TIGON_INLINE V operator()(V a, V b) const {
      return rounded(silu<bits>(a * V(g))) * b * V(d);
    }
    template <class V>
    TIGON_INLINE pack<V, 2> operator()(V dc, V a, V b) const {
      const auto [v, slope] = silu_and_slope<bits>(a * V(g));
      return {dc * b * slope * V(d * g), dc * rounded(v) * V(d)};
    }
  };

  /// With limit, slope and offset. z is held where slope * z keeps within what a gate takes. Bare: multipliers of 1, no
  /// rounding of the gate, and the limit alone keeps it there.
  template <class B, element T, bool Bare = false>
  struct held : scaled<B, T> {
    using A = accumulator_t<T>;
    using scaled<B, T>::g, scaled<B, T>::d, scaled<B, T>::bits;
    A limit, slope, up_offset, lowest, highest;
    simd::scaled_gate<bits, A> gate;

    explicit held(const swiglu_options& opt)
        : scaled<B, T>(opt),
          limit(static_cast<A>(opt.limit)),
          slope(static_cast<A>(opt.slope)),
          up_offset(static_cast<A>(opt.up_offset)),
          lowest(math::max(std::numeric_limits<A>::lowest(), simd::gate_lowest<A> * A(0.999) / slope)),
          highest(math::min(std::numeric_limits<A>::max(), simd::gate_highest<A> * A(0.999) / slope)),
          gate(opt.slope) {}

    bool is_bare() const { return g == A(1) && d == A(1) && !this->round_gate && limit <= highest; }

    /// c and da are 0 where b is -up_offset, which in 16 bits is not seldom.
    template <class Output>
    TIGON_INLINE auto output(Output out) const {
      return often_zero<Output>{out};
    }
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
        return scaled<B, T>::rounded(v);
    }
    template <class V>
    TIGON_INLINE V near(V z) const {
      if constexpr (Bare)
        return z;
      else
        return min(V(highest), z);
    }
    template <class V>
    TIGON_INLINE V held_up(V b) const {
      return max(V(-limit), min(V(limit), b));
    }
    template <class V>
    TIGON_INLINE V operator()(V a, V b) const {
      const V z = max(V(lowest), min(V(limit), times(a, g)));
      const V unit(simd::gate_parts<V>::unit), inverse = gate(near(z)).inverse;
      if constexpr (Bare && sizeof(T) == 2)  // one product less after the division
        return fma(held_up(b), unit, V(up_offset) * unit) * inverse * z;
      else
        return times(rounded(z * (inverse * unit)) * (held_up(b) + V(up_offset)), d);
    }
    template <class V>
    TIGON_INLINE pack<V, 2> operator()(V dc, V a, V b) const {
      const V open = times(a, g), z = max(V(lowest), min(V(limit), open));
      const auto [inverse, rest] = gate(near(z));
      const V s = inverse * V(simd::gate_parts<V>::unit), up = held_up(b) + V(up_offset);
      V da, db;
      if constexpr (Bare) {  // by few products; near(z) is z. In 16 bits the order of those of db does not show.
        const V ds = dc * s;
        db = sizeof(T) == 2 ? ds * z : dc * (z * s), da = up * fma(db * (rest * inverse), V(slope), ds);
      } else {
        da = times(dc * up * s * fma(near(z) * V(slope), rest * inverse, V(1)), d * g);
        db = times(dc * rounded(z * s), d);
      }
      return {select(not_above(open, V(limit)), da, V(0)), select(not_above(abs(b), V(limit)), db, V(0))};
    }
  };

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

namespace detail {
inline namespace TIGON_ABI {
inline void expect_swiglu_options(const expects& expect, const swiglu_options& opt) {
  expect.finite("gate_multiplier", opt.gate_multiplier);
  expect.finite("down_multiplier", opt.down_multiplier);
  expect.option(opt.limit > 0, "limit", opt.limit, "a number above 0");
  expect.option(opt.slope > 0 && opt.slope <= 1e300, "slope", opt.slope, "a finite number above 0");
  expect.finite("up_offset", opt.up_offset);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// c from a and b. See swiglu_options for the contract.
template <class B = default_backend, class T>
void swiglu_forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, swiglu_options opt = {},
                    context& ctx = default_context()) {
  static_assert(admits<B, T>());
  arguments args("swiglu_forward");
  args.in("a", a, c.rows, c.cols);
  args.in("b", b, c.rows, c.cols);
  args.out("c", c).may_be("a", "b");
  detail::expect_swiglu_options(args, opt);
  args.check();
  kernel_for<op::swiglu, B>::template forward<B, T>(a, b, c, opt, ctx);
}

/// da and db from dc, a and b. See swiglu_options for the contract.
template <class B = default_backend, class T>
void swiglu_backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                     swiglu_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  detail::expect_gate_gradients("swiglu_backward", dc, a, b, da, db);
  detail::expect_swiglu_options(expects("swiglu_backward"), opt);
  kernel_for<op::swiglu, B>::template backward<B, T>(dc, a, b, da, db, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SWIGLU_HPP
