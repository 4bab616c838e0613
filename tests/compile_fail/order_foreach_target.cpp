// A file that Highway compiles once for every target: tigon belongs to its last pass.
// errors: 2
// expect: tigon: <hwy/foreach_target.h> compiles this file for each target; include tigon behind #if HWY_ONCE
// flags: -march=x86-64-v3 -DHWY_DISABLE_PCLMUL_AES -DTIGON_BACKEND=highway
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "order_foreach_target.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#if defined(SHOULD_NOT_COMPILE) || HWY_ONCE
#include <tigon/ops/rms_norm.hpp>
#endif
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace own {
namespace HWY_NAMESPACE {
inline float first(const float* p) {
  const hwy::HWY_NAMESPACE::ScalableTag<float> all;
  return hwy::HWY_NAMESPACE::GetLane(hwy::HWY_NAMESPACE::LoadU(all, p));
}
}  // namespace HWY_NAMESPACE
}  // namespace own
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
static_assert(tigon::simd::vec<tigon::simd::highway, float>::size == 8);
#endif
