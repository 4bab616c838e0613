// The library's header before tigon: with macros that it needs for these flags, or a sentence that names them.
// expect: but <hwy/highway.h>, included before tigon, was configured for less; include tigon first, or compile with -DHWY_DISABLE_PCLMUL_AES -DHWY_DISABLE_BMI2_FMA -DHWY_DISABLE_F16C
// flags: -march=x86-64-v3 -DTIGON_BACKEND=highway
#ifndef SHOULD_NOT_COMPILE
#define HWY_DISABLE_PCLMUL_AES
#define HWY_DISABLE_BMI2_FMA
#define HWY_DISABLE_F16C
#endif
#include <hwy/highway.h>

#include <tigon/ops/rms_norm.hpp>

static_assert(tigon::simd::vec<tigon::simd::highway, float>::size == 8);
