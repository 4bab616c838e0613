// The same with FMA, whose products are fused although Highway's would not be.
// expect: tigon: the flags promise AVX2 but Highway was configured for less; remove
// flags: -mavx2 -mfma -DTIGON_BACKEND=highway
// reject flags: -DHWY_DISABLED_TARGETS=HWY_AVX2
#include <tigon/ops/rms_norm.hpp>

static_assert(tigon::simd::vec<tigon::simd::highway, float>::size == 8);
static_assert(tigon::simd::highway::target == "AVX2");
