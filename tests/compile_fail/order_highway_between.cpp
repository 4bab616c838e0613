// The library's header after one of tigon's headers and before those that need it.
// expect: but <hwy/highway.h>, included before tigon, was configured for less; include tigon first, or compile with -DHWY_DISABLE_PCLMUL_AES
// flags: -march=x86-64-v3 -DTIGON_BACKEND=highway
// clang-format off
#include <tigon/core/views.hpp>
#ifdef SHOULD_NOT_COMPILE
#include <hwy/highway.h>
#endif
#include <tigon/ops/rms_norm.hpp>
#include <hwy/highway.h>
#include <tigon/ops/softmax.hpp>
// clang-format on

namespace hn = hwy::HWY_NAMESPACE;
static_assert(HWY_TARGET <= HWY_AVX2 && sizeof(hn::Vec<hn::ScalableTag<float>>) == 32);
