// The headers of xsimd and Eigen before tigon: as they are, or told to use less than the flags promise.
// expect: tigon: the flags promise AVX2 but Eigen was configured for less
// flags: -march=x86-64-v3 -DTIGON_BACKEND=generic
// reject flags: -DEIGEN_DONT_VECTORIZE
#include <Eigen/Core>
#include <xsimd/xsimd.hpp>

#include <tigon/backends/eigen/backend.hpp>
#include <tigon/backends/xsimd/backend.hpp>
#include <tigon/ops/rms_norm.hpp>

static_assert(tigon::simd::vec<tigon::simd::eigen, float>::size == 8);
static_assert(tigon::simd::vec<tigon::simd::xsimd, float>::size == 8);

#include <Eigen/Core>
#include <tigon/ops/softmax.hpp>
#include <xsimd/xsimd.hpp>
