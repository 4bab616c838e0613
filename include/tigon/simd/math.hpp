// Functions of one element, each written once for vectors of every engine and, in tigon::math, for scalars.
//
// The f32 numbers of their errors come from all 2^32 arguments with FMA and from every 67th without, the f64 numbers
// from samples (tests/simd/math_test.cpp). Everywhere: NaN gives NaN, infinities and zeros of either sign give what
// IEEE 754 requires, overflow gives infinity, underflow is gradual.
#ifndef TIGON_SIMD_MATH_HPP
#define TIGON_SIMD_MATH_HPP

#include <tigon/simd/math/arithmetic.hpp>
#include <tigon/simd/math/exp_log.hpp>
#include <tigon/simd/math/gate.hpp>
#include <tigon/simd/math/normal.hpp>
#include <tigon/simd/math/polynomial.hpp>
#include <tigon/simd/math/scalar.hpp>
#include <tigon/simd/math/tanh.hpp>

#endif  // TIGON_SIMD_MATH_HPP
