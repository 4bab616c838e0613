// Division, reciprocals and roots of vectors.
//
// Every function states its largest error in units in the last place (ULP) of the result, as
//   f32 with FMA / f32 without; f64 with FMA / f64 without.
#ifndef TIGON_SIMD_MATH_ARITHMETIC_HPP
#define TIGON_SIMD_MATH_ARITHMETIC_HPP

#include <tigon/backend/cores.hpp>
#include <tigon/simd/math/polynomial.hpp>

#include <limits>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// 1 / v; within 2^-14 of it where division is slow.
template <class V>
TIGON_INLINE V reciprocal_estimate(V v) {
  using L = typename V::lanes;
  if constexpr (raw_reciprocal<L>)
    return V::from(L::from_raw(x86::reciprocal_estimate(L::raw(v.r))));
  else if constexpr (requires { L::reciprocal_estimate(v.r); })
    return V::from(L::reciprocal_estimate(v.r));
  else
    return V(1) / v;
}

// a b less its rounding, from the halves of a and b (Dekker, Veltkamp), where nothing is fused. |a| and |b| below
// 2^100.
template <class V>
TIGON_INLINE V lost_by_product(V a, V b) {
  constexpr double by = sizeof(typename V::value_type) == 4 ? 0x1p12 + 1 : 0x1p27 + 1;
  const auto high = [](V v) {
    const V scaled = v * V(by);
    return scaled - (scaled - v);
  };
  const V ah = high(a), al = a - ah, bh = high(b), bl = b - bh;
  return ((ah * bh - a * b) + ah * bl + al * bh) + al * bl;
}

// c + a b and c - a b, as exact as fused, where c cancels nearly all of the product: then the first sum is exact. Only
// x86 has CPUs without fused operations; elsewhere compilers may fuse the parts of a product themselves.
template <class V>
TIGON_INLINE V fma_near(V a, V b, V c) {
#if defined(__x86_64__) && !defined(__FMA__)
  return (c + a * b) + lost_by_product(a, b);
#else
  return fma(a, b, c);
#endif
}
template <class V>
TIGON_INLINE V fnma_near(V a, V b, V c) {
#if defined(__x86_64__) && !defined(__FMA__)
  return (c - a * b) - lost_by_product(a, b);
#else
  return fnma(a, b, c);
#endif
}

// num / (greater + lesser). The remainder is taken against the sum before its rounding, which would cost up to one ULP;
// the same step squares the error of the estimate, so that 2^-28 is left of it.
template <class V>
TIGON_INLINE V quotient_of_sum(V num, V greater, V lesser) {
  const V y = reciprocal_estimate(greater + lesser);
  const V q = num * y;
  return fma(fnma(q, lesser, fnma(q, greater, num)), y, q);
}

}  // namespace detail

/// a / b for normal b whose reciprocal is normal and a quotient that is neither subnormal nor near overflow, by an
/// estimate and one step on the remainder where the core's division is slow.
/// Error at most 0.54 ULP.
template <class E, class A>
TIGON_INLINE vec<E, A> quotient(vec<E, A> a, vec<E, A> b) {
  if constexpr ((this_core.slow_division && detail::raw_reciprocal<typename vec<E, A>::lanes>) ||
                requires { vec<E, A>::lanes::reciprocal_estimate(b.r); }) {
    const auto y = detail::reciprocal_estimate(b);
    const auto q = a * y;
    return fma(fnma(q, b, a), y, q);
  } else {
    return a / b;
  }
}

/// 1 / v, with the conditions and the error of quotient.
template <class E, class A>
TIGON_INLINE vec<E, A> reciprocal(vec<E, A> v) {
  return quotient(vec<E, A>(A(1)), v);
}

/// x; 0 where |x| is below the smallest normal number, for gradients: a product with subnormal operands, as fused
/// linear losses make of them, is a hundred times slower on some CPUs, and their sum is nothing. NaN is kept.
template <class E, class A>
TIGON_INLINE vec<E, A> normal_or_zero(vec<E, A> x) {
  using V = vec<E, A>;
  return select(abs(x) < V(std::numeric_limits<A>::min()), V(A(0)), x);
}

/// 1 / sqrt(x). Error: 1.5 / 1.5; 1.5 / 1.5. A square root and a division: kernels need it once a row.
template <class E, class A>
TIGON_INLINE vec<E, A> rsqrt(vec<E, A> x) {
  using V = vec<E, A>;
  // Eigen's square root is an approximation that flushes subnormal numbers and loses the sign of zero.
  using L = typename V::lanes;
  if constexpr (detail::raw_square_root<L>)
    return V(A(1)) / V::from(L::from_raw(x86::square_root(L::raw(x.r))));
  else
    return V(A(1)) / sqrt(x);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_MATH_ARITHMETIC_HPP
