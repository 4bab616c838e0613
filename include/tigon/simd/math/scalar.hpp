// tigon::math: the functions of vectors for one number.
#ifndef TIGON_SIMD_MATH_SCALAR_HPP
#define TIGON_SIMD_MATH_SCALAR_HPP

#include <tigon/simd/engines/scalar.hpp>
#include <tigon/simd/math/exp_log.hpp>
#include <tigon/simd/math/gate.hpp>
#include <tigon/simd/math/normal.hpp>
#include <tigon/simd/math/tanh.hpp>

#include <cmath>
#include <concepts>

namespace tigon::math {
inline namespace TIGON_ABI {

// Scalars through the scalar engine, with the errors stated above.
template <class A>
using lane = simd::vec<simd::scalar, A>;

template <std::floating_point A>
TIGON_INLINE A exp(A x) {
  return simd::exp(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A exp_nonpositive(A x) {
  return simd::exp_nonpositive(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A expm1(A x) {
  return simd::expm1(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A log(A x) {
  return simd::log(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A log1p(A x) {
  return simd::log1p(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A tanh(A x) {
  return simd::tanh(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE simd::tanh_pair<A> tanh_with_rest(A x) {
  const auto t = simd::tanh_with_rest(lane<A>(x));
  return {t.tanh.r, t.rest.r};
}
template <std::floating_point A>
TIGON_INLINE A erf(A x) {
  return simd::erf(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A sigmoid(A x) {
  return simd::sigmoid(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE simd::sigmoids<A> sigmoid_both(A x) {
  const auto s = simd::sigmoid_both(lane<A>(x));
  return {s.of_x.r, s.of_minus_x.r};
}
template <std::floating_point A>
TIGON_INLINE A scale(A v, A n) {
  return simd::scale(lane<A>(v), lane<A>(n)).r;
}
template <std::floating_point A>
TIGON_INLINE A rsqrt(A x) {
  return simd::rsqrt(lane<A>(x)).r;
}
template <std::floating_point A>
TIGON_INLINE A sqrt(A x) {
  return std::sqrt(x);
}
template <std::floating_point A>
TIGON_INLINE A abs(A x) {
  return std::fabs(x);
}
/// As those of vectors: a NaN in b is kept.
template <std::floating_point A>
TIGON_INLINE A max(A a, A b) {
  return a > b ? a : b;
}
template <std::floating_point A>
TIGON_INLINE A min(A a, A b) {
  return a < b ? a : b;
}
template <std::floating_point A>
TIGON_INLINE bool is_nan(A x) {
  return x != x;
}

}  // namespace TIGON_ABI
}  // namespace tigon::math

#endif  // TIGON_SIMD_MATH_SCALAR_HPP
