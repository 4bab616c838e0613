// A step of AdamW of one element: its factors, and the formula with the roundings that chance decides.
#ifndef TIGON_OPS_OPTIMIZER_ADAMW_PROGRAM_HPP
#define TIGON_OPS_OPTIMIZER_ADAMW_PROGRAM_HPP

#include <tigon/ops/optimizer/adamw_options.hpp>
#include <tigon/rows/row.hpp>
#include <tigon/simd/math/random.hpp>

#include <cmath>
#include <limits>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// What gradients are multiplied with, high and then low: a factor below the normal numbers of A is in two, as a
/// large gradient times it may be a normal number. Otherwise low is 1.
template <class A>
struct adamw_scale {
  A high, low = 1;

  TIGON_INLINE adamw_scale(double gradient_scale, double max_norm, double norm) {
    using limits = std::numeric_limits<A>;
    int of_max = 0, of_norm = 0, of_scale = 0, of_all = 0;  // without exponents no product leaves the range of f64
    double all = std::frexp(gradient_scale, &of_scale);
    if (max_norm > 0 && !(norm <= max_norm)) all = std::frexp(max_norm, &of_max) / std::frexp(norm, &of_norm) * all;
    all = std::frexp(all, &of_all);
    int exponent = of_max - of_norm + of_scale + of_all;
    if (exponent < limits::min_exponent) low = limits::min(), exponent -= limits::min_exponent - 1;
    high = static_cast<A>(std::ldexp(all, exponent));
  }
};

/// Everything in the formula that is the same for all elements; of decay, all of a parameter.
template <class A>
struct adamw_factors {
  adamw_scale<A> scale;
  A beta1, rest1, beta2, rest2, root, eps, rate, decay;
  double weight_decay;

  adamw_factors(const adamw_options& opt, double norm) : scale(opt.gradient_scale, opt.max_norm, norm) {
    const double age = static_cast<double>(opt.step);
    const auto a = [](double value) { return static_cast<A>(value); };
    beta1 = a(opt.beta1), rest1 = a(1 - opt.beta1), beta2 = a(opt.beta2), rest2 = a(1 - opt.beta2);
    root = a(1 / std::sqrt(1 - std::pow(opt.beta2, age))), eps = a(opt.eps);
    rate = a(opt.learning_rate / (1 - std::pow(opt.beta1, age)));
    weight_decay = opt.learning_rate * opt.weight_decay;
    decay = a(weight_decay);
  }
  TIGON_INLINE adamw_factors decayed_by(double factor) const {
    adamw_factors of_parameter = *this;
    of_parameter.decay = static_cast<A>(weight_decay * factor);
    return of_parameter;
  }
};

/// The formula, and the roundings that chance decides: column is the element's number in its task.
template <class A, class W, class M, bool Rounded, bool Stochastic>
struct adamw_program {
  adamw_factors<A> f;
  simd::random_key key;

  template <class V>
  TIGON_INLINE auto map(V g, V m, V v, V w) const {
    const V c = g * V(f.scale.high) * V(f.scale.low);
    const V first = fma(m, V(f.beta1), c * V(f.rest1)), second = fma(v, V(f.beta2), c * V(f.rest2) * c);
    const V step = first / fma(sqrt(second), V(f.root), V(f.eps));
    const V weight = w - fma(step, V(f.rate), w * V(f.decay));
    if constexpr (Rounded)
      return pack<V, 4>{{first, second, weight, weight}};
    else
      return pack<V, 3>{{first, second, weight}};
  }
  template <class V>
  TIGON_INLINE auto map(V g, V m, V v, V w, V column) const {
    auto to = map(g, m, v, w);
    const V bits = simd::random_bits(column, key);  // half of them for w, half for m
    if constexpr (std::same_as<M, bfloat16>) {
      to.v[0] = simd::round_to_bfloat16_by(to.v[0], bits.template shr<16>());
      to.v[1] = simd::round_to_bfloat16_by(to.v[1], simd::random_bits(column, {key.second, ~key.first}));
    }
    if constexpr (std::same_as<W, bfloat16>) to.v[2] = simd::round_to_bfloat16_by(to.v[2], bits);
    return to;
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_OPTIMIZER_ADAMW_PROGRAM_HPP
