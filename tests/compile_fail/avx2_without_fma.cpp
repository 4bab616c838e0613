// AVX2 without the flags that Highway's target of it wants; and flags that promise it to a Highway that cannot have it.
// expect: tigon: the flags promise AVX2 but Highway was configured for less; remove
// flags: -mavx2 -DTIGON_BACKEND=highway
// reject flags: -DHWY_DISABLED_TARGETS=HWY_AVX2
#include <tigon/ops/rms_norm.hpp>

static_assert(tigon::simd::vec<tigon::simd::highway, float>::size == 8);
static_assert(tigon::simd::highway::target == "AVX2");
